# SPDX-License-Identifier: Apache-2.0
"""Attention as matrix products and a softmax, for which there are schedules.

Programs (`schedule.lower_attention`) and the derivative (`ad.dense_rules.attention`) share this
definition. TVM's own kernel is an unscheduled loop nest. Cost: the weights (B, heads, length of q,
length of k) are written to memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from tvm import relax, tirx
from tvm.relax import op
from tvm_ffi import structural_equal

from sparsetrain.errors import ConfigError
from sparsetrain.ops.operand_shapes import is_one

Emit = Callable[[relax.Expr], relax.Var]


class Given(NamedTuple):
    """Operands of attention: q, k and v (B, heads, length, D), and a bias or None."""

    q: relax.Var
    k: relax.Var
    v: relax.Var
    biases: list[relax.Expr]


def attention(call: relax.Call, emit: Emit) -> relax.Expr:
    """Compute ``softmax(scale q k' + bias) v`` per example and head, like `relax.nn.attention`.

    Parameters
    ----------
    call : relax.Call
        A call of `relax.nn.attention` or `attention_bias` without a window: q (B, length, heads,
        D), k and v of equal length, and optionally a bias (B, heads, length of q, length of k).
    emit : callable
        Binds an expression to a variable.
    """
    given = given_to(call, emit)
    weights = attention_weights(call, given, emit)
    return op.permute_dims(emit(op.matmul(weights, given.v)), _SWAPPED)


def given_to(call: relax.Call, emit: Emit) -> Given:
    """Return the arguments of a call; lengths that attention assumes to be equal get one symbol."""
    q, k, v, *biases = call.args
    batch, queries, heads, width = q.ty.shape
    keys = k.ty.shape[1]
    k = _shaped(k, [batch, keys, heads, width], emit)
    v = _shaped(v, [batch, keys, heads, v.ty.shape[3]], emit)
    biases = [_shaped(bias, [batch, heads, queries, keys], emit) for bias in biases]
    return Given(heads_first(q, emit), heads_first(k, emit), heads_first(v, emit), biases)


def _shaped(tensor: relax.Expr, shape: list[Any], emit: Emit) -> relax.Expr:
    """Reshape `tensor` to `shape`, except for axes of length 1, which broadcast."""
    own = tensor.ty.shape
    wanted = [n if is_one(n) else m for n, m in zip(own, shape, strict=True)]
    return tensor if structural_equal(list(own), wanted) else emit(op.reshape(tensor, wanted))


def attention_weights(call: relax.Call, given: Given, emit: Emit) -> relax.Var:
    """Return the softmax over visible keys, (B, heads, length of q, length of k)."""
    products = emit(op.matmul(given.q, turned(given.k, emit)))
    scores = emit(op.multiply(products, attention_scale(call)))
    for bias in given.biases:
        scores = emit(op.add(scores, bias))
    if call.attrs["causal_mask"] is not None:
        lowest = relax.const(float("-inf"), str(scores.ty.dtype))
        scores = emit(op.where(_seen(call, scores, emit), scores, lowest))
    return emit(op.nn.softmax(scores, -1))


def has_scale(call: relax.Call) -> bool:
    """Whether the scale of the scores is given, or follows from a static width of q."""
    return call.attrs["scale"] is not None or isinstance(call.args[0].ty.shape[3], tirx.IntImm)


def attention_scale(call: relax.Call) -> relax.Constant:
    """Return the scale of the scores, in their dtype.

    Raises
    ------
    ConfigError
        If the scale is not given and the width of q is symbolic.
    """
    if not has_scale(call):
        raise ConfigError(f"{call.op.name}: give a scale, or a q with a static width")
    q, given = call.args[0].ty, call.attrs["scale"]
    scale = 1 / math.sqrt(int(q.shape[3])) if given is None else float(given.value)
    return relax.const(scale, str(q.dtype))


def _seen(call: relax.Call, scores: relax.Var, emit: Emit) -> relax.Var:
    """Return the mask of keys up to the query, with positions counted from the start or the end."""
    queries, keys = list(scores.ty.shape)[2:]
    ahead: Any = 0 if str(call.attrs["causal_mask"]) == "TopLeft" else tirx.abs(queries - keys)
    ones = emit(op.ones(relax.ShapeExpr([queries, keys]), "float32"))
    return emit(op.astype(emit(op.tril(ones, ahead)), "bool"))


_SWAPPED = [0, 2, 1, 3]


def heads_first(tensor: relax.Expr, emit: Emit) -> relax.Var:
    """Transpose (B, length, heads, D) to (B, heads, length, D), or back."""
    return emit(op.permute_dims(tensor, _SWAPPED))


def turned(matrices: relax.Expr, emit: Emit) -> relax.Var:
    """Return each matrix transposed."""
    return emit(op.permute_dims(matrices, [0, 1, 3, 2]))
