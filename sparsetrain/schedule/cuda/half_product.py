# SPDX-License-Identifier: Apache-2.0
"""Products of bfloat16 and float16 become kernels for tensor cores, with what follows them.

`on_tensor_cores` looks for functions that `FoldIntoHalfMatmul` and fusion made: two matrices are
rounded, multiplied, summed in float32, and the result goes through elementwise work. Each becomes
one hand-written kernel (`half_tile.py`) that applies that work to a sum before it is stored.

A product whose rows in memory have no known length is left to other rules.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func
from tvm.target import Target

from ..product import Operand, Product, match_product
from .epilogue import Epilogue
from .half_operand import THREADS, HalfOperand
from .half_tile import HalfTile, has_tensor_cores
from .tiles import Store, TiledProduct, plain, scheduled, tile_length


def on_tensor_cores(function: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """The kernel of a function that is a product of halves, or None for another."""
    if not has_tensor_cores(Target.current(allow_none=True)):
        return None
    sch = s_tir.Schedule(function)
    found = _match(sch, normalize_prim_func(sch) or [])
    if found is None:
        return None
    product, block, final = found
    out = sch.get(block).writes[0].source
    store: Store = plain(out)
    if final is not None:
        epilogue = Epilogue(sch.get(final), out)
        if not epilogue.fits:
            return None
        store = epilogue
    return scheduled(function, product, THREADS, lambda place: HalfTile(product, place).run(store))


def _match(sch: s_tir.Schedule, blocks: list[SBlockInfo]) -> Any:
    """Product, its block, and the one block after it or None; None if this is something else."""
    found = (
        (half, match_product(sch, info, load)) for half, load in _LOADS.items() for info in blocks
    )
    half, product = next((pair for pair in found if pair[1] is not None), ("", None))
    if product is None or product.batch_axes:
        return None
    block = product.info.block_rv
    stages = [_writer(sch, blocks, product, o) for o in (product.left, product.right)]
    others = [i for i in blocks if i is not product.info and i not in stages]
    if None in stages or not all(info.is_injective() for info in others):
        return None
    half_product = _half_product(sch, product, stages, half)
    if half_product is None:
        return None
    for info in others[:-1]:
        sch.compute_inline(info.block_rv)
    return half_product, block, others[-1].block_rv if others else None


def _load_of_bfloat16(factor: tirx.Expr) -> tirx.Expr:
    """The load of the bits that `bf16_product.widen` makes a number; anything else as it is."""
    try:
        return factor.args[0].a.value
    except (AttributeError, IndexError):
        return factor


def _load_of_float16(factor: tirx.Expr) -> tirx.Expr:
    try:
        return factor.value.args[0]
    except (AttributeError, IndexError):
        return factor


_LOADS = {"bfloat16": _load_of_bfloat16, "float16": _load_of_float16}


def _writer(
    sch: s_tir.Schedule, blocks: list[SBlockInfo], product: Product, operand: Operand
) -> SBlockInfo | None:
    """The block that computes the bits of an operand."""
    bits = sch.get(product.info.block_rv).reads[operand.read].source
    writers = (i for i in blocks if sch.get(i.block_rv).writes[0].source.same_as(bits))
    return next(writers, None)


def _half_product(
    sch: s_tir.Schedule, product: Product, stages: list[Any], half: str
) -> TiledProduct | None:
    sources = [sch.get(stage.block_rv).reads[0].source for stage in stages]
    if not all(isinstance(source.shape[1], tirx.IntImm) for source in sources):
        return None
    length = tile_length(product.rows, product.columns)
    left, right = (
        HalfOperand(source, o.outer, o.contracted, half, length)
        for source, o in zip(sources, (product.left, product.right), strict=True)
    )
    return TiledProduct(left, right)
