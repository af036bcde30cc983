# SPDX-License-Identifier: Apache-2.0
"""Rows of bytes for prediction alone, made of rows of floats."""

from __future__ import annotations

from sparsetrain import runtime
from sparsetrain.errors import NumericalError
from sparsetrain.kernels.table_formats.uint8 import quantize_rows_
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.tensors import editable_numpy
from sparsetrain.tables.table import Table


def quantize_(table: Table, source: NDArray) -> None:
    """Fill a table in uint8 with rows (V, D) of floats that are current; writes `table`.

    Raises
    ------
    NumericalError
        Names the first row that is not finite.
    """
    rows = runtime.as_numpy(source)
    with editable_numpy(table.weight) as into:
        for name, part in table.named.items():
            problem = quantize_rows_(into[part], rows[part])
            if problem is not None:
                raise NumericalError(f"row {problem.row} of {name!r} is not finite, or above 1e38")
