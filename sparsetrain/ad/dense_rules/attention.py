# SPDX-License-Identifier: Apache-2.0
"""Attention: averages of values, weighted by the softmax of products of queries and keys.

The rule builds the weights from the same expressions as the forward pass, so that a program
computes them once.
"""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.dense_rules.accessors import fitted
from sparsetrain.errors import ConfigError
from sparsetrain.ops.attention import (
    attention_scale,
    attention_weights,
    given_to,
    heads_first,
    turned,
)


def _attention(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``y = p v`` with ``p = softmax(scale q k' + bias)``, per example and head.

    Backward: ``dv = p' c``, ``ds = p (c v' - sum(p (c v')))`` for the scores s,
    ``dq = scale ds k``, ``dk = scale ds' q``, and ``ds`` for the bias.
    """
    if call.attrs["window_size"] is not None:
        raise ConfigError("relax.nn.attention: no derivative with window_size: mask by a bias")
    given, c = given_to(call, emit), heads_first(cotangent, emit)
    weights = attention_weights(call, given, emit)
    slope = emit(op.matmul(c, turned(given.v, emit)))
    mean = op.sum(emit(op.multiply(weights, slope)), -1, keepdims=True)
    of_scores = emit(op.multiply(weights, op.subtract(slope, mean)))
    scaled = emit(op.multiply(of_scores, attention_scale(call)))
    parts = (
        op.matmul(scaled, given.k),
        op.matmul(turned(scaled, emit), given.q),
        op.matmul(turned(weights, emit), c),
    )
    biases = [fitted(of_scores, weights, bias) for bias in call.args[3:]]
    return [*(heads_first(emit(part), emit) for part in parts), *biases]


RULES = {
    "relax.nn.attention": _attention,
    "relax.nn.attention_bias": _attention,
}
