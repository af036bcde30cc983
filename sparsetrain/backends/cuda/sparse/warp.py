# SPDX-License-Identifier: Apache-2.0
"""CUDA source of three helpers for communication within a warp, which TIR lacks.

All 32 threads of the warp must reach each call. There are no atomic operations: one thread updates
a counter for all threads with the same counter.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call

WARP = 32
WORDS = 256  # counter words per warp; word d counts digit d in its low and d + 256 in its high half

_RANK = """
__forceinline__ __device__ unsigned sparsetrain_rank(
    unsigned* counters, unsigned digit, unsigned counts) {
  unsigned alike = __ballot_sync(0xffffffffu, counts);  // whose counter lies in the same word
#pragma unroll
  for (unsigned bit = 0; bit < 8; ++bit) {
    unsigned set = digit >> bit & 1;
    alike &= __ballot_sync(0xffffffffu, set) ^ (set - 1);
  }
  unsigned high = digit >> 8 & 1, highs = __ballot_sync(0xffffffffu, high);
  unsigned before = alike & ((1u << (threadIdx.x & 31)) - 1);
  unsigned* word = counters + (digit & 255);
  unsigned seen = *word;
  __syncwarp();
  if (counts && !before)
    *word = seen + __popc(alike & ~highs) + (__popc(alike & highs) << 16);
  __syncwarp();
  return (seen >> (16 * high) & 0xffff) + __popc(before & (highs ^ (high - 1)));
}
"""
_SUM_TO = """
__forceinline__ __device__ unsigned sparsetrain_sum_to(unsigned value) {
#pragma unroll
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    unsigned other = __shfl_up_sync(0xffffffffu, value, distance);
    if ((threadIdx.x & 31) >= distance) value += other;
  }
  return value;
}
"""
_VOTES = """
__forceinline__ __device__ unsigned sparsetrain_votes(unsigned vote) {
  return __ballot_sync(0xffffffffu, vote);
}
"""


def rank(counters: Any, digit: Any, counts: Any) -> Any:
    """Count one digit per thread, and return how many equal digits precede the thread's digit.

    Parameters
    ----------
    counters : address of 256 words, uint32
        The warp's counts so far; initially zero.
    digit : uint32
        The thread's digit, below 512.
    counts : uint32
        1, or 0 for a thread without a digit.

    Returns
    -------
    uint32
        How often the warp counted the digit in earlier calls, plus in earlier threads of this call.
    """
    return _call("sparsetrain_rank", _RANK, counters, digit, counts)


def sum_to(value: Any) -> Any:
    """Return the sum of `value`, uint32, over this thread and the earlier threads of its warp."""
    return _call("sparsetrain_sum_to", _SUM_TO, value)


def votes(vote: Any) -> Any:
    """Return a word that has a bit for each thread of the warp: the thread's `vote`, 0 or 1."""
    return _call("sparsetrain_votes", _VOTES, vote)


def votes_before(thread: Any, found: Any) -> Any:
    """Return how many earlier threads of the warp have their bit set in `found`."""
    one = tirx.const(1, "uint32")
    below = (one << tirx.Cast("uint32", tirx.floormod(thread, WARP))) - one
    return tirx.popcount(tirx.bitwise_and(found, below))


def _call(name: str, text: str, *arguments: Any) -> Any:
    return cuda_func_call(name, *arguments, source_code=text, return_type="uint32")
