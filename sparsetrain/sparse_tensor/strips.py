# SPDX-License-Identifier: Apache-2.0
"""Strips: shares of a sort's entries, each with one thread, and what it notes; the sort's digits.

The number of strips is an extent of an argument, `notes`, and changes nothing of a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

DIGIT_BITS = 11  # at most: 2048 counters of 4 bytes stay in the first-level cache
DIGITS = 1 << DIGIT_BITS
# What a strip notes behind its counters, which end where a line of the cache does.
PADDING, OUTSIDE, BEGIN, RUNS = range(DIGITS, DIGITS + 4)
NOTES = DIGITS + 16  # numbers of a strip

Strips = Callable[[int, Any], AbstractContextManager[Any]]  # a loop: parallel, or not


@cache
def digits_of(num_rows: int, index_dtype: str, most: int = DIGIT_BITS) -> tuple[int, int]:
    """Passes, and bits of each, at most `most`: as few passes as possible, then as few counters."""
    # Not more bits than an index has: a shift past its width is undefined.
    bits = max(1, min(int(num_rows).bit_length(), np.iinfo(index_dtype).bits - 1))
    passes = -(-bits // most)
    return passes, -(-bits // passes)


def share(a: SimpleNamespace, s: Any) -> tuple[Any, Any]:
    """Begin and end of a strip's share of the entries."""
    entries, strips = a.ids.shape[0], a.notes.shape[0]
    return T.Bind(entries * s // strips), T.Bind(entries * (s + 1) // strips)
