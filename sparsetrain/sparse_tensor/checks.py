# SPDX-License-Identifier: Apache-2.0
"""Checks of the preconditions of row-sparse kernels, on host arrays.

Cost: a few passes over the N indices; values are not read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsetrain.errors import ConfigError, DataError
from sparsetrain.system.argument_checks import is_number, require_int

FLOATS = ("float16", "float32", "float64")


def check_floating(dtype: str) -> None:
    """Raise for a dtype that values cannot have."""
    if dtype not in FLOATS:
        raise DataError(f"RowSparse: values must be one of {', '.join(FLOATS)}, not {dtype}")


def check_factor(factor: Any) -> None:
    """Refuse a factor that is neither a number nor a scalar tensor or expression."""
    shape = getattr(getattr(factor, "ty", factor), "shape", None)
    if not is_number(factor) and (shape is None or len(shape)):
        found = repr(factor) if shape is None else f"of the shape {tuple(shape)}"
        raise DataError(f"RowSparse: a factor or divisor must be one number, not {found:.60}")


def value_rows(values: Any) -> np.ndarray:
    """Return `values` as an array (M, D) of a supported dtype, with D at least 1."""
    array = np.asarray(values)
    if array.ndim != 2 or array.shape[1] < 1:
        raise DataError(
            f"RowSparse: values must be (M, D) with D of 1 or more, not shape {array.shape}"
        )
    check_floating(array.dtype.name)
    return array


def whole_rows(num_rows: Any) -> int:
    """Return a number of rows as a Python int.

    Raises
    ------
    DataError
        If `num_rows` is not an integer of 0 or more.
    """
    try:
        return require_int("RowSparse: num_rows", num_rows, 0)
    except ConfigError as error:
        raise DataError(str(error)) from None


def check_entries(
    indices: np.ndarray, values: np.ndarray, source: np.ndarray | None, num_rows: int
) -> None:
    """Check shapes, dtypes and ranges, as documented in `RowSparse`."""
    value_rows(values)
    _check_vector("indices", indices, ("int32", "int64"))
    whole_rows(num_rows)
    _check_range("index", indices, num_rows + 1, f"0 to {num_rows}, where {num_rows} is padding")
    if source is not None:
        _check_vector("source", source, ("int32",))
        _check_range("source", source, len(values), f"the {len(values)} value rows")
    entries, what = (len(values), "value rows") if source is None else (len(source), "sources")
    if entries != len(indices):
        raise DataError(f"RowSparse: {len(indices)} indices but {entries} {what}")


def check_coalesced(indices: np.ndarray, source: np.ndarray | None, num_rows: int) -> None:
    """Check that a tensor marked as coalesced really is."""
    if source is not None:
        raise DataError("RowSparse: a coalesced tensor must have no source: remove source")
    falls = np.flatnonzero(indices[1:] <= indices[:-1])
    if len(falls):
        entry = int(falls[0]) + 1
        raise DataError(
            f"RowSparse: coalesced, but index {int(indices[entry])} at entry {entry} is not above "
            f"index {int(indices[entry - 1])} before it"
        )
    if len(indices) and indices[-1] == num_rows:
        raise DataError(f"RowSparse: coalesced, but entry {len(indices) - 1} is padding")


def _check_vector(what: str, array: np.ndarray, dtypes: tuple[str, ...]) -> None:
    if array.ndim != 1 or array.dtype.name not in dtypes:
        wanted = " or ".join(dtypes)
        raise DataError(
            f"RowSparse: {what} must be (N,) {wanted}, not shape {array.shape} {array.dtype}"
        )


def _check_range(what: str, array: np.ndarray, end: int, allowed: str) -> None:
    bad = np.flatnonzero((array < 0) | (array >= end))
    if len(bad):
        entry = int(bad[0])
        raise DataError(
            f"RowSparse: {what} {int(array[entry])} at entry {entry} is outside {allowed}"
        )
