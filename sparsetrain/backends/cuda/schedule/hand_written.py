# SPDX-License-Identifier: Apache-2.0
"""Pass that replaces kernels by hand-written CUDA kernels, before the schedule rules.

Each function in the table `_WRITERS` returns a hand-written kernel for a TIR function, or None; the
first result is used. A product of two matrices (float32, or half precision with float32 sums) and
the elementwise code after it become one kernel (`float_tile.py`, `half_tile.py`), which applies
this code before it stores a sum. Products of matrices with a symbolic row length are left to the
schedule rules.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func
from tvm.s_tir.schedule.schedule import ScheduleError
from tvm.target import Target

from sparsetrain.backends.cuda.device import has_tensor_cores
from sparsetrain.backends.cuda.schedule.column_sums import column_sums
from sparsetrain.backends.cuda.schedule.elementwise import elementwise
from sparsetrain.backends.cuda.schedule.epilogue import stored
from sparsetrain.backends.cuda.schedule.tile_kinds import scheduled, tiled_product
from sparsetrain.backends.cuda.schedule.tiles import marked
from sparsetrain.compiler.schedule.half_products import HALVES, match_half_product
from sparsetrain.compiler.schedule.product import Product, find_product
from sparsetrain.compiler.schedule.rule import has_blocks, has_wide_extents


@tvm.transform.module_pass(opt_level=0, name="WriteByHand")
class WriteByHand:
    """Replace the body of each function that has a hand-written CUDA kernel."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Replace the functions that a writer supports; leave all others unchanged."""
        for name, function in mod.functions_items():
            kernel = _written(function) if isinstance(function, tirx.PrimFunc) else None
            if kernel is not None:
                mod[name] = marked(kernel)
        return mod


def _written(function: tirx.PrimFunc) -> tirx.PrimFunc | None:
    if not has_blocks(function) or not has_wide_extents(function):
        return None
    return next(filter(None, (_tried(writer, function) for writer in _WRITERS)), None)


def _tried(writer, function: tirx.PrimFunc) -> tirx.PrimFunc | None:
    try:
        return writer(function)
    except (ScheduleError, InternalError):  # a primitive refused a step that it cannot prove safe
        return None


def in_float_tiles(function: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Return the tiled kernel of a function that is a float32 product, else None."""
    sch = s_tir.Schedule(function)
    blocks = normalize_prim_func(sch) or []
    product = find_product(sch, blocks)
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
    """Return both operands, or None if the function computes one or a row length is symbolic."""
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


def on_tensor_cores(function: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Return the tiled kernel of a function that is a half-precision product, else None."""
    if not has_tensor_cores(Target.current(allow_none=True)):
        return None
    sch = s_tir.Schedule(function)
    blocks = normalize_prim_func(sch) or []
    matches = ((half, match_half_product(sch, blocks, half)) for half in HALVES)
    half, found = next((pair for pair in matches if pair[1] is not None), ("", None))
    if found is None:
        return None
    sources = [sch.get(stage).reads[0].source for stage in found.stages]
    if not all(isinstance(source.shape[1], tirx.IntImm) for source in sources):
        return None
    kept = stored(sch, found.product, found.others)
    if kept is None:
        return None
    tiled, kind = tiled_product(found.product, kept, sources, half)
    return scheduled(function, tiled, kind, lambda _place: kept.store)


_WRITERS = (on_tensor_cores, in_float_tiles, column_sums, elementwise)
