# SPDX-License-Identifier: Apache-2.0
"""Relax operators on ragged sequences; their derivatives are in `ad.dense_rules.ragged`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import relax

from sparsetrain.backend import current
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.relax_op import call_kernel, define_op
from sparsetrain.ops.ragged import row_kernels
from sparsetrain.ops.ragged.attention_blocks import Attention
from sparsetrain.ops.ragged.attention_kernels import attention_cotangent_kernel, attention_kernel
from sparsetrain.ops.ragged.silu_attention_kernels import (
    silu_attention_cotangent_kernel,
    silu_attention_kernel,
)


def _check(name: str, tokens: relax.Expr, ends: relax.Expr) -> None:
    if len(tokens.ty.shape) != 2 or len(ends.ty.shape) != 1 or str(ends.ty.dtype) != "int64":
        raise ConfigError(
            f"{name} takes tokens (N, D) and ends (B,) int64, not {tokens.ty} and {ends.ty}"
        )


def _width(expr: relax.Expr) -> int:
    return int(expr.ty.shape[-1])


def _like(like: int, length: int) -> Callable[[Any], relax.Type]:
    """Return a type rule: the result has the columns of one argument and the length of a second."""

    def infer(call: Any) -> relax.Type:
        name = call.op.name.rpartition(".")[-1]
        _check(name, call.args[0], call.args[1])
        extent = call.args[length].ty.shape[0]
        given = call.args[like].ty
        return relax.TensorType((extent, *list(given.shape)[1:]), given.dtype)

    return infer


def _legalize(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    return _called(builder, call, _width(call.args[0]), str(call.args[0].ty.dtype))


def _expand_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    rows, _, like = call.args
    types = ((_width(each), str(each.ty.dtype)) for each in (rows, like))
    return _called(builder, call, *next(types), *next(types))


def _called(builder: relax.BlockBuilder, call: Any, *variant: Any) -> relax.Expr:
    name = call.op.name.rpartition(".")[-1]
    made = current().kernel(name, row_kernels.KERNELS[name])(*variant)
    return call_kernel(builder, made, name, list(call.args), call.ty)


# Tokens (N, D) and ends (B,) -> (B, D), 0 for a row without tokens.
ragged_sum = define_op("ragged_sum", ("tokens", "ends"), _like(0, 1), _legalize)
ragged_max = define_op("ragged_max", ("tokens", "ends"), _like(0, 1), _legalize)
ragged_last = define_op("ragged_last", ("tokens", "ends"), _like(0, 1), _legalize)
# Rows (B, D) and ends (B,) -> the same rows, 0 for a row without tokens.
ragged_nonempty = define_op("ragged_nonempty", ("rows", "ends"), _like(0, 1), _legalize)
# Rows (B, D), ends (B,) and tokens (N, ...), used for N only -> each token's row (N, D).
ragged_expand = define_op("ragged_expand", ("rows", "ends", "like"), _like(0, 2), _expand_kernel)
max_cotangent = define_op(
    "ragged_max_cotangent",
    ("tokens", "ends", "top", "cotangent"),
    _like(0, 0),
    _legalize,
)
last_cotangent = define_op(
    "ragged_last_cotangent",
    ("tokens", "ends", "cotangent"),
    _like(0, 0),
    _legalize,
)

# Places (M,) int64 within rows, divided into B rows by `place_ends` -> (M, D); NaN outside the row.
ragged_take = define_op(
    "ragged_take",
    ("tokens", "ends", "places", "place_ends"),
    _like(0, 2),
    _legalize,
)
take_cotangent = define_op(
    "ragged_take_cotangent",
    ("tokens", "ends", "places", "place_ends", "cotangent"),
    _like(0, 0),
    _legalize,
)


def _positions_type(call: Any) -> relax.Type:
    _check(call.op.name.rpartition(".")[-1], *call.args)
    return relax.TensorType((call.args[0].ty.shape[0],), "int64")


# Tokens (N, D) and ends (B,) -> how many tokens of its row come before, or after, each: (N,) int64.
ragged_positions = define_op("ragged_positions", ("tokens", "ends"), _positions_type, _legalize)
ragged_distances = define_op("ragged_distances", ("tokens", "ends"), _positions_type, _legalize)


def _attention_of(call: Any) -> Attention:
    attrs = call.attrs
    return Attention(
        _width(call.args[0]),
        int(attrs["heads"]),
        bool(attrs["causal"]),
        float(attrs["scale"]),
        str(call.args[0].ty.dtype),
    )


_AT = "_at"  # suffix of operators with selected queries


def _given(call: Any) -> int:
    """Return the number of arguments up to `ends` or, with selected queries, `place_ends`."""
    return 6 if call.op.name.removesuffix("_cotangent").endswith(_AT) else 4


def _kernel_of(name: str, host: Any, call: Any, *variant: Any) -> Any:
    """Return the kernel for all tokens as queries, or for selected queries."""
    chosen = _given(call) == 6
    name = f"{name}{_AT}" if chosen else name
    return current().kernel(name, partial(host, chosen=True) if chosen else host)(*variant)


def _attention_type(call: Any) -> relax.Type:
    q, k, v, ends, *_ = call.args
    factors = call.args[_given(call) :]
    _check_attention(call, q, k, v, ends)
    heads = int(call.attrs["heads"])
    for given in factors:
        kind = given.ty
        if len(kind.shape) != 2 or kind.dtype != q.ty.dtype or _width(given) % heads:
            raise ConfigError(
                f"ragged_attention: factors are (N, {heads} times places) {q.ty.dtype}, not {kind}"
            )
    return q.ty


def _places(call: Any, factors: int) -> int | None:
    """Return the places of the factors; None if the call has only this many arguments."""
    if len(call.args) <= factors:
        return None
    return _width(call.args[factors]) // int(call.attrs["heads"])


def _check_attention(call: Any, q: Any, k: Any, v: Any, ends: Any) -> None:
    name = call.op.name.rpartition(".")[-1]
    for tokens in (q, k, v):
        _check(name, tokens, ends)
    alike = (k, v) if _given(call) == 6 else (q, k, v)
    if len({str(tokens.ty) for tokens in alike}) > 1 or _width(q) != _width(k):
        raise ConfigError(f"{name}: q, k and v must have one shape, not {q.ty}, {k.ty}, {v.ty}")


def _stats(of: Attention, call: Any) -> relax.Type:
    return relax.TensorType((call.args[0].ty.shape[0], 2 * of.heads), of.dtype)


def _attention_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    of = _attention_of(call)
    both = call_kernel(
        builder,
        _kernel_of("ragged_attention", attention_kernel, call, of, _places(call, _given(call))),
        "ragged_attention",
        list(call.args),
        [call.ty, _stats(of, call)],
    )
    return relax.TupleGetItem(builder.emit(both), 0)


_QKV = ("q", "k", "v", "ends")
_attention = define_op("ragged_attention", _QKV, _attention_type, _attention_kernel)
_scaled_attention = define_op(
    "ragged_scaled_attention", (*_QKV, "factors"), _attention_type, _attention_kernel
)
# For M queries at places (M,) within rows, divided into B rows by `place_ends`: q (M, D) -> (M, D).
_CHOSEN = (*_QKV, "places", "place_ends")
attention_at = define_op(f"ragged_attention{_AT}", _CHOSEN, _attention_type, _attention_kernel)
scaled_attention_at = define_op(
    f"ragged_scaled_attention{_AT}", (*_CHOSEN, "factors"), _attention_type, _attention_kernel
)


def ragged_attention(
    q: relax.Expr,
    k: relax.Expr,
    v: relax.Expr,
    ends: relax.Expr,
    factors: relax.Expr | None = None,
    *,
    heads: int = 1,
    causal: bool = False,
) -> relax.Expr:
    """Compute attention among the tokens of each row (Vaswani et al. 2017, arXiv:1706.03762).

    ``out[i] = sum over j of f[i, j] softmax_j(q[i] . k[j] / sqrt(D / heads)) v[j]`` for each head.

    Parameters
    ----------
    q, k, v : (N, D) float
        Head h has the columns from ``h D / heads`` on.
    ends : (B,) int64
        For each row, the index after its last token.
    factors : (N, heads places) float, optional
        f, such as a dropout mask; j is the position within the row, and positions past the last
        place use the last factor. Factors get no gradient.
    heads : int
        Number of heads, a divisor of D.
    causal : bool
        A token attends only to itself and to tokens before it.

    Returns
    -------
    (N, D) float

    Raises
    ------
    ConfigError
        If D is not a multiple of `heads`.
    """
    scale = 1 / math.sqrt(_size_of_head("ragged_attention", q, heads))
    attrs = {"heads": heads, "causal": int(causal), "scale": scale}
    if factors is None:
        return _attention(q, k, v, ends, **attrs)
    return _scaled_attention(q, k, v, ends, factors, **attrs)


def _size_of_head(name: str, q: relax.Expr, heads: int) -> int:
    width = _width(q)
    if heads < 1 or width % heads:
        raise ConfigError(f"{name}: {heads} heads do not divide the width {width}")
    return width // heads


def _cotangent_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    of, given = _attention_of(call), _given(call)
    outs = [*call.ty.fields, _stats(of, call)]
    name = "ragged_attention_cotangent"
    kernel = _kernel_of(name, attention_cotangent_kernel, call, of, _places(call, given + 2))
    arguments = [*call.args[:given], *call.args[given + 2 :], *call.args[given : given + 2]]
    made = builder.emit(call_kernel(builder, kernel, name, arguments, outs))
    return relax.Tuple([relax.TupleGetItem(made, n) for n in range(3)])


def _cotangent_type(call: Any) -> relax.Type:
    return relax.TupleType([each.ty for each in call.args[:3]])


_OUT = ("out", "cotangent")
attention_cotangent, scaled_attention_cotangent, attention_at_cotangent, scaled_at_cotangent = (
    define_op(f"{name}_cotangent", arguments, _cotangent_type, _cotangent_kernel)
    for name, arguments in {
        "ragged_attention": (*_QKV, *_OUT),
        "ragged_scaled_attention": (*_QKV, *_OUT, "factors"),
        f"ragged_attention{_AT}": (*_CHOSEN, *_OUT),
        f"ragged_scaled_attention{_AT}": (*_CHOSEN, *_OUT, "factors"),
    }.items()
)


def _silu_type(call: Any) -> relax.Type:
    q, k, v, bias, ends = call.args[:5]
    _check_attention(call, q, k, v, ends)
    if len(bias.ty.shape) != 2 or bias.ty.dtype != q.ty.dtype:
        name = call.op.name.rpartition(".")[-1]
        raise ConfigError(f"{name}: bias is (N, distances) {q.ty.dtype}, not {bias.ty}")
    return q.ty


def _silu_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    name, variant = "ragged_silu_attention", (_attention_of(call), _width(call.args[3]))
    made = _kernel_of(name, silu_attention_kernel, call, *variant)
    return call_kernel(builder, made, name, list(call.args), call.ty)


_SILU = ("q", "k", "v", "bias", "ends")
_silu = define_op("ragged_silu_attention", _SILU, _silu_type, _silu_kernel)
silu_attention_at = define_op(
    f"ragged_silu_attention{_AT}", (*_SILU, "places", "place_ends"), _silu_type, _silu_kernel
)


def ragged_silu_attention(
    q: relax.Expr,
    k: relax.Expr,
    v: relax.Expr,
    bias: relax.Expr,
    ends: relax.Expr,
    *,
    heads: int = 1,
    scale: float = 1.0,
) -> relax.Expr:
    """Compute causal attention with SiLU as in HSTU (Zhai et al. 2024, arXiv:2402.17152).

    ``out[i] = sum over j <= i of scale silu(q[i] . k[j] + bias[i, i - j]) v[j]`` for each head.

    Parameters
    ----------
    q, k, v : (N, D) float
        Head h has the columns from ``h D / heads`` on.
    bias : (N, distances) float
        Shared by all heads; larger distances use the last column.
    ends : (B,) int64
        For each row, the index after its last token.
    heads : int
        Number of heads, a divisor of D.
    scale : float
        Above 0.

    Returns
    -------
    (N, D) float

    Raises
    ------
    ConfigError
        If D is not a multiple of `heads`.
    """
    _size_of_head("ragged_silu_attention", q, heads)
    return _silu(q, k, v, bias, ends, heads=heads, causal=1, scale=float(scale))


def _silu_cotangent_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    name, variant = "ragged_silu_attention_cotangent", (_attention_of(call), _width(call.args[3]))
    kernel = _kernel_of(name, silu_attention_cotangent_kernel, call, *variant)
    return call_kernel(builder, kernel, name, list(call.args), list(call.ty.fields))


silu_attention_cotangent, silu_attention_at_cotangent = (
    define_op(
        f"ragged_silu_attention{at}_cotangent",
        (*_SILU, *more, "cotangent"),
        lambda call: relax.TupleType([each.ty for each in call.args[:4]]),
        _silu_cotangent_kernel,
    )
    for at, more in {"": (), _AT: ("places", "place_ends")}.items()
)
