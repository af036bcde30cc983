# SPDX-License-Identifier: Apache-2.0
"""LLVM IR for bfloat16 products on Intel's tile registers (AMX), which TVM 0.27 cannot emit.

There are eight registers of 16 rows x 64 bytes. One instruction multiplies two of them (16 x 32 by
32 x 16 numbers) and adds the product to a third, which holds 16 x 16 float32 sums. The product
kernel here computes 32 x 32 sums: it uses four registers for the sums and two for each operand.

A pragma imports the LLVM IR into a kernel, as in `bf16/helpers.py`. A parallel task calls `begin`
once before it uses tiles and `end` once afterwards; each takes a few hundred cycles. `end` releases
the registers, which the system would otherwise save at every thread switch.

The left operand has rows of 32 numbers and the right operand has rows of 32 pairs, both padded with
zeros to a multiple of 32 in `k`. When a complete panel or square is packed, loads are not masked.
Within a step of 32, sums over even and odd `k` are accumulated separately; denormals count as zero.
Strides in the product are in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from sparsetrain.compiler.schedule.bf16.helpers import SOURCES
from sparsetrain.kernels.llvm import rounds

SIDE = 32  # rows and columns of a product, and numbers in one step along `k`
_HALF = SIDE // 2
_PAIRS_BYTES = SIDE * 4  # a row of the right operand: 32 columns of pairs
_ALL_ROWS = "1157442765409226768"  # eight bytes, each 16: the number of rows of each register

_DECLARATIONS = """
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8)
declare void @llvm.x86.tileloadd64(i8, ptr, i64)
declare void @llvm.x86.tilestored64(i8, ptr, i64)
declare void @llvm.x86.tdpbf16ps(i8, i8, i8)
"""

# Bytes 48 to 55 of the configuration are each register's number of rows; every row has 64 bytes.
_BEGIN_AND_END = f"""
define linkonce_odr i32 @sparsetrain_amx_rows(i64 %rows) alwaysinline nounwind {{
  %form = alloca [64 x i8], align 64
  %widths = getelementptr i8, ptr %form, i64 16
  %heights = getelementptr i8, ptr %form, i64 48
  store <64 x i8> zeroinitializer, ptr %form, align 64
  store i8 1, ptr %form, align 64
  store <8 x i16> splat (i16 64), ptr %widths, align 16
  store i64 %rows, ptr %heights, align 16
  call void @llvm.x86.ldtilecfg(ptr %form)
  ret i32 0
}}

define linkonce_odr i32 @sparsetrain_amx_begin() alwaysinline nounwind {{
  %done = call i32 @sparsetrain_amx_rows(i64 {_ALL_ROWS})
  ret i32 0
}}

define linkonce_odr i32 @sparsetrain_amx_end() alwaysinline nounwind {{
  call void @llvm.x86.tilerelease()
  ret i32 0
}}
"""


def _name(rows: int, columns: int) -> str:
    return f"@sparsetrain_amx_sum_{rows}x{columns}"


def _sum(rows: int, columns: int) -> str:
    """Return a function that sums products over all of `k`, in `rows` x `columns` registers."""
    sums = [(i, j, 2 * i + j) for i in range(rows) for j in range(columns)]
    loads = [
        f"call void @llvm.x86.tileloadd64(i8 {4 + i}, ptr %left{i}, i64 %stride)"
        for i in range(rows)
    ] + [
        f"call void @llvm.x86.tileloadd64(i8 {6 + j}, ptr %right{j}, i64 {_PAIRS_BYTES})"
        for j in range(columns)
    ]
    adds = [f"call void @llvm.x86.tdpbf16ps(i8 {n}, i8 {4 + i}, i8 {6 + j})" for i, j, n in sums]
    stores = [
        f"""%at{n} = getelementptr i8, ptr %to, i64 {_HALF * _PAIRS_BYTES * i + 4 * _HALF * j}
  call void @llvm.x86.tilestored64(i8 {n}, ptr %at{n}, i64 {_PAIRS_BYTES})"""
        for i, j, n in sums
    ]
    zeros = [f"call void @llvm.x86.tilezero(i8 {n})" for _, _, n in sums]
    zero_all, add_all, store_all = map("\n  ".join, (zeros, [*loads, *adds], stores))
    return f"""
