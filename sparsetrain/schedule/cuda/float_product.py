# SPDX-License-Identifier: Apache-2.0
"""Products of float32 matrices become hand-written kernels, with what follows them.

`in_float_tiles` looks for functions that fusion made: two matrices are multiplied where they lie,
and the result goes through elementwise work, which is applied to a sum before it is stored.

A product with one row or one column is left to other rules, as is one whose rows in memory have no
known length.
"""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func

from ..product import Product, match_product
from .epilogue import Epilogue
from .float_operand import FloatOperand
from .float_tile import FloatTile, threads_of
from .tiles import Store, TiledProduct, plain, scheduled, tile_length


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
    tiled = _tiled(sch, product, others)
    return None if tiled is None else _kernel(function, sch, tiled, (product, others))


def _tiled(sch: s_tir.Schedule, product: Product, others: list[SBlockInfo]) -> TiledProduct | None:
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
    length = tile_length(product.rows, product.columns)
    return TiledProduct(
        *(
            FloatOperand(source, operand.outer, operand.contracted, length)
            for source, operand in zip(sources, (product.left, product.right), strict=True)
        )
    )


def _kernel(
    function: tirx.PrimFunc,
    sch: s_tir.Schedule,
    tiled: TiledProduct,
    parts: tuple[Product, list[SBlockInfo]],
) -> tirx.PrimFunc | None:
    product, others = parts
    out = sch.get(product.info.block_rv).writes[0].source
    for info in others[:-1]:
        sch.compute_inline(info.block_rv)
    store: Store = plain(out)
    if others:
        epilogue = Epilogue(sch.get(others[-1].block_rv), out)
        if not epilogue.fits:
            return None
        store = epilogue
    threads = threads_of(tiled.left.length)
    return scheduled(function, tiled, threads, lambda place: FloatTile(tiled, place).run(store))
