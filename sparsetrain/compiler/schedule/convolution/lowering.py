# SPDX-License-Identifier: Apache-2.0
"""Convolutions and their derivatives become calls of the two kernels, where the target is a CPU.

Taken are those of float32 and float64 whose extents are known beforehand, but for the batch, and
whose places lie in the order of depth, height and width. Others stay loops: TVM's forward, those of
`sparsetrain.ops.windows` backward.
"""

from __future__ import annotations

from functools import cache, partial
from math import prod
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import Op
from tvm.relax import op
from tvm.target import Target

from sparsetrain.compiler.schedule.convolution.correlation import correlate
from sparsetrain.compiler.schedule.convolution.shape import Layout
from sparsetrain.compiler.schedule.convolution.sides import Sides
from sparsetrain.compiler.schedule.convolution.to_side import ToSide
from sparsetrain.compiler.schedule.convolution.to_weight import ToWeight
from sparsetrain.compiler.schedule.convolution.weight_sum import sum_weight
from sparsetrain.kernels.relax_op import Legalize, call_kernel, compiles_for
from sparsetrain.ops.windows import Convolution, spatial

_DTYPES = ("float32", "float64")
# Of a side in one example, which a thread copies whole: 256 MB, in reach of the tables' int32.
_MOST_ELEMENTS = 1 << 26
# The kinds of sums -> where small side, large side and weight are: given first, second, or the
# result.
_OPERANDS = {"to_small": (2, 0, 1), "to_large": (0, 2, 1), "to_weight": (0, 1, 2)}


def _lowered(kind: str, otherwise: Legalize, builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    sides = _sides(kind, call)
    if sides is None:
        return otherwise(builder, call)
    if kind == "to_weight":
        return _to_weight(builder, sides, call)
    return _to_side(builder, sides, call, to_small=kind == "to_small")


def _sides(kind: str, call: Any) -> Sides | None:
    """The convolution of a call; None if its kernels do not take it."""
    types = [*(argument.ty for argument in call.args[:2]), call.ty]
    if not compiles_for("llvm") or any(t.shape is None for t in types):
        return None
    small, large, weight = (list(types[place].shape) for place in _OPERANDS[kind])
    data, kernel = (str(call.attrs[f"{name}_layout"]) for name in ("data", "kernel"))
    out = str(getattr(call.attrs, "out_layout", data))
    known = [*small[1:], *large[1:], *weight]
    dtypes = {str(t.dtype) for t in types}
    if (
        len(dtypes) > 1
        or not dtypes <= set(_DTYPES)
        or not all(isinstance(n, tirx.IntImm) and int(n) > 0 for n in known)
        or len(data) != len(small)
        or len(kernel) != len(weight)
        or data.index("N") != 0
        or data.index("C") not in (1, len(data) - 1)
        or out != data
        or spatial(data) != sorted(spatial(data))
        or any(prod(map(int, side[1:])) > _MOST_ELEMENTS for side in (small, large))
    ):
        return None
    return Sides(Convolution.of(call), small, large, weight, dtypes.pop())


def _to_side(builder: relax.BlockBuilder, sides: Sides, call: Any, *, to_small: bool) -> relax.Expr:
    (source, weight), out = call.args[:2], call.ty
    plan = ToSide(sides, Target.current(), to_small=to_small)
    weights = [
        builder.emit(builder.call_te(plan.packed, weight, _table(numbers), which))
        for which, numbers in enumerate(plan.taps)
    ]
    places, positions, *begins = map(_table, plan.tables())
    batch = out.shape[0]
    result = call_kernel(
        builder,
        _correlate(plan.kernel),
        "convolution",
        [_examples(builder, source, plan.kernel.source), places, positions, *weights, *begins],
        relax.TensorType((batch, plan.kernel.out.size), sides.dtype),
    )
    return op.reshape(builder.emit(result), out.shape)


def _to_weight(builder: relax.BlockBuilder, sides: Sides, call: Any) -> relax.Expr:
    plan = ToWeight(sides, Target.current())
    of_small, of_large, begins = map(_table, plan.tables())
    given = [
        _examples(builder, side, layout)
        for side, layout in zip(call.args, (sides.small, sides.large), strict=False)
    ]
    sums = call_kernel(
        builder,
        _sum_weight(plan.kernel),
        "convolution_weight",
        [*given, of_small, of_large, begins],
        relax.TensorType(plan.kernel.shape, sides.dtype),
    )
    return builder.call_te(plan.total, builder.emit(sums))


_correlate, _sum_weight = cache(correlate), cache(sum_weight)


def _examples(builder: relax.BlockBuilder, side: relax.Expr, layout: Layout) -> relax.Expr:
    """A side with one axis beside the batch."""
    return builder.emit(op.reshape(side, [side.ty.shape[0], layout.size]))


def _table(numbers: np.ndarray) -> relax.Constant:
    return relax.const(numbers.astype("int32"), "int32")


# Operator -> what it sums.
_KINDS = {
    **{f"relax.nn.conv{n}d": "to_small" for n in (1, 2, 3)},
    **{f"relax.nn.conv{n}d_transpose": "to_large" for n in (1, 2, 3)},
    **{f"relax.sparsetrain.convolution_{kind}": kind for kind in _OPERANDS},
}

# Operator -> how it is lowered.
LEGALIZE = {
    name: partial(_lowered, kind, Op.get(name).get_attr("FLegalize"))
    for name, kind in _KINDS.items()
}
