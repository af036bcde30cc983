# SPDX-License-Identifier: Apache-2.0
"""`take` from an activation: its cotangent is dense, by TVM's scatter, which asks for three things.

It reads neither the mode of `take` nor a negative axis (it writes over other memory), and knows one
row of ids only. So ids become the places that were read, and the axis counts from the front.
"""

from __future__ import annotations

from functools import reduce
from operator import mul
from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.errors import ConfigError


def _clip(place: Any, extent: Any) -> Any:
    return tirx.max(tirx.min(place, extent - 1), 0)


# Mode of `take` -> the place that an id stands for.
PLACES = {"fast": None, "clip": _clip, "wrap": tirx.floormod}


def places_read(ids: relax.Expr, extent: Any, mode: str, builder: relax.BlockBuilder) -> relax.Expr:
    """What `ids` (any shape) stand for along an axis of `extent` elements, symbolic or not.

    In int64 where `ids` are shorter than int32: they need not be able to hold `extent`.
    """
    if mode not in PLACES:
        raise ConfigError(f"relax.take: mode {mode!r} has no derivative; use {sorted(PLACES)}")
    place = PLACES[mode]
    if place is None:
        return ids

    def places(ids: te.Tensor, extent: Any) -> te.Tensor:
        dtype = ids.dtype if ids.dtype in ("int32", "int64") else "int64"
        bound = tirx.Cast(dtype, extent)
        return te.compute(
            ids.shape, lambda *index: place(ids(*index).astype(dtype), bound), "places"
        )

    return builder.emit_te(places, ids, extent)


def scatter_into(x: relax.Expr, ids: relax.Expr, axis: int, cotangent: relax.Expr) -> relax.Expr:
    """Zeros in the shape of `x`, with the cotangent added where ``take(x, ids, axis)`` read."""
    extents = list(x.ty.shape)
    if len(ids.ty.shape) != 1:
        count = reduce(mul, ids.ty.shape, tirx.IntImm("int64", 1))
        ids = emit(op.reshape(ids, [count]))
        cotangent = emit(op.reshape(cotangent, [*extents[:axis], count, *extents[axis + 1 :]]))
    return op.grad.take_backward(cotangent, x, ids, axis)
