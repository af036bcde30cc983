# SPDX-License-Identifier: Apache-2.0
"""Rows of int8: each row of a table on a scale of 256 steps of its own.

A row of D numbers becomes D bytes, a float32 scale and a float32 offset, as `stored` reads it. The
least number of a row is byte 0, the greatest 255, and each is off by at most half a step, a 510th
of the row's range. The rule and the layout are those of FBGEMM's row-wise quantisation,
https://github.com/pytorch/FBGEMM. Cost: one pass, in blocks of `BLOCK` rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparsetrain.kernels.table_formats.names import EXTRA

BLOCK = 1 << 16
STEPS = 255
LARGEST = 1e38  # of a number in a row: the range of the row must be a float32


class NoScale(NamedTuple):
    """The first row that holds NaN, infinity or a number beyond `LARGEST`."""

    row: int


def quantize_rows_(out: np.ndarray, table: np.ndarray) -> NoScale | None:
    """Fill `out` with the rows of a table, or say which row has no scale.

    Parameters
    ----------
    out : (V, D + 8) uint8
        Written.
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
    """(n, D) float32 -> (n, D + 8) uint8."""
    low = rows.min(axis=1, keepdims=True).astype(np.float64)
    span = rows.max(axis=1, keepdims=True) - low
    scale = (span / STEPS).astype(np.float32)
    # By the scale that is stored; of a row of equal numbers, or nearly, every byte is 0.
    steps = (rows - low) / np.where(scale > 0, scale, np.inf).astype(np.float64)
    numbers = np.clip(np.rint(steps), 0, STEPS).astype(np.uint8)
    ends = np.concatenate([scale, low.astype(np.float32)], axis=1).astype("<f4")
    return np.concatenate([numbers, ends.view(np.uint8).reshape(len(rows), EXTRA)], axis=1)
