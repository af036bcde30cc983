# SPDX-License-Identifier: Apache-2.0
"""The operands of a product by tile registers.

- The right one: panels of 32 columns, as `bf16/pack.py` lays them out; where rows are contiguous,
  two of them are interleaved, a panel wide.
- The left one: squares, `(block of rows, step of k, row and number in the square)`: a step of a
  tile reads 2 KB in sequence. A task packs the rows that it uses: where `k` is contiguous, lines of
  32 numbers are rounded or copied; else (TN) squares of 32 x 16 are transposed. Where memory holds
  rows of bfloat16 that are whole steps long, they are read in place.

Cost: one pass over an operand.
"""

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from sparsetrain.compiler.schedule.amx.helpers import SIDE
from sparsetrain.compiler.schedule.bf16.pack import address, at, call, int32, rewrite
from sparsetrain.compiler.schedule.bf16.tiling import LANES
from sparsetrain.compiler.schedule.rule import dtype_of
from sparsetrain.kernels.builder import line_length

_ROWS_AHEAD = 32  # of the interleaved ones
_READ, _EVERY_CACHE, _DATA = 0, 3, 1  # argument of LLVM's `prefetch`


def round_left(sch: s_tir.Schedule, packing: SBlockRV) -> None:
    """Round the rows of a task, which are contiguous in `k`."""
    _, line = sch.split(sch.get_loops(packing)[-1], [None, SIDE])
    rewrite(sch, sch.blockize(line), _line)


def pack_left(sch: s_tir.Schedule, packing: SBlockRV) -> None:
    """Transpose the columns of memory that are a task's rows."""
    *_, k, row = sch.get_loops(packing)
    step, k = sch.split(k, [None, SIDE])
    vector, lane = sch.split(row, [None, LANES])
    sch.reorder(step, vector, k, lane)
    rewrite(sch, sch.blockize(k), _columns)


def interleave_panel(block: s_tir.SBlock) -> tirx.Stmt:
    """Two rows of a panel of the right operand, as rows of pairs; asks for rows further on."""
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
    """Ask for a cache line; processors ignore an address that does not exist, as at the edge."""
    element = tirx.address_of(tirx.BufferLoad(source, index))
    hints = (_READ, _EVERY_CACHE, _DATA)
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", element, *hints))


def _line(block: s_tir.SBlock) -> tirx.Stmt:
    """32 numbers of a row; below the last row, of that one again."""
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
    """16 columns of 32 rows of memory; zeros where there are none."""
    return _of_columns("columns", block)


def _of_columns(helper: str, block: s_tir.SBlock) -> tirx.Stmt:
    """A call that packs columns of memory, which end at both edges."""
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
