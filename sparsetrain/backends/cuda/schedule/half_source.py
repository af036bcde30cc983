# SPDX-License-Identifier: Apache-2.0
"""CUDA source of four helpers for tensor-core products that TIR cannot express.

TVM writes the source of a helper once into each module that calls it. Two numbers adjacent along
`k` are one 32-bit word; the first number is in the lower half.
"""

from __future__ import annotations

from typing import Any

from tvm.backend.cuda.op import cuda_func_call

# Half-precision dtype -> its name in PTX instructions.
INSTRUCTION_NAMES = {"bfloat16": "bf16", "float16": "f16"}

_MULTIPLY = """
__forceinline__ __device__ void sparsetrain_multiply_{name}(
    float* sums, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {{
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.{name}.{name}.f32 "
      "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}}
"""
_PAIR = """
__forceinline__ __device__ unsigned sparsetrain_pair_{name}(float low, float high) {{
  unsigned pair;
  asm("cvt.rn.{name}x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}}
"""
_COPY = """
__forceinline__ __device__ void sparsetrain_copy_{words}(void* to, const void* from) {{
  *static_cast<{type}*>(to) = *static_cast<const {type}*>(from);
}}
"""
_BITS = """
__forceinline__ __device__ unsigned sparsetrain_bits(const void* half) {
  return *static_cast<const unsigned short*>(half);
}
"""
_WORDS = {1: "unsigned", 2: "uint2", 4: "uint4"}


def multiply(half: str, sums: Any, a: list[Any], b: list[Any]) -> Any:
    """Multiply 16 x 16 of `a` by 16 x 8 of `b`; add to a warp's sums (each thread has four)."""
    name = INSTRUCTION_NAMES[half]
    source = _MULTIPLY.format(name=name)
    return cuda_func_call(f"sparsetrain_multiply_{name}", sums, *a, *b, source_code=source)


def pair(half: str, low: Any, high: Any) -> Any:
    """Round two float32 numbers to half precision, ties to even, and return them as a word."""
    name = INSTRUCTION_NAMES[half]
    return cuda_func_call(
        f"sparsetrain_pair_{name}",
        low,
        high,
        source_code=_PAIR.format(name=name),
        return_type="uint32",
    )


def copy(words: int, to: Any, source: Any) -> Any:
    """Copy 1, 2 or 4 words in one access, from global memory to registers."""
    text = _COPY.format(words=words, type=_WORDS[words])
    return cuda_func_call(f"sparsetrain_copy_{words}", to, source, source_code=text)


def bits(half: Any) -> Any:
    """Return the bits of the half-precision number at an address."""
    return cuda_func_call("sparsetrain_bits", half, source_code=_BITS, return_type="uint32")
