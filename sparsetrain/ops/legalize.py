# SPDX-License-Identifier: Apache-2.0
"""Operators lowered here instead of by TVM: those with ids, and those that TVM gets wrong."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te, tirx

from sparsetrain.ops import indexing

_TVM_LAYER_NORM = tvm.ir.Op.get("relax.nn.layer_norm").get_attr("FLegalize")


def _relu(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    """Lower ReLU, keeping NaN as PyTorch does; TVM returns 0, which hides a diverged model."""

    def relu(x: te.Tensor) -> te.Tensor:
        zero = tirx.const(0, x.dtype)
        return te.compute(x.shape, lambda *i: tirx.Select(x(*i) < zero, zero, x(*i)), "relu")

    return builder.call_te(relu, call.args[0])


def _layer_norm(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    """Lower layer norm over the last axis in float64 too, which TVM's kernel refuses."""
    x, gamma, beta = call.args
    axes = [int(axis) % len(x.ty.shape) for axis in call.attrs["axes"]]
    if str(x.ty.dtype) != "float64" or axes != [len(x.ty.shape) - 1]:
        return _TVM_LAYER_NORM(builder, call)
    epsilon = float(call.attrs["epsilon"])

    def norm(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor) -> te.Tensor:
        rows, width = x.shape[:-1], x.shape[-1]
        k, j = (te.reduce_axis((0, width), name) for name in "kj")
        mean = te.compute(rows, lambda *i: te.sum(x(*i, k) / width, axis=k))
        centred = te.compute(x.shape, lambda *i: x(*i) - mean(*i[:-1]))
        square = te.compute(
            rows, lambda *i: te.sum(centred(*i, j) * centred(*i, j) / width, axis=j)
        )

        def element(*i: Any) -> Any:
            inverse = tirx.rsqrt(square(*i[:-1]) + tirx.const(epsilon, "float64"))
            return centred(*i) * inverse * gamma(i[-1]) + beta(i[-1])

        return te.compute(x.shape, element, "layer_norm")

    return builder.call_te(norm, x, gamma, beta)


# Operator -> its lowering.
LEGALIZE = {
    **indexing.LEGALIZE,
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.relu": _relu,
}
