# SPDX-License-Identifier: Apache-2.0
"""bfloat16 and float16 products, with the elementwise work after them, on tensor cores.

`on_tensor_cores` looks for the functions that `FoldIntoHalfMatmul` and fusion create: two matrices
are rounded, multiplied and summed in float32, and the result goes through elementwise work. Each
becomes one hand-written kernel (`half_tile.py`) that applies that work to a sum before it is
stored. A product with rows of unknown length is left to other rules.
"""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.target import Target

from sparsetrain.compiler.schedule.cuda.epilogue import stored
from sparsetrain.compiler.schedule.cuda.tile_kinds import scheduled, tiled_product
from sparsetrain.compiler.schedule.half_bits import HALVES
from sparsetrain.compiler.schedule.half_match import match_half_product
from sparsetrain.runtime.target_features import has_tensor_cores


def on_tensor_cores(function: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """The kernel of a function that is a product of halves, or None for another."""
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
