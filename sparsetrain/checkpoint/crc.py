# SPDX-License-Identifier: Apache-2.0
"""Combination of CRC-32 checksums: that of a whole from those of its parts, summed in parallel.

A CRC is a remainder modulo a polynomial over bits. To append n bytes is to multiply by x^(8n) and
to add; the power comes from repeated squaring, some thousand operations in all.
Source: M. Adler, `crc32_combine` of zlib; here in the reflected order of zlib's CRC-32.
Parts of one size are many, and their powers are kept.
"""

from collections.abc import Iterable
from functools import lru_cache

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31  # x^0: the highest bit is the lowest power


def joined(parts: Iterable[tuple[int, int]]) -> int:
    """Return the CRC-32 of parts in a row, each given as (CRC-32, bytes).

    Examples
    --------
    >>> import zlib
    >>> joined([(zlib.crc32(b"ab"), 2), (zlib.crc32(b"c"), 1)]) == zlib.crc32(b"abc")
    True
    """
    whole = 0
    for crc, size in parts:
        whole = _product(_power(8 * size), whole) ^ crc
    return whole


@lru_cache(maxsize=256)
def _power(exponent: int) -> int:
    """x^exponent modulo the polynomial."""
    result, square = _ONE, _ONE >> 1
    while exponent:
        if exponent & 1:
            result = _product(square, result)
        square = _product(square, square)
        exponent >>= 1
    return result


def _product(a: int, b: int) -> int:
    """Multiply modulo the polynomial."""
    result = 0
    while a:
        if a & _ONE:
            result ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return result
