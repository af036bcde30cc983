# SPDX-License-Identifier: Apache-2.0
"""Rows of uint8 for prediction only: D bytes, then a float32 scale and a float32 offset.

``w = scale * byte + offset``, with 256 steps from the row's smallest number (byte 0) to its largest
(255); the error is at most half a step, 1/510 of the row's range. The rule and the layout are the
same as in FBGEMM's row-wise quantization, https://github.com/pytorch/FBGEMM. Cost: one pass, in
blocks of `BLOCK` rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from tvm import tirx

from sparsetrain.kernels.table_formats.format import TableFormat
from sparsetrain.kernels.table_formats.rows import read_float

EXTRA = 8  # additional bytes per row
BLOCK = 1 << 16
STEPS = 255
LARGEST = 1e38  # largest magnitude in a row: the row's range must fit float32


class NoScale(NamedTuple):
    """The number of the first row with NaN, infinity or a number beyond `LARGEST`."""

    row: int


def quantize_rows_(out: np.ndarray, table: np.ndarray) -> NoScale | None:
    """Fill `out` with the quantized rows of a table; return `NoScale` if a row has no scale.

    Parameters
    ----------
    out : (V, D + 8) uint8
        The result, which is written.
    table : (V, D) float32, bfloat16 or float16
    """
    for first in range(0, len(table), BLOCK):
        rows = table[first : first + BLOCK].astype(np.float32)
        bad = np.flatnonzero(~(np.abs(rows) <= LARGEST).all(axis=1))
        if len(bad):
            return NoScale(first + int(bad[0]))
        out[first : first + BLOCK] = _quantized(rows)
    return None


def _quantized(rows: np.ndarray) -> np.ndarray:
    """Quantize (n, D) float32 to (n, D + 8) uint8."""
    low = rows.min(axis=1, keepdims=True).astype(np.float64)
    span = rows.max(axis=1, keepdims=True) - low
    scale = (span / STEPS).astype(np.float32)
    # Uses the stored scale; in a row of (nearly) equal numbers every byte is 0.
    steps = (rows - low) / np.where(scale > 0, scale, np.inf).astype(np.float64)
    numbers = np.clip(np.rint(steps), 0, STEPS).astype(np.uint8)
    ends = np.concatenate([scale, low.astype(np.float32)], axis=1).astype("<f4")
    return np.concatenate([numbers, ends.view(np.uint8).reshape(len(rows), EXTRA)], axis=1)


def _element(table: Any, row: Any, column: Any) -> Any:
    width = int(table.shape[1]) - EXTRA
    scale, offset = (read_float(table, row, width + at) for at in (0, 4))
    return scale * tirx.Cast("float32", table[row, column]) + offset


UINT8 = TableFormat(
    "uint8", np.dtype(np.uint8), "float32", "uint8", EXTRA, trainable=False, element=_element
)
