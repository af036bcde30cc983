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

from sparsetrain.runtime.instructions import has_tensor_cores

from ..product import Operand, Product, match_product
from .epilogue import stored
from .kinds import scheduled, tiled_product


def on_tensor_cores(function: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """The kernel of a function that is a product of halves, or None for another."""
    if not has_tensor_cores(Target.current(allow_none=True)):
        return None
    sch = s_tir.Schedule(function)
    found = _match(sch, normalize_prim_func(sch) or [])
    if found is None:
        return None
    product, half, sources, others = found
    store = stored(sch, product.info.block_rv, others)
    if store is None:
        return None
    tiled, kind = tiled_product(product, sources, half)
    return scheduled(function, tiled, kind, lambda _place: store)


def _match(sch: s_tir.Schedule, blocks: list[SBlockInfo]) -> Any:
    """Product, half, the matrices, the blocks after it; None if this is something else."""
    found = (
        (half, match_product(sch, info, load)) for half, load in _LOADS.items() for info in blocks
    )
    half, product = next((pair for pair in found if pair[1] is not None), ("", None))
    if product is None or product.batch_axes:
        return None
    writers = (_writer(sch, blocks, product, o) for o in (product.left, product.right))
    stages = [stage for stage in writers if stage is not None]
    others = [i for i in blocks if i is not product.info and i not in stages]
    if len(stages) < 2 or not all(info.is_injective() for info in others):
        return None
    sources = [sch.get(stage.block_rv).reads[0].source for stage in stages]
    if not all(isinstance(source.shape[1], tirx.IntImm) for source in sources):
        return None
    return product, half, sources, [info.block_rv for info in others]


def _load_of_bfloat16(factor: tirx.Expr) -> tirx.Expr:
    """The load of the bits that `fold_rounding.widen` makes a number; anything else as it is."""
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
