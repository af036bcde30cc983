# SPDX-License-Identifier: Apache-2.0
"""Prefetches for epilogues and packing loops.

A mask has the shape of the result and was written by a kernel long ago, so it is rarely in a near
cache. Read by the epilogue, all lines of a tile miss at once, with nothing left to compute.
Prefetched before the loop over `k`, they arrive during it: 390 to 450 GFLOP/s for a product of
2048 x 256 by 256 x 512 with ReLU's mask, in a training step on two cores. Stores of the epilogue
wait in a buffer of the core and need no prefetch.

A packing task reads a few lines of each row of a matrix. Rows are too far apart for the hardware
prefetcher, so some rows are prefetched ahead. Rows that a task rounds before it multiplies them are
prefetched during the previous task.

Cost: one instruction per cache line. Invariant: values are untouched; processors ignore prefetches
of addresses that do not exist, as at the edge of the result.
"""

from tvm import s_tir, tirx
from tvm.ir import Range, TensorRegion
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.sym import Analyzer

from sparsetrain.compiler.schedule.product import Extent
from sparsetrain.compiler.schedule.rule import loops_within, tile_columns
from sparsetrain.kernels.builder import line_length

INTO_SECOND_CACHE, INTO_EVERY_CACHE = 2, 3
_OF_DATA = 1
# From what a packing loop copies to what it asks for: rows, and pairs of rows of bfloat16.
ROWS_AHEAD = 8
PAIRS_AHEAD = 16


def prefetch_epilogue(
    sch: s_tir.Schedule, block: SBlockRV, epilogue: SBlockRV, tile: LoopRV
) -> None:
    """Begin each iteration of the loop `tile` with prefetches of what `epilogue` reads in it.

    Of its operands, those count that lie like the result. A bias is small and soon near. The
    epilogue's innermost loop must be vectorised; a vector is taken for a cache line.
    """
    inner = loops_within(sch, epilogue, tile)
    if inner[-1].kind != tirx.ForKind.VECTORIZED:
        return
    product = sch.get(block).writes[0].source
    requests = [
        _request(region.source, _axes(inner), inner)
        for region in sch.get(epilogue).reads
        if not region.source.same_as(product) and lies_like_result(region, inner[-1].body.block)
    ]
    if requests:
        begin_with(sch, tile, requests)


def prefetch_rows_ahead(sch: s_tir.Schedule, packing: SBlockRV, contracted: int, k: LoopRV) -> None:
    """Begin each iteration of the loop `k` with prefetches of what is packed some iterations on.

    `contracted` is the axis of `packing` that `k` runs over. Its innermost loop must be vectorised.
    """
    inner = loops_within(sch, packing, k)
    if inner[-1].kind != tirx.ForKind.VECTORIZED:
        return
    index = _axes(inner)
    index[contracted] += ROWS_AHEAD
    begin_with(sch, k, [_request(sch.get(packing).reads[0].source, index, inner)])


def prefetch_next_rows(
    sch: s_tir.Schedule, init: SBlockRV, tile: LoopRV, source: tirx.Var, rows: int, columns: Extent
) -> None:
    """Spread prefetches of the next rows of `source` over the tiles of a block of rows.

    Parameters
    ----------
    init : SBlockRV
        Sets the sums of a tile to zero.
    tile : LoopRV
        Its body computes one tile.
    source : Var
        The left operand in memory, contiguous in the sum's dimension. Where a kernel multiplies it
        in place there is no need: the loads of a tile overlap with its sums.
    rows : int
        Of a block: those of the next one are asked for.
    columns : Extent
        Of the product.
    """
    contracted = source.ty.shape[-1]
    if not isinstance(columns, int) or not isinstance(contracted, tirx.IntImm):
        return
    first, width = tile_columns(sch, init, tile)
    share = -(-int(contracted) // -(-columns // width))
    length = line_length(source.ty.dtype)
    own_row, *_, last = loops_within(sch, init, tile)
    row, line = (tirx.Var(name, "int64") for name in ("row", "line"))
    here = Analyzer()
    here.bind(own_row.loop_var, row)
    place = [
        here.simplify(last.body.iter_values[0]) + rows,
        here.simplify(tirx.floordiv(first, width)) * share + line * length,
    ]
    zero = tirx.const(0, "int64")
    axes = [
        tirx.IterVar(Range.from_min_extent(zero, extent), tirx.Var("v", "int64"), 0)
        for extent in source.ty.shape
    ]
    block = s_tir.SBlock(axes, [], [], "next_rows", prefetch(source, [a.var for a in axes]))
    request: tirx.Stmt = s_tir.SBlockRealize(place, True, block)
    lines = tirx.const(-(-share // length), "int64")
    request = tirx.For(line, zero, lines, tirx.ForKind.SERIAL, request)
    request = tirx.For(row, zero, own_row.extent, tirx.ForKind.UNROLLED, request)
    begin_with(sch, tile, [request])


def prefetch(
    source: tirx.Var, index: list[tirx.Expr], *, write: bool = False, near: int = INTO_EVERY_CACHE
) -> tirx.Stmt:
    """Ask for the cache line of one element, to be read or written."""
    address = tirx.address_of(tirx.BufferLoad(source, index))
    hints = (int(write), near, _OF_DATA)
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, *hints))


def _axes(nest: list[tirx.For]) -> list[tirx.Expr]:
    return [axis.var for axis in nest[-1].body.block.iter_vars]


def begin_with(sch: s_tir.Schedule, loop: LoopRV, requests: list[tirx.Stmt]) -> None:
    """Put `requests` before what an iteration of `loop` does."""
    around = sch.get(loop)
    body = tirx.SeqStmt([*requests, around.body])
    new = tirx.For(around.loop_var, around.min, around.extent, around.kind, body)
    sch.state.replace(sch.get_sref(loop), new, {})


def lies_like_result(region: TensorRegion, epilogue: s_tir.SBlock) -> bool:
    """Whether an operand of `epilogue` is read where the result is written."""
    axes = [axis.var for axis in epilogue.iter_vars]
    return len(region.region) == len(axes) and all(
        at.min.same_as(axis) for at, axis in zip(region.region, axes, strict=True)
    )


def _request(source: tirx.Var, index: list[tirx.Expr], nest: list[tirx.For]) -> tirx.Stmt:
    """`nest` over prefetches instead of its block, with the first lane of every vector."""
    *outer, vector = nest
    realize = vector.body
    block = s_tir.SBlock(realize.block.iter_vars, [], [], "prefetch", prefetch(source, index))
    request: tirx.Stmt = s_tir.SBlockRealize(realize.iter_values, True, block)
    request = tirx.For(vector.loop_var, vector.min, 1, tirx.ForKind.SERIAL, request)
    for loop in reversed(outer):
        unrolled = tirx.ForKind.UNROLLED
        request = tirx.For(loop.loop_var, loop.min, loop.extent, unrolled, request)
    # A variable may be bound only once in a function.
    return s_tir.renew_defs(tirx.PrimFunc([], request)).body
