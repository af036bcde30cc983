# SPDX-License-Identifier: Apache-2.0
"""Matcher for half-precision products: two blocks that round operands, and an epilogue.

An operand is bits until the product widens them, see `half_bits.py`.
"""

from typing import NamedTuple

from tvm import s_tir
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.schedule import SBlockRV

from sparsetrain.compiler.schedule.half_bits import HALVES
from sparsetrain.compiler.schedule.product import Product, match_product


class HalfProduct(NamedTuple):
    """A product, what computes the bits of its left and right operand, and all other blocks."""

    product: Product
    stages: list[SBlockRV]
    others: list[SBlockInfo]


def match_half_product(
    sch: s_tir.Schedule, blocks: list[SBlockInfo], half: str = "bfloat16"
) -> HalfProduct | None:
    """The one product of two matrices of a half, a key of `HALVES`, among `blocks`, or None."""
    products = [match_product(sch, info, HALVES[half].load) for info in blocks]
    product = next((p for p in products if p is not None), None)
    if product is None or product.batch_axes:
        return None
    stages = _stages(sch, blocks, product)
    others = [i for i in blocks if i is not product.info and i not in stages]
    if len(stages) != 2 or not all(info.is_injective() for info in others):
        return None
    return HalfProduct(product, [stage.block_rv for stage in stages], others)


def _stages(sch: s_tir.Schedule, blocks: list[SBlockInfo], product: Product) -> list[SBlockInfo]:
    """The blocks that compute the bits of the left and the right operand, in this order."""
    reads = sch.get(product.info.block_rv).reads
    writers = [
        next((i for i in blocks if sch.get(i.block_rv).writes[0].source.same_as(source)), None)
        for source in (reads[o.read].source for o in (product.left, product.right))
    ]
    return [writer for writer in writers if writer is not None]
