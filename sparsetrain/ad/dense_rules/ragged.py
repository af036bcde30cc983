# SPDX-License-Identifier: Apache-2.0
"""Operators on ragged sequences."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.ops.ragged import operators as ragged


def _sum(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: each token gets its row of the cotangent."""
    tokens, ends = call.args
    return [ragged.ragged_expand(cotangent, ends, tokens), None]


def _expand(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: the sum over the tokens of each row; only the length of `like` is used."""
    return [ragged.ragged_sum(cotangent, call.args[1]), None, op.grad.no_grad(call.args[2])]


def _max(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: the first largest token gets the cotangent."""
    tokens, ends = call.args
    return [ragged.max_cotangent(tokens, ends, output, cotangent), None]


def _last(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: the last token gets the cotangent."""
    return [ragged.last_cotangent(*call.args, cotangent), None]


def _nonempty(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: the cotangent, but 0 for a row without tokens."""
    return [ragged.ragged_nonempty(cotangent, call.args[1]), None]


def _take(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: the tokens that were taken get the cotangent."""
    return [ragged.take_cotangent(*call.args, cotangent), None, None, None]


def _attention(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward, with weights p, factors f and the cotangent c of the output.

    ``dv = (f p)' c``, ``ds = p (f c v' - c . out)`` for the scores s, and ``dq = scale ds k``.
    """
    attrs = {name: call.attrs[name] for name in ("heads", "causal", "scale")}
    of, given = _ATTENTION[call.op.name.removeprefix(_NAME)]
    before, factors = call.args[:given], call.args[given:]
    three = emit(of(*before, output, cotangent, *factors, **attrs))
    return [*(relax.TupleGetItem(three, n) for n in range(3)), *[None] * (len(call.args) - 3)]


def _silu_attention(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: ``ds = (c v') silu'(s)`` for scores s; then dq, dk, dv as for matrix products."""
    attrs = {name: call.attrs[name] for name in ("heads", "causal", "scale")}
    chosen = call.op.name == f"{_NAME}silu_attention_at"
    of = ragged.silu_attention_at_cotangent if chosen else ragged.silu_attention_cotangent
    four = emit(of(*call.args, cotangent, **attrs))
    return [*(relax.TupleGetItem(four, n) for n in range(4)), *[None] * (len(call.args) - 4)]


_NAME = "relax.sparsetrain.ragged_"
# Operator -> the operator that computes its cotangents, and the number of arguments before the
# factors.
_ATTENTION = {
    "attention": (ragged.attention_cotangent, 4),
    "scaled_attention": (ragged.scaled_attention_cotangent, 4),
    "attention_at": (ragged.attention_at_cotangent, 6),
    "scaled_attention_at": (ragged.scaled_at_cotangent, 6),
}
RULES = {
    f"{_NAME}sum": _sum,
    f"{_NAME}expand": _expand,
    f"{_NAME}max": _max,
    f"{_NAME}last": _last,
    f"{_NAME}nonempty": _nonempty,
    f"{_NAME}take": _take,
    **{f"{_NAME}{name}": _attention for name in _ATTENTION},
    f"{_NAME}silu_attention": _silu_attention,
    f"{_NAME}silu_attention_at": _silu_attention,
}
