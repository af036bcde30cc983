# SPDX-License-Identifier: Apache-2.0
"""Rows of int8 that train: one power-of-two scale per row, and stochastic rounding on writes.

A row is D numbers from -127 to 127, then a float32 scale: ``w = scale * number``. The scale is the
least power of two for which the largest weight fits. It depends only on the weights, products with
it are exact, and weights already in the row do not change. A scale of ``max / 127`` would have
steps finer by 1.4 times on average, but would change with every update; then all numbers of the row
would be rounded again, which adds noise unrelated to the gradient.

A row that holds NaN, infinity or more than 127 * 2**121 has the scale NaN, and so reads as NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.table_formats.half import INFINITE, MAGNITUDE
from sparsetrain.kernels.table_formats.noise import uint

SCALE = 4  # bytes of the scale of a row
LEAST, QUIET_NAN = 7 << 23, 0x7FC0_0000  # the exponent of the smallest scale, 2**-126, plus 6; NaN
CARRY = 0x1_FFFF  # carries into the exponent above 127 / 64
FRACTION = 23  # fraction bits that decide the rounding


def scale_bits(largest: Any) -> Any:
    """Return the bits of a row's scale (uint32), given the bits of its largest magnitude."""
    exponent = T.Bind((largest + uint(CARRY)) & uint(INFINITE))
    scale = tirx.max(exponent, uint(LEAST)) - uint(6 << 23)
    return T.Bind(tirx.Select(exponent == uint(INFINITE), uint(QUIET_NAN), scale))


def inverse_bits(scale: Any) -> Any:
    """Return the bits of ``1 / scale``; of 0 for NaN."""
    return T.Bind(tirx.Select(scale == uint(QUIET_NAN), uint(0), uint(254 << 23) - scale))


def magnitude(value: Any) -> Any:
    """Return the bits of ``|value|``, which sort like the numbers; NaN sorts last."""
    return T.reinterpret("uint32", value) & uint(MAGNITUDE)


def narrowed(value: Any, inverse: Any, random: Any) -> Any:
    """Round a weight to int8 stochastically, by the top 23 of 32 random bits.

    The bits are added as a fraction before rounding down, so the mean is the weight.
    """
    finite = tirx.Select(magnitude(value) < uint(INFINITE), value, tirx.const(0, "float32"))
    steps = T.Bind(finite * inverse) * tirx.const(2.0**FRACTION, "float32")
    drawn = tirx.Cast("int32", random >> (32 - FRACTION))
    return tirx.Cast("int8", (tirx.Cast("int32", steps) + drawn) >> FRACTION)


def rows_of_floats(rows: np.ndarray) -> np.ndarray:
    """Round (n, D) float32 rows to nearest, to (n, D + 4) int8."""
    largest = np.abs(rows).max(axis=1, keepdims=True).astype(np.float32).view(np.uint32)
    exponent = (largest + np.uint32(CARRY)) & np.uint32(INFINITE)
    bits = np.maximum(exponent, LEAST) - np.uint32(6 << 23)
    scale = np.where(exponent == INFINITE, QUIET_NAN, bits).astype(np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        numbers = np.nan_to_num(np.rint(rows / scale)).astype(np.int8)
    return np.concatenate([numbers, scale.astype("<f4").view(np.int8)], axis=1)


def floats_of_rows(rows: np.ndarray) -> np.ndarray:
    """Convert (n, D + 4) int8 rows to (n, D) float32."""
    return rows[:, :-SCALE].astype(np.float32) * scales_of(rows)


def scales_of(rows: np.ndarray) -> np.ndarray:
    """Return the scales of (n, D + 4) int8 rows as (n, 1) float32."""
    return np.ascontiguousarray(rows[:, -SCALE:]).view("<f4").astype(np.float32)
