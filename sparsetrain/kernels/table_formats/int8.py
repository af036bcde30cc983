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

from types import SimpleNamespace
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.table_formats.format import TableFormat
from sparsetrain.kernels.table_formats.half import INFINITE, MAGNITUDE
from sparsetrain.kernels.table_formats.noise import uint
from sparsetrain.kernels.table_formats.rows import PlainRow, Stored, read_float

SCALE = 4  # bytes of a row's scale
LEAST, QUIET_NAN = (
    7 << 23,
    0x7FC0_0000,
)  # exponent bits of the smallest scale, 2**-126, times 2**6; bits of NaN
CARRY = 0x1_FFFF  # carries into the exponent if a mantissa is above 127 / 64
FRACTION = 23  # fraction bits that decide the rounding


def scale_bits(largest: Any) -> Any:
    """Return the bits of a row's scale (uint32), given the bits of its largest magnitude."""
    exponent = T.Bind((largest + uint(CARRY)) & uint(INFINITE))
    scale = tirx.max(exponent, uint(LEAST)) - uint(6 << 23)
    return T.Bind(tirx.Select(exponent == uint(INFINITE), uint(QUIET_NAN), scale))


def inverse_bits(scale: Any) -> Any:
    """Return the bits of ``1 / scale``; the bits of 0 if the scale is NaN."""
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


class Int8Row(PlainRow):
    """A row of int8: new weights stay in registers until their scale is known."""

    def __init__(self, parameter: Stored, row: Any, h: SimpleNamespace) -> None:
        super().__init__(parameter, row, h)
        self._scale = T.Bind(read_float(parameter.weight, row, parameter.width))

    def read(self, column: Any) -> Any:
        """Read one weight."""
        return T.Bind(self._scale * tirx.Cast("float32", super().read(column)))

    def begin(self) -> None:
        """Prepare to write."""
        self._new = T.alloc_local((self.parameter.width,), "float32")

    def write(self, column: Any, value: Any) -> None:
        """Keep one weight."""
        T.buffer_store(self._new, value, [column])

    def end(self) -> None:
        """Choose the scale, round and store the row."""
        weight, width = self.parameter.weight, self.parameter.width
        scale = scale_bits(self._largest())
        inverse = T.Bind(T.reinterpret("float32", inverse_bits(scale)))
        noise, (tiles, lanes) = self._noise(), self.parameter.tiles()
        with T.serial(0, tiles) as tile, T.vectorized(0, lanes) as lane:
            column = tile * lanes + lane
            number = narrowed(self._new[column], inverse, noise.at(column))
            T.buffer_store(weight, number, [self.row, column])
        for place in range(SCALE):
            byte = tirx.Cast("int8", (scale >> (8 * place)) & 0xFF)
            T.buffer_store(weight, byte, [self.row, width + place])

    def _largest(self) -> Any:
        """Return the bits of the largest magnitude of the new weights."""
        tiles, lanes = self.parameter.tiles()
        found = T.alloc_local((lanes,), "uint32")
        with T.vectorized(0, lanes) as lane:
            T.buffer_store(found, magnitude(self._new[lane]), [lane])
        with T.serial(0, tiles - 1) as tile, T.vectorized(0, lanes) as lane:
            size = magnitude(self._new[(tile + 1) * lanes + lane])
            T.buffer_store(found, tirx.max(found[lane], size), [lane])
        while lanes > 1:  # fold the upper half of the vector onto the lower
            half = (lanes + 1) // 2
            with T.vectorized(0, lanes - half) as lane:
                T.buffer_store(found, tirx.max(found[lane], found[half + lane]), [lane])
            lanes = half
        return T.Bind(found[0])


def _element(table: Any, row: Any, column: Any) -> Any:
    scale = read_float(table, row, int(table.shape[1]) - SCALE)
    return scale * tirx.Cast("float32", table[row, column])


INT8 = TableFormat(
    "int8",
    np.dtype(np.int8),
    "float32",
    "int8",
    SCALE,
    rounded=True,
    element=_element,
    row=Int8Row,
    packed=rows_of_floats,
    unpacked=floats_of_rows,
    scales=scales_of,
)