define linkonce_odr void {_name(rows, columns)}(
    ptr %to, ptr %left, i64 %stride, i64 %step, ptr %right, i64 %steps) noinline nounwind {{
start:
  %below = shl i64 %stride, 4
  {zero_all}
  br label %next
next:
  %n = phi i64 [ 0, %start ], [ %more, %add ]
  %going = icmp slt i64 %n, %steps
  br i1 %going, label %add, label %store
add:
  %along = mul i64 %n, %step
  %down = mul i64 %n, {_HALF * _PAIRS_BYTES}
  %left0 = getelementptr i8, ptr %left, i64 %along
  %left1 = getelementptr i8, ptr %left0, i64 %below
  %right0 = getelementptr i8, ptr %right, i64 %down
  %right1 = getelementptr i8, ptr %right0, i64 {4 * _HALF}
  {add_all}
  %more = add i64 %n, 1
  br label %next
store:
  {store_all}
  ret void
}}
"""


# A product of up to 32 x 32 results, in `to` (32 x 32 float32). The right operand has rows of 32
# pairs (128 bytes). The left operand has rows `stride` bytes apart and steps along `k` `step` bytes
# apart. If `ends` is not 0, its memory ends after `rows` rows, and later rows are not read.
_PRODUCT = f"""
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
define linkonce_odr i32 @sparsetrain_amx_product(
    ptr %to, ptr %left, i64 %stride, i64 %step, ptr %right, i64 %steps,
    i32 %few_rows, i32 %few_columns, i32 %ends) alwaysinline nounwind {{
start:
  %rows = sext i32 %few_rows to i64
  %columns = sext i32 %few_columns to i64
  %none = icmp slt i64 %rows, 1
  br i1 %none, label %done, label %shape
shape:
  %few = icmp slt i64 %rows, {SIDE}
  %cut = icmp ne i32 %ends, 0
  %partial = and i1 %few, %cut
  br i1 %partial, label %narrow, label %choose
narrow:
  %high = call i64 @llvm.smin.i64(i64 %rows, i64 {_HALF})
  %left_over = sub i64 %rows, {_HALF}
  %low = call i64 @llvm.smax.i64(i64 %left_over, i64 1)
  %highs = mul i64 %high, {0x1_0000_0101}
  %lows = mul i64 %low, {0x100_0101_0000}
  %both = or i64 %highs, %lows
  %form = or i64 %both, {0x1010_0000_0000_0000}
  %set = call i32 @sparsetrain_amx_rows(i64 %form)
  br label %choose
choose:
  %tall = icmp sgt i64 %rows, {_HALF}
  %wide = icmp sgt i64 %columns, {_HALF}
  %tall_bit = zext i1 %tall to i32
  %wide_bit = zext i1 %wide to i32
  %twice = shl i32 %tall_bit, 1
  %kind = or i32 %twice, %wide_bit
  switch i32 %kind, label %sum3 [ i32 0, label %sum0 i32 1, label %sum1 i32 2, label %sum2 ]
{
    "".join(
        f'''sum{kind}:
  call void {_name(1 + kind // 2, 1 + kind % 2)}(
      ptr %to, ptr %left, i64 %stride, i64 %step, ptr %right, i64 %steps)
  br label %after
'''
        for kind in range(4)
    )
}after:
  br i1 %partial, label %restore, label %done
restore:
  %reset = call i32 @sparsetrain_amx_begin()
  br label %done
done:
  ret i32 0
}}
"""


BEGIN_AND_END = _DECLARATIONS + _BEGIN_AND_END
PRODUCT = "".join(_sum(rows, columns) for rows in (1, 2) for columns in (1, 2)) + _PRODUCT


def _panel(element: str) -> str:
    """Return a function that interleaves two rows of 32 numbers into 32 pairs."""
    return _both(element) + _whole_or_guarded("panel", "both", element, (SIDE, 2))


def _both(element: str) -> str:
    """Return a function that interleaves the two rows in two halves of 16 columns."""
    half = f"call i32 @sparsetrain_pairs_{element}(ptr"
    return f"""
