# SPDX-License-Identifier: Apache-2.0
"""LLVM IR helpers for bfloat16 that TVM 0.27 cannot emit: dot product, rounding, transpose.

A pragma imports the helpers into a kernel, where they are always inlined. They take pointers and
integers, because TVM would convert a bfloat16 value to float32. They round to nearest even, and
denormals count as zero, as in the AVX-512 instructions. Loads past `columns` and `rows` return zero
without touching memory.
"""

from itertools import product

from sparsetrain.kernels.builder import LINE_BYTES
from sparsetrain.kernels.llvm import rounds

# dtype in memory -> LLVM element type, which is also the suffix of the packing helpers' names.
SOURCES = {"float32": "float", "bfloat16": "i16"}
_BYTES = {"float": 4, "i16": 2}

_DECLARATIONS = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
declare <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float>)
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, i32, <16 x i1>, <16 x float>)
declare <16 x i16> @llvm.masked.load.v16i16.p0(ptr, i32, <16 x i1>, <16 x i16>)
declare void @llvm.masked.store.v16i16.p0(<16 x i16>, ptr, i32, <16 x i1>)
declare void @llvm.masked.store.v16i32.p0(<16 x i32>, ptr, i32, <16 x i1>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, i32, <16 x i1>)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
"""

_DOT = """
define linkonce_odr <16 x float> @sparsetrain_dot(
    <16 x float> %sum, <2 x i16> %left, <32 x i16> %right) alwaysinline nounwind {
  %pair = bitcast <2 x i16> %left to i32
  %first = insertelement <16 x i32> poison, i32 %pair, i32 0
  %all = shufflevector <16 x i32> %first, <16 x i32> poison, <16 x i32> zeroinitializer
  %a = bitcast <16 x i32> %all to <32 x bfloat>
  %b = bitcast <32 x i16> %right to <32 x bfloat>
  %more = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(
      <16 x float> %sum, <32 x bfloat> %a, <32 x bfloat> %b)
  ret <16 x float> %more
}
"""

# Store the first `count` of 16 sums.
_STORE = f"""
define linkonce_odr i32 @sparsetrain_store(ptr %to, <16 x float> %sum, i32 %count)
    alwaysinline nounwind {{
  %one = insertelement <16 x i32> poison, i32 %count, i32 0
  %limit = shufflevector <16 x i32> %one, <16 x i32> poison, <16 x i32> zeroinitializer
  %inside = icmp sgt <16 x i32> %limit, <{", ".join(f"i32 {n}" for n in range(16))}>
  call void @llvm.masked.store.v16f32.p0(<16 x float> %sum, ptr %to, i32 4, <16 x i1> %inside)
  ret i32 0
}}
"""

# Round 16 numbers and store them.
_STORE_HALF = """
define linkonce_odr i32 @sparsetrain_store_half(ptr %to, <16 x float> %x)
    alwaysinline nounwind {
  %half = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %x)
  store <16 x bfloat> %half, ptr %to, align 2
  ret i32 0
}
"""

# Interleave two rows of 16 values into 16 pairs and OR them into the destination.
_MERGE = f"""
define linkonce_odr i32 @sparsetrain_merge(ptr %to, ptr %even, ptr %odd) alwaysinline nounwind {{
  %a = load <16 x i16>, ptr %even, align 2
  %b = load <16 x i16>, ptr %odd, align 2
  %pairs = shufflevector <16 x i16> %a, <16 x i16> %b,
      <32 x i32> <{", ".join(f"i32 {n // 2 + 16 * (n % 2)}" for n in range(32))}>
  %old = load <32 x i16>, ptr %to, align 2
  %new = or <32 x i16> %old, %pairs
  store <32 x i16> %new, ptr %to, align 2
  ret i32 0
}}
"""


def _lanes(element: str) -> str:
    """Return a helper that loads up to 16 numbers of a row as bfloat16, with zeros past the end."""
    name = {"float": "v16f32", "i16": "v16i16"}[element]
    rounded = (
        """
  %half = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %x)
  %bits = bitcast <16 x bfloat> %half to <16 x i16>
  ret <16 x i16> %bits"""
        if element == "float"
        else "\n  ret <16 x i16> %x"
    )
    return f"""
define linkonce_odr <16 x i16> @sparsetrain_lanes_{element}(ptr %source, i32 %columns)
    alwaysinline nounwind {{
  %one = insertelement <16 x i32> poison, i32 %columns, i32 0
  %limit = shufflevector <16 x i32> %one, <16 x i32> poison, <16 x i32> zeroinitializer
  %inside = icmp sgt <16 x i32> %limit, <{", ".join(f"i32 {n}" for n in range(16))}>
  %x = call <16 x {element}> @llvm.masked.load.{name}.p0(
      ptr %source, i32 {_BYTES[element]}, <16 x i1> %inside,
      <16 x {element}> zeroinitializer){rounded}
}}
"""


def _round(element: str) -> str:
    """Return a helper that rounds 16 or fewer numbers of a row; a zero pads an odd count."""
    return f"""
