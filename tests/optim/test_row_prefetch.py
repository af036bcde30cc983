# SPDX-License-Identifier: Apache-2.0
"""Rows are prefetched as each processor likes it, to the same bits."""

import numpy as np
import pytest

from sparsetrain.optim import row_prefetch
from sparsetrain.sparse_tensor import RowSparse
from tests.helpers import assert_same_bits
from tests.optim.formulas import OPTIMIZERS, Run

ROWS, ENTRIES = 997, 3000  # more than are asked for at once, with duplicates


@pytest.mark.parametrize("width", [4, 16, 80])
@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise_adagrad"])
def test_every_prefetch_gives_the_same_bits(name, width, monkeypatch):
    first, *others = (
        _updated(name, width, prefetch, monkeypatch) for prefetch in row_prefetch.PREFETCH.values()
    )
    assert np.any(first[0] != 0)
    for other in others:
        for expected, found in zip(first, other, strict=True):
            assert_same_bits(found, expected)


def _updated(name: str, width: int, prefetch, monkeypatch) -> list[np.ndarray]:
    """Weight and slots after one update by a kernel with this prefetch."""
    monkeypatch.setattr(row_prefetch, "PREFETCH", {"": prefetch})
    rng = np.random.default_rng(0)
    ids = rng.integers(0, ROWS, ENTRIES).astype(np.int32)
    gradient = RowSparse.from_numpy(ids, rng.standard_normal((ENTRIES, width), "f4"), ROWS)
    run = Run(OPTIMIZERS[name], np.zeros((ROWS, width), "f4")).apply(gradient)
    return [*run.arrays().values()]
