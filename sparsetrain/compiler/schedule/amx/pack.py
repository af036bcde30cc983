# SPDX-License-Identifier: Apache-2.0
"""Packing of the operands of a product on AMX tile registers.

- Right operand: panels of 32 columns in the layout of `bf16/pack.py`. If its rows are contiguous,
  one call interleaves two rows of a whole panel.
- Left operand: squares of 32 x 32, in an array (block of rows, step of `k`, row, number in row), so
  a step of a tile reads 2 KB in sequence. Each task packs the rows that it uses. If `k` is
  contiguous, it rounds or copies lines of 32 numbers; otherwise (TN) it transposes blocks of
  32 x 16. bfloat16 rows with a length divisible by 32 are read in place.

Cost: one pass over each operand.
"""

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from sparsetrain.compiler.schedule.amx.helpers import SIDE
from sparsetrain.compiler.schedule.bf16.pack import address, at, call, int32, rewrite
from sparsetrain.compiler.schedule.bf16.tiling import LANES
from sparsetrain.compiler.schedule.rule import dtype_of
from sparsetrain.kernels.builder import line_length

_ROWS_AHEAD = 32  # how far the prefetched rows are ahead of the interleaved rows
_READ, _EVERY_CACHE, _DATA = 0, 3, 1  # arguments of LLVM's `prefetch`


def round_left(sch: s_tir.Schedule, packing: SBlockRV) -> None:
    """Round the rows of a task, which are contiguous in `k`."""
    _, line = sch.split(sch.get_loops(packing)[-1], [None, SIDE])
    rewrite(sch, sch.blockize(line), _line)


def pack_left(sch: s_tir.Schedule, packing: SBlockRV) -> None:
    """Transpose a task's rows, which are columns in memory (TN)."""
    *_, k, row = sch.get_loops(packing)
    step, k = sch.split(k, [None, SIDE])
    vector, lane = sch.split(row, [None, LANES])
    sch.reorder(step, vector, k, lane)
    rewrite(sch, sch.blockize(k), _columns)


def interleave_panel(block: s_tir.SBlock) -> tirx.Stmt:
    """Interleave two rows of a panel of the right operand into pairs, and prefetch later rows."""
    source = block.reads[0]
    k, column = at(source)
    lines = range(0, SIDE, line_length(dtype_of(source.source)))
    ahead = [
        _prefetch(source.source, [k + _ROWS_AHEAD + row, column + line])
        for row in range(2)
        for line in lines
    ]
    return tirx.SeqStmt([*ahead, _of_columns("panel", block)])


def _prefetch(source: tirx.Var, index: list[tirx.Expr]) -> tirx.Stmt:
    """Prefetch a cache line; a processor ignores an address past the end of the operand."""
    element = tirx.address_of(tirx.BufferLoad(source, index))
    hints = (_READ, _EVERY_CACHE, _DATA)
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", element, *hints))


def _line(block: s_tir.SBlock) -> tirx.Stmt:
    """Pack 32 numbers of a row; rows past the end repeat the last row."""
    source, target = block.reads[0], block.writes[0]
    row, k = at(source)
    rows, contracted = source.source.ty.shape
    return call(
        "line",
        source,
        address(target.source, at(target)),
        address(source.source, [tirx.min(row, rows - 1), k]),
        int32(contracted - k),
    )


def _columns(block: s_tir.SBlock) -> tirx.Stmt:
    """Transpose 16 columns of 32 rows in memory, with zeros past the edges."""
    return _of_columns("columns", block)


def _of_columns(helper: str, block: s_tir.SBlock) -> tirx.Stmt:
    """Call a packing helper with the numbers of columns and rows that remain."""
    source, target = block.reads[0], block.writes[0]
    k, column = at(source)
    contracted, columns = source.source.ty.shape
    return call(
        helper,
        source,
        address(target.source, at(target)),
        address(source.source, [k, column]),
        columns,
        int32(columns - column),
        int32(contracted - k),
    )