define linkonce_odr i32 @sparsetrain_round_{element}(ptr %to, ptr %source, i32 %columns)
    alwaysinline nounwind {{
  %bits = call <16 x i16> @sparsetrain_lanes_{element}(ptr %source, i32 %columns)
  %more = add i32 %columns, 1
  %even = and i32 %more, -2
  %one = insertelement <16 x i32> poison, i32 %even, i32 0
  %limit = shufflevector <16 x i32> %one, <16 x i32> poison, <16 x i32> zeroinitializer
  %inside = icmp sgt <16 x i32> %limit, <{", ".join(f"i32 {n}" for n in range(16))}>
  call void @llvm.masked.store.v16i16.p0(<16 x i16> %bits, ptr %to, i32 2, <16 x i1> %inside)
  ret i32 0
}}
"""


def _pairs(element: str) -> str:
    """Return a helper that interleaves two rows of 16 numbers into pairs.

    It stores the high half at `then`, and after this the low half at `to`.
    """
    mixed = [n // 2 + 16 * (n % 2) for n in range(32)]
    halves = [", ".join(f"i32 {n}" for n in mixed[at : at + 16]) for at in (0, 16)]
    return f"""
define linkonce_odr i32 @sparsetrain_pairs_{element}(
    ptr %to, ptr %then, ptr %source, i64 %stride, i32 %columns, i32 %rows) alwaysinline nounwind {{
  %any = icmp sgt i32 %rows, 0
  %both = icmp sgt i32 %rows, 1
  %width0 = select i1 %any, i32 %columns, i32 0
  %width1 = select i1 %both, i32 %columns, i32 0
  %next = getelementptr {element}, ptr %source, i64 %stride
  %even = call <16 x i16> @sparsetrain_lanes_{element}(ptr %source, i32 %width0)
  %odd = call <16 x i16> @sparsetrain_lanes_{element}(ptr %next, i32 %width1)
  %low = shufflevector <16 x i16> %even, <16 x i16> %odd, <16 x i32> <{halves[0]}>
  %high = shufflevector <16 x i16> %even, <16 x i16> %odd, <16 x i32> <{halves[1]}>
  store <16 x i16> %high, ptr %then, align 2
  store <16 x i16> %low, ptr %to, align 2
  ret i32 0
}}
"""


def _transposed(element: str) -> str:
    """Return a helper that transposes 16 rows of 16 pairs (32 numbers).

    The written rows are `stride_to` apart and have `room` elements; elements past the source's edge
    are zero. The helper prefetches the next 32 numbers of each row, because 16 rows are more
    streams than the hardware prefetcher tracks.
    """
    lines = []
    lanes = f"@sparsetrain_lanes_{element}"
    for row in range(16):
        lines += [
            f"%there{row} = icmp sgt i32 %rows, {row}",
            f"%width{row} = select i1 %there{row}, i32 %columns, i32 0",
            f"%rest{row} = sub i32 %width{row}, 16",
            f"%offset{row} = mul i64 %stride, {row}",
            f"%low{row} = getelementptr {element}, ptr %source, i64 %offset{row}",
            f"%high{row} = getelementptr {element}, ptr %low{row}, i64 16",
            f"%a{row} = call <16 x i16> {lanes}(ptr %low{row}, i32 %width{row})",
            f"%b{row} = call <16 x i16> {lanes}(ptr %high{row}, i32 %rest{row})",
            f"%ab{row} = shufflevector <16 x i16> %a{row}, <16 x i16> %b{row}, "
            f"<32 x i32> <{', '.join(f'i32 {n}' for n in range(32))}>",
            f"%s0r{row} = bitcast <32 x i16> %ab{row} to <16 x i32>",
        ]
        for at in range(32, 64, LINE_BYTES // _BYTES[element]):
            lines += [
                f"%next{row}at{at} = getelementptr {element}, ptr %low{row}, i64 {at}",
                f"call void @llvm.prefetch.p0(ptr %next{row}at{at}, i32 0, i32 3, i32 1)",
            ]
    lines += rounds("i32")
    for pair in range(16):
        lines += [
            f"%wanted{pair} = icmp sgt i32 %room, {2 * pair}",
            f"%one{pair} = insertelement <16 x i1> poison, i1 %wanted{pair}, i32 0",
            f"%mask{pair} = shufflevector <16 x i1> %one{pair}, <16 x i1> poison, "
            "<16 x i32> zeroinitializer",
            f"%at{pair} = mul i64 %stride_to, {pair}",
            f"%to{pair} = getelementptr i16, ptr %to, i64 %at{pair}",
            f"call void @llvm.masked.store.v16i32.p0(<16 x i32> %s4r{pair}, ptr %to{pair}, "
            f"i32 2, <16 x i1> %mask{pair})",
        ]
    body = "\n  ".join(lines)
    return f"""
define linkonce_odr i32 @sparsetrain_transposed_{element}(
    ptr %to, i64 %stride_to, ptr %source, i64 %stride, i32 %columns, i32 %rows, i32 %room)
    alwaysinline nounwind {{
  {body}
  ret i32 0
}}
"""


HELPERS = "".join(
    [
        _DECLARATIONS,
        _DOT,
        _STORE,
        _STORE_HALF,
        _MERGE,
        *(
            write(element)
            for write, element in product((_lanes, _round, _pairs, _transposed), SOURCES.values())
        ),
    ]
)
