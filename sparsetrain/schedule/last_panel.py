# SPDX-License-Identifier: Apache-2.0
"""A product's last column panel may be partly empty: its tiles are then computed less wide.

Columns are padded to whole register tiles, which are two or three vectors wide. Of 367 columns, the
last 17 of 384 would be computed and thrown away, a twentieth of the product. Vectors that hold none
of what is left over are not computed there.

Cost: the inner loop exists twice. Invariant: values are unchanged.
"""

from tvm import s_tir, tirx
from tvm.ir import Range
from tvm.s_tir.schedule import LoopRV, SBlockRV

from .product import Extent
from .rule import tile_columns


def narrow_last_panel(
    sch: s_tir.Schedule,
    init: SBlockRV,
    tile: LoopRV,
    vectors: list[LoopRV],
    columns: Extent,
    count: int = 2,
) -> None:
    """Shorten the loops `vectors` over the columns of a tile where its upper part is padding.

    The last step of a schedule: blocks have two copies afterwards, which primitives refuse.

    Parameters
    ----------
    init : SBlockRV
        Sets the sums of a tile to zero.
    tile : LoopRV
        Its body computes one tile.
    vectors : list of LoopRV
        Loops within, over the vectors of a row or over their columns.
    columns : Extent
        Of the result.
    count : int
        Vectors in a row of the tile.
    """
    first, width = tile_columns(sch, init, tile)
    if not isinstance(columns, int):
        return
    wanted = -(-(columns % width) * count // width)
    if wanted in (0, count):
        return
    around = sch.get(tile)
    variables = [sch.get(loop).loop_var for loop in vectors]
    narrow = _Copier(variables, wanted, count).copy(around.body, {})
    body = tirx.IfThenElse(first >= columns // width * width, narrow, around.body)
    new = tirx.For(around.loop_var, around.min, around.extent, around.kind, body)
    sch.state.replace(sch.get_sref(tile), new, {})


class _Copier:
    """Copies loops with variables of their own: one may be bound only once in a function."""

    def __init__(self, shortened: list[tirx.Var], wanted: int, of: int) -> None:
        self._shortened, self._wanted, self._of = shortened, wanted, of

    def copy(self, body: tirx.Stmt, names: dict[tirx.Var, tirx.Var]) -> tirx.Stmt:
        """`body` with `wanted` of every `of` iterations of the loops over `shortened`."""
        if isinstance(body, tirx.SeqStmt):
            return tirx.SeqStmt([self.copy(part, names) for part in body])
        if isinstance(body, s_tir.SBlockRealize):
            return _copy_block(body, names)
        var = tirx.Var(body.loop_var.name, "int64")
        is_shortened = any(body.loop_var.same_as(one) for one in self._shortened)
        extent = _renamed(body.extent, names)
        if is_shortened:
            extent = extent * self._wanted // self._of
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
