# SPDX-License-Identifier: Apache-2.0
"""Narrow tiles for the last column panel of a product, if it is at most half full.

Columns are padded to whole register tiles, which are two vectors wide: of 367 columns, 17 of 384
would be computed and thrown away, a twentieth of the product. If the remainder fits in one vector,
the second is not computed there.

Cost: the inner loop exists twice. Invariant: values are unchanged.
"""

from tvm import s_tir, tirx
from tvm.ir import Range
from tvm.s_tir.schedule import LoopRV, SBlockRV

from sparsetrain.compiler.schedule.product import Extent
from sparsetrain.compiler.schedule.rule import tile_columns


def narrow_last_panel(
    sch: s_tir.Schedule, init: SBlockRV, tile: LoopRV, vectors: list[LoopRV], columns: Extent
) -> None:
    """Halve the loops `vectors` over the columns of a tile where the upper half is padding.

    The last step of a schedule: blocks have two copies afterwards, which primitives refuse.

    Parameters
    ----------
    init : SBlockRV
        Sets the sums of a tile to zero.
    tile : LoopRV
        Its body computes one tile, of two vectors in a row.
    vectors : list of LoopRV
        Loops within, over both vectors or over the columns of both.
    columns : Extent
        Of the result.
    """
    first, width = tile_columns(sch, init, tile)
    if not isinstance(columns, int) or not 0 < columns % width <= width // 2:
        return
    around = sch.get(tile)
    narrow = _Copier([sch.get(loop).loop_var for loop in vectors]).copy(around.body, {})
    body = tirx.IfThenElse(first >= columns // width * width, narrow, around.body)
    new = tirx.For(around.loop_var, around.min, around.extent, around.kind, body)
    sch.state.replace(sch.get_sref(tile), new, {})


class _Copier:
    """Copies loops with variables of their own: one may be bound only once in a function."""

    def __init__(self, halved: list[tirx.Var]) -> None:
        self._halved = halved

    def copy(self, body: tirx.Stmt, names: dict[tirx.Var, tirx.Var]) -> tirx.Stmt:
        """`body` with half as many iterations of the loops over `halved`."""
        if isinstance(body, tirx.SeqStmt):
            return tirx.SeqStmt([self.copy(part, names) for part in body])
        if isinstance(body, s_tir.SBlockRealize):
            return _copy_block(body, names)
        var = tirx.Var(body.loop_var.name, "int64")
        is_halved = any(body.loop_var.same_as(one) for one in self._halved)
        extent = body.extent // 2 if is_halved else _renamed(body.extent, names)
        inner = self.copy(body.body, {**names, body.loop_var: var})
        return tirx.For(var, body.min, extent, body.kind, inner)


def _copy_block(realize: s_tir.SBlockRealize, names: dict[tirx.Var, tirx.Var]) -> tirx.Stmt:
    block = realize.block
    axes = {axis.var: tirx.Var(axis.var.name, "int64") for axis in block.iter_vars}
    iter_vars = [tirx.IterVar(axis.dom, axes[axis.var], axis.iter_type) for axis in block.iter_vars]
    reads, writes = (
        [
            tirx.BufferRegion(
                region.source,
                [Range.from_min_extent(_renamed(r.min, axes), r.extent) for r in region.region],
            )
            for region in regions
        ]
        for regions in (block.reads, block.writes)
    )
    body = tirx.PrimFunc(list(axes), block.body).specialize(axes).body
    return s_tir.SBlockRealize(
        [_renamed(value, names) for value in realize.iter_values],
        _renamed(realize.predicate, names),
        s_tir.SBlock(iter_vars, reads, writes, block.name_hint, body),
    )


def _renamed(expr: tirx.Expr, names: dict[tirx.Var, tirx.Var]) -> tirx.Expr:
    return tirx.PrimFunc(list(names), tirx.Evaluate(expr)).specialize(names).body.value
