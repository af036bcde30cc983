# SPDX-License-Identifier: Apache-2.0
"""Chunks of a sort, one per thread, with their counters; digits of the sort's keys.

The number of chunks is an extent of an argument, `notes`, and changes nothing of a plan.
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
# What a chunk notes behind its counters, which end where a line of the cache does.
PADDING, OUTSIDE, BEGIN, RUNS = range(DIGITS, DIGITS + 4)
NOTES = DIGITS + 16  # numbers of a chunk

Chunks = Callable[[int, Any], AbstractContextManager[Any]]  # a loop: parallel, or not


@cache
def digits_of(num_rows: int, index_dtype: str, most: int = DIGIT_BITS) -> tuple[int, int]:
    """Passes, and bits of each, at most `most`: as few passes as possible, then as few counters."""
    # Not more bits than an index has: a shift past its width is undefined.
    bits = max(1, min(int(num_rows).bit_length(), np.iinfo(index_dtype).bits - 1))
    passes = -(-bits // most)
    return passes, -(-bits // passes)


def share(a: SimpleNamespace, s: Any) -> tuple[Any, Any]:
    """Begin and end of a chunk's share of the entries."""
    entries, chunks = a.ids.shape[0], a.notes.shape[0]
    return T.Bind(entries * s // chunks), T.Bind(entries * (s + 1) // chunks)
