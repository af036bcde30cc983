# SPDX-License-Identifier: Apache-2.0
"""LLVM IR helpers that pack operands for tile registers; see also `bf16/helpers.py`.

The left operand is rows of 32 numbers, the right one rows of 32 pairs. Missing numbers become
zeros; where a panel or a square is complete, no load is masked.
"""

from collections.abc import Iterable
from itertools import product

from sparsetrain.compiler.schedule.amx.helpers import SIDE
from sparsetrain.compiler.schedule.bf16.helpers import SOURCES
from sparsetrain.kernels.llvm.transpose import rounds

_HALF = SIDE // 2


def _panel(element: str) -> str:
    """Two rows of 32 numbers as 32 pairs."""
    return _both(element) + _whole_or_guarded("panel", "both", element, (SIDE, 2))


def _both(element: str) -> str:
    """The two rows, halves of 16 numbers one by one."""
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
    """Up to 32 numbers of a row, filled up by zeros."""
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
    """16 columns of 32 rows as 16 rows of 32 numbers."""
    return _square(element) + _whole_or_guarded("columns", "square", element, (_HALF, SIDE))


def _square(element: str) -> str:
    """The transpose itself, which asks for the columns of the next 32 rows."""
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
    """A helper that calls `inner`, with columns and rows that are known where all are there."""
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
