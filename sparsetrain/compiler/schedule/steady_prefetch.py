# SPDX-License-Identifier: Apache-2.0
"""Prefetches spread over the sum of a tile, a few lines at a time.

Where the last cache is far away (190 ns on a Granite Rapids Xeon), a product of 2048 rows waits for
its operands a fifth of its time. Prefetched all at once, the lines take every slot that a core has
for outstanding misses, and the loads of the product queue behind them. So the sum over `k` is cut
into as many pieces as a tile has rows, and before each piece comes a share of:

- the epilogue's inputs for that row, if they are as large as the result, and its outputs: a store
  must own its line first;
- the left operand's next block of rows, if it is read in place, into the second-level cache: each
  panel of this block prefetches a part of it.

Cost: an instruction per line. Invariant: values and the order of sums are untouched; processors
ignore prefetches of addresses that do not exist, as at the edges.
"""

from __future__ import annotations

from typing import NamedTuple

from tvm import s_tir, tirx
from tvm.ir import Range
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.sym import Analyzer

from sparsetrain.compiler.schedule.prefetch import (
    INTO_SECOND_CACHE,
    begin_with,
    lies_like_result,
    prefetch,
)
from sparsetrain.compiler.schedule.product import Extent
from sparsetrain.compiler.schedule.rule import loops_within, tile_columns
from sparsetrain.kernels.builder import line_length

# Steps of `k` that a piece has at least; shorter sums are one piece.
_FEWEST_STEPS = 8
# Lines of the next rows that are asked for without a loop.
_MOST_UNROLLED = 8


class NextRows(NamedTuple):
    """What a task reads after this one.

    Parameters
    ----------
    source : Var
        The left operand in memory, contiguous in `k`.
    rows : int
        Of a block: those of the next one are asked for.
    columns : int
        Of the product, whose panels share the work.
    """

    source: tirx.Var
    rows: int
    columns: int


class Tile(NamedTuple):
    """One register tile in a schedule: its blocks, the loop around it, and that over its sums."""

    product: SBlockRV
    init: SBlockRV
    epilogue: SBlockRV
    loop: LoopRV
    contracted: LoopRV


def next_rows(source: tirx.Var, rows: int, columns: Extent) -> NextRows | None:
    """What follows a block of rows; None if a line's place is not known before the product runs."""
    is_known = isinstance(columns, int) and isinstance(source.ty.shape[-1], tirx.IntImm)
    return NextRows(source, rows, columns) if is_known and len(source.ty.shape) == 2 else None


