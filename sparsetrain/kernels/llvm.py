# SPDX-License-Identifier: Apache-2.0
"""Fragments of LLVM IR that kernels import by a pragma and always inline.

`transpose` transposes 16 x 16 numbers in registers. Done element by element, this costs a load and
a store per number, which compilers do not improve. Done in four rounds, which swap the off-diagonal
quarters of ever smaller squares, it costs 64 shuffles. The IR names no machine instruction, so
every CPU can run it.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

LANES = 16
PRAGMA = "pragma_import_llvm"


def rounds(kind: str, name: str = "s") -> list[str]:
    """Return LLVM IR that transposes vectors ``%s0r0 .. %s0r15`` into ``%s4r0 .. %s4r15``.

    Parameters
    ----------
    kind : str
        LLVM's name of a 32-bit element.
    name : str
        Prefix of the vectors' names.
    """
    lines = []
    for step, size in enumerate((8, 4, 2, 1)):
        for row in range(LANES):
            if row & size:
                continue
            pair = f"<16 x {kind}> %{name}{step}r{row}, <16 x {kind}> %{name}{step}r{row | size}"
            for out, shift in ((row, 0), (row | size, size)):
                take = [(n & ~size) + shift + (LANES if n & size else 0) for n in range(LANES)]
                index = ", ".join(f"i32 {n}" for n in take)
                turned = f"%{name}{step + 1}r{out}"
                lines.append(f"{turned} = shufflevector {pair}, <16 x i32> <{index}>")
    return lines


def _transpose_helper() -> str:
    """Return the function's IR. Row 0 has its own address; past the end, the last row repeats."""
    lines = ["%s0r0 = load <16 x float>, ptr %first, align 4", "%last = sub i64 %rows, 2"]
    for row in range(1, LANES):
        lines += [
            f"%at{row} = call i64 @llvm.smin.i64(i64 %last, i64 {row - 1})",
            f"%by{row} = mul i64 %at{row}, %stride",
            f"%from{row} = getelementptr float, ptr %rest, i64 %by{row}",
            f"%s0r{row} = load <16 x float>, ptr %from{row}, align 4",
        ]
    lines += rounds("float")
    for row in range(LANES):
        lines += [
            f"%by_to{row} = mul i64 %stride_to, {row}",
            f"%to{row} = getelementptr float, ptr %to, i64 %by_to{row}",
            f"store <16 x float> %s4r{row}, ptr %to{row}, align 4",
        ]
    body = "\n  ".join(lines)
    return f"""
declare i64 @llvm.smin.i64(i64, i64)
define linkonce_odr i32 @sparsetrain_transpose(
    ptr %to, i64 %stride_to, ptr %first, ptr %rest, i64 %stride, i64 %rows)
    alwaysinline nounwind {{
  {body}
  ret i32 0
}}
"""


TRANSPOSE = _transpose_helper()


def transpose(
    to: Any, stride_to: int, first: Any, rest: Any, stride: int, rows: int = LANES
) -> tirx.Expr:
    """Return the call that transposes 16 columns of `rows` float32 rows into 16 rows.

    The kernel must import the called function: ``T.attr(T.int32(0), PRAGMA, TRANSPOSE)``.

    Parameters
    ----------
    to, first, rest : TensorLoad
        First element of the result, of the first row, and of the second row.
    stride_to, stride : int
        Elements between rows of the result, and between the rows from `rest` on.
    rows : int
        At least 2. Columns of the result from `rows` on are undefined.
    """
    into, top, below = (tirx.address_of(place) for place in (to, first, rest))
    by, skip, count = (tirx.const(int(n), "int64") for n in (stride_to, stride, rows))
    return tirx.call_extern("int32", "sparsetrain_transpose", into, by, top, below, skip, count)
