# SPDX-License-Identifier: Apache-2.0
"""Columns by name from a scikit-learn user's `X`: a DataFrame, Arrow table, dict or array.

Only columns of object or text arrays are copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from sparsetrain.data.read.tables import as_table, by_column, is_pandas, is_table, names_in
from sparsetrain.data.schema.columns import require_columns
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.location import Location

_GIVEN = "given", Location("table")  # words for error messages


def named_columns(X: Any) -> tuple[Any, dict[str, Any]] | None:
    """Return a frame with the names of `X`, for scikit-learn's checks, and the columns by name.

    Return None for an array, which has no column names.
    """
    if is_pandas(X):
        require_columns(names := [*map(str, X.columns)], names, *_GIVEN)
        return X, {str(name): X[name] for name in X.columns}
    if is_table(X):
        table: Any = as_table(X, Schema())
        require_columns(table.column_names, table.column_names, *_GIVEN)
        return table, {name: table[name].combine_chunks() for name in table.column_names}
    if names := names_in(X):
        by_name = by_column(X)
        return pa.table({name: pa.nulls(1) for name in names}), {n: by_name[n] for n in names}
    return None


def array_columns(X: np.ndarray) -> dict[str, Any]:
    """Return the columns of an array, named x0, x1, ...; NaN among objects becomes null."""
    return {name: _plain(X[:, i]) for i, name in enumerate(array_names(X.shape[1]))}


def array_names(count: int) -> list[str]:
    """Return the names of the columns of an array."""
    return [f"x{i}" for i in range(count)]


def free_name(name: str, taken: Mapping[str, Any]) -> str:
    """Return `name`, followed by as many underscores as it takes to be unused."""
    while name in taken:
        name += "_"
    return name


def _plain(values: np.ndarray) -> Any:
    if values.dtype.kind in "biuf":
        return values
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return values.tolist()  # the column's reader raises an error that names it