def prefetch_steadily(sch: s_tir.Schedule, tile: Tile, following: NextRows | None) -> None:
    """Cut the loop over `k` of `tile` into pieces that begin with prefetches."""
    first_row = loops_within(sch, tile.init, tile.loop)[0]
    k = sch.get(tile.contracted)
    height = int(first_row.extent)
    pieces = _pieces(k.extent, height)
    piece = tirx.Var("piece", "int64")
    requests = _of_epilogue(sch, tile, piece, height // pieces)
    if following is not None:
        requests.append(_of_next_rows(sch, tile, following, piece, height, pieces))
    if not requests:
        return
    if pieces == 1:
        begin_with(sch, tile.loop, [_with_value(one, piece, _whole(0)) for one in requests])
        return
    length = -(-int(k.extent) // pieces)
    is_even = int(k.extent) % pieces == 0
    count = _whole(length) if is_even else tirx.min(_whole(length), k.extent - piece * length)
    step = tirx.Var("step", "int64")
    sums = _with_value(k.body, k.loop_var, piece * length + step)
    body = tirx.SeqStmt([*requests, tirx.For(step, _whole(0), count, k.kind, sums)])
    new = tirx.For(piece, _whole(0), _whole(pieces), tirx.ForKind.SERIAL, body)
    sch.state.replace(sch.get_sref(tile.contracted), new, {})


def _pieces(steps: tirx.Expr, height: int) -> int:
    is_long = isinstance(steps, tirx.IntImm) and int(steps) >= _FEWEST_STEPS * height
    return height if is_long else 1


def _of_epilogue(sch: s_tir.Schedule, tile: Tile, piece: tirx.Var, rows: int) -> list[tirx.Stmt]:
    """Requests of `rows` rows of what the epilogue reads and writes, if it works by vectors."""
    inner = loops_within(sch, tile.epilogue, tile.loop)
    if inner[-1].kind != tirx.ForKind.VECTORIZED or len(inner) < 2:
        return []
    epilogue, product = sch.get(tile.epilogue), sch.get(tile.init).writes[0].source
    read = [
        region.source
        for region in epilogue.reads
        if not region.source.same_as(product) and lies_like_result(region, epilogue)
    ]
    written = [region.source for region in epilogue.writes]
    return [
        _of_rows(source, write, inner, piece, rows)
        for write, sources in ((False, read), (True, written))
        for source in sources
    ]


def _of_rows(
    source: tirx.Var, write: bool, nest: list[tirx.For], piece: tirx.Var, rows: int
) -> tirx.Stmt:
    """`nest` over prefetches instead of its block: of a piece's rows each vector's first lane."""
    row_loop, *outer, vector = nest
    realize = vector.body
    axes = [axis.var for axis in realize.block.iter_vars]
    line = prefetch(source, axes, write=write)
    block = s_tir.SBlock(realize.block.iter_vars, [], [], "prefetch", line)
    request: tirx.Stmt = s_tir.SBlockRealize(realize.iter_values, True, block)
    request = tirx.For(vector.loop_var, vector.min, 1, tirx.ForKind.SERIAL, request)
    for loop in reversed(outer):
        kind = tirx.ForKind.UNROLLED
        request = tirx.For(loop.loop_var, loop.min, loop.extent, kind, request)
    row = tirx.Var("row", "int64")
    request = _with_value(request, row_loop.loop_var, piece * rows + row)
    request = tirx.For(row, _whole(0), _whole(rows), tirx.ForKind.UNROLLED, request)
    # A variable may be bound only once in a function.
    renewed = s_tir.renew_defs(tirx.PrimFunc([piece], request))
    return _with_value(renewed.body, renewed.params[0], piece)


def _of_next_rows(
    sch: s_tir.Schedule,
    tile: Tile,
    following: NextRows,
    piece: tirx.Var,
    height: int,
    pieces: int,
) -> tirx.Stmt:
    """A panel's and a piece's share of the rows of the same tile in the next block."""
    source = following.source
    length = line_length(source.ty.dtype)
    first, width = tile_columns(sch, tile.init, tile.loop)
    panels = -(-following.columns // width)
    own_row, *_, last = loops_within(sch, tile.init, tile.loop)
    here = Analyzer()
    here.bind(own_row.loop_var, _whole(0))
    # Rows lie one after the other: a tile's are a single stretch, whose lines are counted through.
    lines = -(-(height * int(source.ty.shape[-1])) // length)
    share = -(-lines // (panels * pieces))
    line = tirx.Var("line", "int64")
    number = (tirx.floordiv(first, width) * pieces + piece) * share + line
    place = [here.simplify(last.body.iter_values[0]) + following.rows, number * length]
    axes = [
        tirx.IterVar(Range.from_min_extent(_whole(0), extent), tirx.Var("v", "int64"), 0)
        for extent in source.ty.shape
    ]
    request = prefetch(source, [axis.var for axis in axes], near=INTO_SECOND_CACHE)
    block = s_tir.SBlock(axes, [], [], "next_rows", request)
    realize = s_tir.SBlockRealize(place, True, block)
    kind = tirx.ForKind.UNROLLED if share <= _MOST_UNROLLED else tirx.ForKind.SERIAL
    return tirx.For(line, _whole(0), _whole(share), kind, realize)


def _with_value(stmt: tirx.Stmt, var: tirx.Var, value: tirx.Expr) -> tirx.Stmt:
    """Loops around one block, with `value` in the place of `var`."""
    if isinstance(stmt, tirx.For):
        body = _with_value(stmt.body, var, value)
        return tirx.For(stmt.loop_var, stmt.min, stmt.extent, stmt.kind, body)

    def replaced(expr: tirx.Expr) -> tirx.Expr:
        return tirx.PrimFunc([var], tirx.Evaluate(expr)).specialize({var: value}).body.value

    place = [replaced(one) for one in stmt.iter_values]
    return s_tir.SBlockRealize(place, replaced(stmt.predicate), stmt.block)


def _whole(number: int) -> tirx.IntImm:
    return tirx.const(number, "int64")
