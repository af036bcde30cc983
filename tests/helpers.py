# SPDX-License-Identifier: Apache-2.0
"""One assertion of equality per type, and the NumPy meaning of a row-sparse tensor."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import pytest
import tvm

from sparsetrain import checkpoint
from sparsetrain.runtime import as_numpy
from sparsetrain.sparse_tensor import RowSparse

# For references and rules: what LLVM makes of kernels is tested in `compiler`.
UNOPTIMIZED = tvm.target.Target({"kind": "llvm", "opt-level": 0})


def slow_except(quick: Collection, cases: Iterable) -> list:
    """Each case of a parametrisation, as a slow one unless it is among `quick`."""
    values = [(case, case if isinstance(case, tuple) else (case,)) for case in cases]
    slow = pytest.mark.slow
    return [case if case in quick else pytest.param(*v, marks=slow) for case, v in values]


def read_checkpoint(folder: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return all arrays of a checkpoint, in the order of the save, and its manifest."""
    return checkpoint.whole(
        folder, lambda saved: ({name: saved.read(name) for name in saved.kinds}, saved.manifest)
    )


def assert_same_bits(found: Any, expected: np.ndarray) -> None:
    """Compare dtype, shape and bits: NaN equals NaN, -0.0 does not equal 0.0."""
    found = np.asarray(found) if isinstance(found, np.ndarray) else as_numpy(found)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    where = np.flatnonzero(_bits(found) != _bits(expected))
    assert not len(where), (
        f"{len(where)} of {found.size} elements differ, the first at "
        f"{np.unravel_index(where[0], found.shape)}: {found.flat[where[0]]!r}, not "
        f"{expected.flat[where[0]]!r}"
    )


def assert_row_sparse(
    found: RowSparse, expected: np.ndarray, rtol: float = 0.0, atol: float = 0.0
) -> None:
    """Compare with a dense array, without the kernels: invariants, shape, dtype, then the sums."""
    found.validate()
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype.name)
    leaves = [as_numpy(leaf) for leaf in found.leaves]
    indices, values, source = leaves if len(leaves) == 3 else (*leaves, None)
    dense = dense_sum(indices, values, found.num_rows, source, "float64")
    np.testing.assert_allclose(dense.reshape(expected.shape), expected, rtol=rtol, atol=atol)


def dense_sum(
    indices: np.ndarray,
    values: np.ndarray,
    num_rows: int,
    source: np.ndarray | None = None,
    dtype: str | None = None,
) -> np.ndarray:
    """``dense[indices[n]] += values[source[n]]``, entry after entry, in `dtype`; skips padding."""
    indices = np.asarray(indices, np.int64)
    rows = np.asarray(values if source is None else values[source], dtype)
    dense = np.zeros((num_rows, values.shape[1]), rows.dtype)
    real = indices < num_rows
    np.add.at(dense, indices[real], rows[real])
    return dense


def _bits(array: np.ndarray) -> np.ndarray:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(f"u{flat.dtype.itemsize}") if flat.dtype.kind == "f" else flat
