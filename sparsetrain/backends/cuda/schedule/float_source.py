# SPDX-License-Identifier: Apache-2.0
"""CUDA source of the inner loop of float32 products on tiles in shared memory.

Written in TIR, the loop would be two thousand statements in every kernel.
"""

from __future__ import annotations

from typing import Any

from tvm.backend.cuda.op import cuda_func_call

_MULTIPLY = """
__forceinline__ __device__ void sparsetrain_multiply_{length}x{depth}(
    float* sums, const float* left, const float* right) {{
#pragma unroll
  for (int k = 0; k < {depth}; ++k) {{
    float a[8], b[8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {{
      *reinterpret_cast<float4*>(a + 4 * half) =
          *reinterpret_cast<const float4*>(left + k * {pitch} + half * {half});
      *reinterpret_cast<float4*>(b + 4 * half) =
          *reinterpret_cast<const float4*>(right + k * {pitch} + half * {half});
    }}
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[i * 8 + j] += a[i] * b[j];
  }}
}}
"""


def multiply(length: int, depth: int, pitch: int, pointers: tuple[Any, Any, Any]) -> Any:
    """Add the products of a thread's 8 rows and 8 columns to its sums, for each step of a tile.

    Parameters
    ----------
    length, depth, pitch : int
        Rows or columns of a tile, its steps of `k`, and the distance between steps in shared
        memory.
    pointers : tuple
        The addresses of the sums, in rows of 8, of the thread's first 4 rows in the left tile, and
        of its first 4 columns in the right tile. Its other 4 are half a tile further on.
    """
    text = _MULTIPLY.format(length=length, depth=depth, pitch=pitch, half=length // 2)
    return cuda_func_call(f"sparsetrain_multiply_{length}x{depth}", *pointers, source_code=text)
