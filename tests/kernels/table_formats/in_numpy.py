# SPDX-License-Identifier: Apache-2.0
"""NumPy references for tables that are not float32."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from sparsetrain.kernels.table_formats.half import HALVES
from sparsetrain.kernels.table_formats.noise import FIRST, GOLDEN, SECOND, Keys
from sparsetrain.kernels.table_formats.uint8 import EXTRA

WORD = np.uint64(0xFFFF_FFFF)


def random_bits(keys: Keys, rows: np.ndarray, width: int) -> np.ndarray:
    """The 32 random bits (N, width) uint32 of the elements of some rows."""
    rows = rows.astype(np.uint64)
    low, high = rows & WORD, rows >> np.uint64(32)
    shared = _mixed(low ^ np.uint64(keys[0])) ^ high ^ np.uint64(keys[1])
    columns = np.arange(width, dtype=np.uint64) * np.uint64(GOLDEN) & WORD
    return _mixed(shared[:, None] ^ columns).astype(np.uint32)


def _mixed(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(16))) * np.uint64(FIRST) & WORD
    x = (x ^ (x >> np.uint64(15))) * np.uint64(SECOND) & WORD
    return x ^ (x >> np.uint64(16))


def largest(dtype: str) -> float:
    """The largest finite number of a half."""
    return float(ml_dtypes.finfo(HALVES[dtype].array).max)


def neighbours(value: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of a half nearest to float32 ones from below and above, as float64.

    They are equal where the format holds the number. Beyond the largest finite one, infinity.
    """
    half = HALVES[dtype].array
    with np.errstate(over="ignore"):
        near = value.astype(half)
    near = np.where(np.abs(value) > largest(dtype), np.copysign(np.inf, value), near)
    near = near.astype(half)
    side = np.where(value > near.astype(np.float64), np.inf, -np.inf).astype(half)
    other = np.where(value == near.astype(np.float64), near, np.nextafter(near, side))
    other = np.where(np.isinf(near), near, other.astype(half))
    pair = near.astype(np.float64), other.astype(np.float64)
    return np.minimum(*pair), np.maximum(*pair)


def rounded(value: np.ndarray, random: np.ndarray, dtype: str) -> np.ndarray:
    """Float32 numbers as the halves that random bits choose; as float32."""
    below, above = neighbours(value, dtype)
    size = np.abs(value.astype(np.float64))
    inner, outer = np.minimum(abs(below), abs(above)), np.maximum(abs(below), abs(above))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = (size - inner) / (outer - inner)  # how far from the inner one, in [0, 1)
    # As many random bits decide as the format drops; of a denormal float16, 20.
    bits = 16 if dtype == "bfloat16" else np.where(size < 2.0**-14, 20, 13)
    steps = np.exp2(bits)
    drawn = np.floor(random.astype(np.float64) / 2.0**32 * steps)
    out = np.where(np.floor(np.nan_to_num(share) * steps) + drawn >= steps, outer, inner)
    return np.copysign(out, value).astype(np.float32)


def dequantized(stored: np.ndarray) -> np.ndarray:
    """The float32 rows (V, D) that rows of int8 (V, D + 8) stand for."""
    numbers, ends = stored[:, :-EXTRA], np.ascontiguousarray(stored[:, -EXTRA:]).view("<f4")
    return numbers * ends[:, :1].astype(np.float32) + ends[:, 1:].astype(np.float32)


def int8_rows(value: np.ndarray, random: np.ndarray) -> np.ndarray:
    """Float32 rows (n, D) as the rows of int8 (n, D + 4) that random bits choose."""
    largest = np.abs(value).max(axis=1, keepdims=True).astype(np.float64)
    with np.errstate(divide="ignore"):
        exponent = np.maximum(np.ceil(np.log2(largest / 127)), -126)
    scale = np.exp2(exponent)
    drawn = np.floor(random / 2.0**32 * 2.0**23)
    numbers = np.floor((np.trunc(value / scale * 2.0**23) + drawn) / 2.0**23).astype(np.int8)
    return np.concatenate([numbers, scale.astype("<f4").view(np.int8)], axis=1)
