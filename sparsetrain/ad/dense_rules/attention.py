# SPDX-License-Identifier: Apache-2.0
"""Attention: softmax of products of queries and keys, as weights of values.

The weights are computed once more: (B, heads, length of q, length of k) numbers, as in the forward
pass. Products are `matmul`, which is scheduled.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, tirx
from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.dense_rules.reading import constant, fitted, number
from sparsetrain.errors import ConfigError


def _attention(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``y = p v`` with ``p = softmax(scale q k' + bias)``, per example and head.

    Backward: ``dv = p' c``, ``ds = p (c v' - sum(p (c v')))`` for the scores s,
    ``dq = scale ds k``, ``dk = scale ds' q``, and ``ds`` for the bias.
    """
    if call.attrs["window_size"] is not None:
        raise ConfigError("relax.nn.attention: no derivative with window_size: mask by a bias")
    q, k, v, c = (_heads_first(tensor) for tensor in (*call.args[:3], cotangent))
    scale = constant(_scale(call), q)
    scores = emit(op.multiply(op.matmul(q, _turned(k)), scale))
    if len(call.args) > 3:
        scores = emit(op.add(scores, call.args[3]))
    weights = _weights(scores, call)
    slope = emit(op.matmul(c, _turned(v)))
    mean = op.sum(emit(op.multiply(weights, slope)), -1, keepdims=True)
    of_scores = emit(op.multiply(weights, op.subtract(slope, mean)))
    scaled = emit(op.multiply(of_scores, scale))
    parts = (
        op.matmul(scaled, k),
        op.matmul(_turned(scaled), q),
        op.matmul(_turned(weights), c),
    )
    biases = [fitted(of_scores, scores, bias) for bias in call.args[3:]]
    return [*(_heads_first(emit(part)) for part in parts), *biases]


def _scale(call: Any) -> float:
    given = call.attrs["scale"]
    return 1 / math.sqrt(int(call.args[0].ty.shape[3])) if given is None else float(number(given))


def _weights(scores: relax.Expr, call: Any) -> relax.Expr:
    """The softmax over what may be seen."""
    mask = call.attrs["causal_mask"]
    if mask is None:
        return emit(op.nn.softmax(scores, -1))
    queries, keys = list(scores.ty.shape)[2:]
    ahead = 0 if str(mask) == "TopLeft" else tirx.abs(queries - keys)
    seen = emit(op.tril(scores, ahead))
    shifted = emit(op.subtract(seen, op.max(seen, -1, keepdims=True)))
    exponentials = emit(op.tril(emit(op.exp(shifted)), ahead))
    return emit(op.divide(exponentials, op.sum(exponentials, -1, keepdims=True)))


def _heads_first(tensor: relax.Expr) -> relax.Expr:
    """(B, length, heads, D) to (B, heads, length, D), and back."""
    return emit(op.permute_dims(tensor, [0, 2, 1, 3]))


def _turned(matrices: relax.Expr) -> relax.Expr:
    return emit(op.permute_dims(matrices, [0, 1, 3, 2]))


RULES = {
    "relax.nn.attention": _attention,
    "relax.nn.attention_bias": _attention,
}
