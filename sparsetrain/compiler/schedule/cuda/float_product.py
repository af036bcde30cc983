# SPDX-License-Identifier: Apache-2.0
"""Float32 matrix products, with the elementwise work after them, as hand-written kernels.

`in_float_tiles` looks for the functions that fusion creates: a product of two matrices, whose
result goes through elementwise work. That work is applied to a sum before it is stored. Products
with one row or column, and those with rows of unknown length, are left to other rules.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func

from sparsetrain.compiler.schedule.cuda.epilogue import stored
from sparsetrain.compiler.schedule.cuda.tile_kinds import scheduled, tiled_product
from sparsetrain.compiler.schedule.product import Product, match_product


def in_float_tiles(function: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """The kernel of a function that is a product in float32, or None for another."""
    sch = s_tir.Schedule(function)
    blocks = normalize_prim_func(sch) or []
    found = (match_product(sch, info) for info in blocks)
    product = next((product for product in found if product is not None), None)
    if product is None or product.batch_axes or 1 in (product.rows, product.columns):
        return None
    others = [info for info in blocks if info is not product.info]
    if not all(info.is_injective() for info in others):
        return None
    sources = _sources(sch, product, others)
    if sources is None:
        return None
    kept = stored(sch, product, others)
    if kept is None:
        return None
    tiled, kind = tiled_product(product, kept, sources)
    return scheduled(function, tiled, kind, lambda _place: kept.store)


def _sources(sch: s_tir.Schedule, product: Product, others: list[SBlockInfo]) -> list[Any] | None:
    """The matrices, or None where one is computed here, or its rows have no known length."""
    block = sch.get(product.info.block_rv)
    sources = [block.reads[operand.read].source for operand in (product.left, product.right)]
    matrices = [*sources, block.writes[0].source]
    if any(len(m.shape) != 2 or str(m.dtype) != "float32" for m in matrices):
        return None
    if not all(isinstance(source.shape[1], tirx.IntImm) for source in sources):
        return None
    written = [sch.get(info.block_rv).writes[0].source for info in others]
    if any(source.same_as(other) for source in sources for other in written):
        return None
    return sources
