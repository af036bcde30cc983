# SPDX-License-Identifier: Apache-2.0
"""First steps in the schedule of a half-precision product, for either instruction set.

Of all blocks around the product three remain: those that pack the operands, and the epilogue that
stores the result.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from sparsetrain.compiler.schedule.epilogue import inline_all_but_last, single_consumer
from sparsetrain.compiler.schedule.half_match import HalfProduct
from sparsetrain.compiler.schedule.operands import padding_block, read_in_place
from sparsetrain.compiler.schedule.product import Operand


class Prepared(NamedTuple):
    """What packs the left operand, None if it is read in place, the right one; what stores."""

    left: SBlockRV | None
    right: SBlockRV
    epilogue: SBlockRV


def prepare(
    sch: s_tir.Schedule, found: HalfProduct, tile: Sequence[int], in_place: bool
) -> Prepared:
    """Pad the product, and merge all other blocks into those that are left.

    Parameters
    ----------
    sch : Schedule
        Written.
    found : HalfProduct
        The blocks.
    tile : sequence of 3 int
        What rows, columns and the length of a sum are padded to multiples of.
    in_place : bool
        Whether memory holds the left operand just as the product wants it.
    """
    product, (left_stage, right_stage), others = found
    block = product.info.block_rv
    final = inline_all_but_last(sch, others)
    if in_place:
        sch.compute_inline(left_stage)
    sch.pad_einsum(block, [*tile])
    epilogue = single_consumer(sch, block, final)
    right = _packing_block(sch, block, product.right, right_stage)
    if in_place:
        read_in_place(sch, block, product.left)
        return Prepared(None, right, epilogue)
    return Prepared(_packing_block(sch, block, product.left, left_stage), right, epilogue)


def _packing_block(
    sch: s_tir.Schedule, block: SBlockRV, operand: Operand, stage: SBlockRV
) -> SBlockRV:
    """The block that writes what the product reads: the padding, else the rounding itself."""
    padding = padding_block(sch, block, operand)
    if padding is None or sch.get(padding).same_as(sch.get(stage)):
        return stage
    sch.compute_inline(stage)
    return padding