define linkonce_odr i32 @sparsetrain_both_{element}(
    ptr %to, ptr %source, i64 %stride, i32 %columns, i32 %rows) alwaysinline nounwind {{
  %rest = sub i32 %columns, {_HALF}
  %from = getelementptr {element}, ptr %source, i64 {_HALF}
  %to1 = getelementptr i16, ptr %to, i64 {_HALF}
  %to2 = getelementptr i16, ptr %to, i64 {SIDE}
  %to3 = getelementptr i16, ptr %to, i64 {SIDE + _HALF}
  %low = {half} %to, ptr %to1, ptr %source, i64 %stride, i32 %columns, i32 %rows)
  %high = {half} %to2, ptr %to3, ptr %from, i64 %stride, i32 %rest, i32 %rows)
  ret i32 0
}}
"""


def _line(element: str) -> str:
    """Return a function that rounds 32 or fewer numbers of a row and pads them with zeros."""
    return f"""
define linkonce_odr i32 @sparsetrain_line_{element}(ptr %to, ptr %source, i32 %columns)
    alwaysinline nounwind {{
  %rest = sub i32 %columns, {_HALF}
  %then = getelementptr {element}, ptr %source, i64 {_HALF}
  %low = call <16 x i16> @sparsetrain_lanes_{element}(ptr %source, i32 %columns)
  %high = call <16 x i16> @sparsetrain_lanes_{element}(ptr %then, i32 %rest)
  %all = shufflevector <16 x i16> %low, <16 x i16> %high, <32 x i32> <{_indices(range(32))}>
  store <32 x i16> %all, ptr %to, align 2
  ret i32 0
}}
"""


def _columns(element: str) -> str:
    """Return a function that transposes 32 rows x 16 columns into 16 rows of 32 numbers."""
    return _square(element) + _whole_or_guarded("columns", "square", element, (_HALF, SIDE))


def _square(element: str) -> str:
    """Return a function that transposes, and prefetches these columns of the next 32 rows."""
    mixed = _indices(n // 2 + _HALF * (n % 2) for n in range(SIDE))
    lines = ["%ahead = mul i64 %stride, 32"]
    for row in range(SIDE):
        lines += [
            f"%there{row} = icmp sgt i32 %rows, {row}",
            f"%width{row} = select i1 %there{row}, i32 %columns, i32 0",
            f"%offset{row} = mul i64 %stride, {row}",
            f"%from{row} = getelementptr {element}, ptr %source, i64 %offset{row}",
            f"%next{row} = getelementptr {element}, ptr %from{row}, i64 %ahead",
            f"call void @llvm.prefetch.p0(ptr %next{row}, i32 0, i32 3, i32 1)",
            f"%a{row} = call <16 x i16> @sparsetrain_lanes_{element}("
            f"ptr %from{row}, i32 %width{row})",
        ]
    for pair in range(_HALF):
        both = f"<16 x i16> %a{2 * pair}, <16 x i16> %a{2 * pair + 1}"
        lines += [
            f"%ab{pair} = shufflevector {both}, <32 x i32> <{mixed}>",
            f"%s0r{pair} = bitcast <32 x i16> %ab{pair} to <16 x i32>",
        ]
    lines += rounds("i32")
    for column in range(_HALF):
        lines += [
            f"%to{column} = getelementptr i8, ptr %to, i64 {2 * SIDE * column}",
            f"store <16 x i32> %s4r{column}, ptr %to{column}, align 4",
        ]
    body = "\n  ".join(lines)
    return f"""
define linkonce_odr i32 @sparsetrain_square_{element}(
    ptr %to, ptr %source, i64 %stride, i32 %columns, i32 %rows) alwaysinline nounwind {{
  {body}
  ret i32 0
}}
"""


def _whole_or_guarded(name: str, inner: str, element: str, whole: tuple[int, int]) -> str:
    """Return a function that calls `inner`, with constant extents if the block is complete."""
    columns, rows = whole
    types = "ptr %to, ptr %source, i64 %stride"
    call = f"call i32 @sparsetrain_{inner}_{element}({types}"
    return f"""
define linkonce_odr i32 @sparsetrain_{name}_{element}(
    {types}, i32 %columns, i32 %rows) alwaysinline nounwind {{
  %wide = icmp sge i32 %columns, {columns}
  %long = icmp sge i32 %rows, {rows}
  %whole = and i1 %wide, %long
  br i1 %whole, label %all, label %some
all:
  %known = {call}, i32 {columns}, i32 {rows})
  ret i32 0
some:
  %guarded = {call}, i32 %columns, i32 %rows)
  ret i32 0
}}
"""


def _indices(numbers: Iterable[int]) -> str:
    return ", ".join(f"i32 {n}" for n in numbers)


PACKING = "".join(
    write(element) for write, element in product((_panel, _line, _columns), SOURCES.values())
)
