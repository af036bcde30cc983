# SPDX-License-Identifier: Apache-2.0
"""Binary cross-entropy of logits: the loss of click models."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op

from sparsetrain.relax_op import define_op


def _bce_type(call: Any) -> relax.Type:
    return call.args[0].ty


def _bce_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    def loss(logits: te.Tensor, labels: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            z, y = logits(*index), labels(*index)
            zero = tirx.const(0, logits.dtype)
            return tirx.max(z, zero) - z * y + tirx.log1p(tirx.exp(-tirx.abs(z)))

        return te.compute(logits.shape, element, "bce_with_logits")

    return builder.call_te(loss, *call.args)


# (B, ...) logits, labels in [0, 1] -> loss of each: max(z, 0) - z y + log(1 + exp(-|z|)).
bce_with_logits = define_op("bce_with_logits", ("logits", "labels"), _bce_type, _bce_kernel)


def _bce(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: ``(sigmoid(z) - y) cotangent`` for the logits, ``-z cotangent`` for the labels."""
    logits, labels = call.args
    return [
        op.multiply(op.subtract(op.sigmoid(logits), labels), cotangent),
        op.negative(op.multiply(logits, cotangent)),
    ]


RULES = {"relax.sparsetrain.bce_with_logits": _bce}
