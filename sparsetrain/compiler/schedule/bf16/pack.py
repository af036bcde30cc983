# SPDX-License-Identifier: Apache-2.0
"""Packing of bfloat16 operands in pairs of numbers adjacent along `k`, with rounding if needed.

- Right operand: panels of 16 or 32 columns, `(panel, pair, column in panel, k in pair)`, packed
  once by all threads.
- Left operand with contiguous `k`: rows of pairs, as in memory. If it is bfloat16, it is read in
  place; otherwise a thread rounds the row block that it is about to use.
- Left operand of TN: blocks of 8 or 16 rows, `(block, pair, row, k in pair)`, packed by the task
  that uses them.

Each packing block calls one helper for 16 (or 16 x 32) numbers, which handles the edges of rows and
columns without branches. Cost: one pass over the operand.
"""

from collections.abc import Callable
from math import gcd

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from sparsetrain.compiler.schedule.bf16.helpers import SOURCES
from sparsetrain.compiler.schedule.bf16.tiling import LANES
from sparsetrain.compiler.schedule.product import Operand
from sparsetrain.compiler.schedule.rule import dtype_of, parallel_over, static_extent

# If rows are contiguous, a packing task handles `_STRETCH` pairs along `k`, and copies `_TOGETHER`
# vectors of each pair at a time.
_STRETCH = 64
_TOGETHER = 4


def is_stored_in_steps(
    sch: s_tir.Schedule, operand: Operand, stage: SBlockRV, step: int = 2
) -> bool:
    """Whether an operand in memory already has the product's layout, with `k` in whole steps."""
    source = sch.get(stage).reads[0].source
    width = source.ty.shape[operand.contracted]
    whole = isinstance(width, tirx.IntImm) and int(width) % step == 0
    return operand.contracted_is_contiguous and dtype_of(source) == "bfloat16" and whole


def to_steps(
    sch: s_tir.Schedule, packing: SBlockRV, operand: Operand, width: int, step: int = 2
) -> None:
    """Lay out an operand as `(panel, step of k, position in panel * step + k in step)`."""

    def steps(*index: tirx.Expr) -> tuple:
        outer, k = index[operand.outer], index[operand.contracted]
        return outer // width, k // step, outer % width * step + k % step

    sch.transform_layout(packing, ("write", 0), steps)


def pack_right(
    sch: s_tir.Schedule,
    packing: SBlockRV,
    operand: Operand,
    width: int = LANES,
    interleave: Callable[[s_tir.SBlock], tirx.Stmt] | None = None,
) -> None:
    """Pack in parallel: by column panels if `k` is contiguous, otherwise by ranges of `k`.

    In the second case, `interleave` merges two rows, `width` numbers at a time.
    """
    loops = sch.get_loops(packing)
    if operand.contracted_is_contiguous:
        vector, lane = sch.split(loops[operand.outer], [None, LANES])
        rewrite(sch, sch.blockize(lane), _transpose_pairs)
        parallel_over(sch, [vector])
        return
    # Ranges of `k` are split off last: an uneven split here would put its guard into the block.
    vector, lane = sch.split(loops[operand.outer], [None, width])
    pair, k = sch.split(loops[operand.contracted], [None, 2])
    sch.reorder(pair, vector, k, lane)
    rewrite(sch, sch.blockize(k), interleave or _interleave(LANES))
    stretch, pair = sch.split(pair, [None, _STRETCH])
    _copy_few_vectors_together(sch, pair, vector)
    sch.parallel(stretch)


def _copy_few_vectors_together(sch: s_tir.Schedule, pair: LoopRV, vector: LoopRV) -> None:
    """Copy a few vectors of all pairs, then the next few, so that few panels are written at once.

    Panels are often a power of two apart, so many would evict each other from the cache.
    """
    extent = static_extent(sch, vector)
    together = 1 if extent is None else gcd(extent, _TOGETHER)
    group, vector = sch.split(vector, [None, together])
    sch.reorder(group, pair, vector)


def round_left(sch: s_tir.Schedule, packing: SBlockRV) -> None:
    """Round one row block, inside the task that uses it."""
    rewrite(sch, sch.blockize(sch.get_loops(packing)[-1]), _round_row)


