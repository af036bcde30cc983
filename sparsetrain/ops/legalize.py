# SPDX-License-Identifier: Apache-2.0
"""Operators that are lowered otherwise than by TVM: what goes by ids, and what it gets wrong."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te, tirx

from sparsetrain.ops import indexing

_TVM_BATCH_NORM = tvm.ir.Op.get("relax.nn.batch_norm").get_attr("FLegalize")


def _batch_norm(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    """By an axis counted from the front: TVM types one from the end, then fails to lower it."""
    axis = int(call.attrs["axis"]) % len(call.args[0].ty.shape)
    rest = [call.attrs[name] for name in ("epsilon", "center", "scale", "momentum", "training")]
    return _TVM_BATCH_NORM(builder, relax.op.nn.batch_norm(*call.args, axis, *rest))


def _relu(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    """NaN stays NaN, as in PyTorch; TVM's maximum makes it 0, which hides a ruined model."""

    def relu(x: te.Tensor) -> te.Tensor:
        zero = tirx.const(0, x.dtype)
        return te.compute(x.shape, lambda *i: tirx.Select(x(*i) < zero, zero, x(*i)), "relu")

    return builder.call_te(relu, call.args[0])


# Operator -> how it is lowered.
LEGALIZE = {
    **indexing.LEGALIZE,
    "relax.nn.batch_norm": _batch_norm,
    "relax.nn.relu": _relu,
}
