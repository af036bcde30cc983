# SPDX-License-Identifier: Apache-2.0
"""Operators on ragged sequences."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.ops.ragged import operators as ragged


def _sum(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: each token's row of the cotangent."""
    tokens, ends = call.args
    return [ragged.ragged_expand(cotangent, ends, tokens), None]


def _expand(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: the sum over the tokens of each row; of `like` only the length counts."""
    return [ragged.ragged_sum(cotangent, call.args[1]), None, op.grad.no_grad(call.args[2])]


def _max(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: to the first of the largest tokens."""
    tokens, ends = call.args
    return [ragged.max_cotangent(tokens, ends, output, cotangent), None]


def _last(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: to the last token."""
    return [ragged.last_cotangent(*call.args, cotangent), None]


def _take(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: to the tokens that were taken."""
    return [ragged.take_cotangent(*call.args, cotangent), None, None, None]


def _attention(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: of weights p, ``dv = (f p)' c``, ``ds = p (f c v' - c . out)``, ``dq = s ds k``."""
    attrs = {name: call.attrs[name] for name in ("heads", "causal", "scale")}
    qkv, factors = call.args[:4], call.args[4:]
    of = ragged.scaled_attention_cotangent if factors else ragged.attention_cotangent
    three = emit(of(*qkv, output, cotangent, *factors, **attrs))
    return [*(relax.TupleGetItem(three, n) for n in range(3)), None, *(None for _ in factors)]


def _silu_attention(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: of scores s and weights silu(s), ``ds = (c v') silu'(s)``, then as a product."""
    attrs = {name: call.attrs[name] for name in ("heads", "causal", "scale")}
    four = emit(ragged.silu_attention_cotangent(*call.args, cotangent, **attrs))
    return [*(relax.TupleGetItem(four, n) for n in range(4)), None]


RULES = {
    "relax.sparsetrain.ragged_sum": _sum,
    "relax.sparsetrain.ragged_expand": _expand,
    "relax.sparsetrain.ragged_max": _max,
    "relax.sparsetrain.ragged_last": _last,
    "relax.sparsetrain.ragged_take": _take,
    "relax.sparsetrain.ragged_attention": _attention,
    "relax.sparsetrain.ragged_scaled_attention": _attention,
    "relax.sparsetrain.ragged_silu_attention": _silu_attention,
}