def pack_left(sch: s_tir.Schedule, packing: SBlockRV, rows: int) -> None:
    """Pack blocks of `rows` rows, which are columns in memory (TN), in the task that uses them."""
    *_, first, second = sch.get_loops(packing)
    pair, k = sch.split(first, [None, 2])
    # Vectors must divide the extent: an uneven split would put its guard into the block.
    width = gcd(LANES, static_extent(sch, second) or rows)
    vector, lane = sch.split(second, [None, width])
    sch.reorder(pair, vector, k, lane)
    rewrite(sch, sch.blockize(k), _interleave(rows if width == LANES else 0))
    _copy_few_vectors_together(sch, pair, vector)


def rewrite(
    sch: s_tir.Schedule, block: SBlockRV, body: Callable[[s_tir.SBlock], tirx.Stmt]
) -> None:
    """Replace a block's body by `body(block)`."""
    old = sch.get(block)
    new = s_tir.SBlock(old.iter_vars, old.reads, old.writes, old.name_hint, body(old))
    sch.state.replace(sch.get_sref(block), new, {old: new})


def at(region: tirx.BufferRegion) -> list[tirx.Expr]:
    """Return the first index of a region."""
    return [extent.min for extent in region.region]


def _transpose_pairs(block: s_tir.SBlock) -> tirx.Stmt:
    """Transpose 16 columns with contiguous `k`, 32 numbers of each column at a time."""
    source, target = block.reads[0], block.writes[0]
    column, _ = at(source)
    panel, _, lane = at(target)
    columns, contracted = source.source.ty.shape
    return _in_steps(
        contracted,
        2 * LANES,
        lambda k: call(
            "transposed",
            source,
            address(target.source, [panel, k // 2, lane]),
            target.source.ty.shape[-1],
            address(source.source, [column, k]),
            contracted,
            int32(contracted - k),
            int32(columns - column),
            int32(2 * target.source.ty.shape[1] - k),
        ),
    )


def _round_row(block: s_tir.SBlock) -> tirx.Stmt:
    """Round a row, 16 numbers at a time; rows past the end repeat the last row."""
    source, target = block.reads[0], block.writes[0]
    row, _ = at(source)
    rows, contracted = source.source.ty.shape
    return _in_steps(
        contracted,
        LANES,
        lambda k: call(
            "round",
            source,
            address(target.source, [at(target)[0], k]),
            address(source.source, [tirx.min(row, rows - 1), k]),
            int32(contracted - k),
        ),
    )


def _in_steps(extent: tirx.Expr, step: int, body: Callable[[tirx.Expr], tirx.Stmt]) -> tirx.Stmt:
    """Emit a loop over 0, `step`, 2 `step`, ... below `extent`."""
    number = tirx.Var("step", "int64")
    count = (extent + step - 1) // step
    zero = tirx.const(0, "int64")
    return tirx.For(number, zero, count, tirx.ForKind.SERIAL, body(number * step))


def _interleave(width: int) -> Callable[[s_tir.SBlock], tirx.Stmt]:
    """Return a function that interleaves two rows of 16 numbers into runs of `width` pairs.

    A `width` of 0 means that only 8 numbers are needed.
    """

    def body(block: s_tir.SBlock) -> tirx.Stmt:
        source, target = block.reads[0], block.writes[0]
        k, column = at(source)
        contracted, columns = source.source.ty.shape
        panel, pair, lane = at(target)
        places = {LANES: [panel, pair, lane + LANES], 8: [panel + 1, pair, lane]}
        return call(
            "pairs",
            source,
            address(target.source, [panel, pair, lane]),
            address(target.source, places.get(width, [panel, pair, lane])),
            address(source.source, [k, column]),
            columns,
            int32(columns - column),
            int32(contracted - k),
        )

    return body


def call(name: str, source: tirx.BufferRegion, *arguments: tirx.Expr) -> tirx.Stmt:
    """Return a call of the helper for the dtype of `source`."""
    element = SOURCES[dtype_of(source.source)]
    return tirx.Evaluate(tirx.call_extern("int32", f"sparsetrain_{name}_{element}", *arguments))


def address(buffer: tirx.Var, index: list[tirx.Expr]) -> tirx.Expr:
    """Return the address of an element."""
    return tirx.address_of(tirx.BufferLoad(buffer, index))


def int32(value: tirx.Expr) -> tirx.Expr:
    """Return a number of remaining elements as int32, limited to 64, as helpers expect it."""
    return tirx.Cast("int32", tirx.min(value, tirx.const(64, "int64")))
