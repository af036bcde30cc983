# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels of softmax attention within ragged rows and of its derivative.

They take the same arguments as the CPU kernels in `ops.ragged.attention_kernels`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.backends.cuda.attention.tokens import (
    Sum,
    Token,
    each_token,
    write_by_key,
    write_by_query,
)
from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.kernels.loops import Number
from sparsetrain.ops.ragged.attention_blocks import Attention
from sparsetrain.ops.ragged.attention_kernels import factors_of
from sparsetrain.ops.ragged.row_kernels import put


@cache
def attention_kernel(of: Attention, places: int | None = None) -> PrimFunc:
    """See `ops.ragged.attention_kernels.attention_kernel`."""
    with kernel("ragged_attention") as built:
        tokens, rows = extents(2)
        q, k, v = (buffer(name, (tokens, of.width), of.dtype) for name in "qkv")
        ends = buffer("ends", (rows,), "int64")
        factors = factors_of(of, tokens, places)
        out = buffer("out", (tokens, of.width), of.dtype)
        stats = buffer("stats", (tokens, 2 * of.heads), of.dtype)
        with each_token(of, ends, tokens) as token:
            n, values = token.number, Sum(token)

            def add(j: Any, weight: Any, kept: Any) -> None:
                values.add(_scaled(token, factors, n, j, weight), v, j, kept)

            top, total = _weigh(token, q, k, add)
            values.write(out, total)
            put(stats, n, token.head, top)
            put(stats, n, of.heads + token.head, total)
    return built.get()


@cache
def attention_cotangent_kernel(of: Attention, places: int | None = None) -> PrimFunc:
    """See `ops.ragged.attention_kernels.attention_cotangent_kernel`."""
    with kernel("ragged_attention_cotangent") as built:
        tokens, rows = extents(2)
        q, k, v = (buffer(name, (tokens, of.width), of.dtype) for name in "qkv")
        ends = buffer("ends", (rows,), "int64")
        factors = factors_of(of, tokens, places)
        names = ("out", "cotangent", "dq", "dk", "dv")
        out, cotangent, dq, dk, dv = (buffer(n, (tokens, of.width), of.dtype) for n in names)
        stats = buffer("stats", (tokens, 2 * of.heads), of.dtype)

        def slope(token: Token, i: Any, j: Any) -> tuple[Any, Any]:
            """Return d(loss) / d(``q[i] . k[j]``), and the weight of the key's value."""
            logarithm, mean = stats[i, token.head], stats[i, of.heads + token.head]
            score = token.dot(q, i, k, j) * of.number(of.scale)
            weight = T.Bind(tirx.exp(score - logarithm))
            value = _scaled(token, factors, i, j, token.dot(cotangent, i, v, j))
            by_product = T.Bind(weight * (value - mean) * of.number(of.scale))
            return by_product, T.Bind(_scaled(token, factors, i, j, weight))

        with each_token(of, ends, tokens) as token:
            n = token.number
            top, total = _weigh(token, q, k, lambda *_: None)
            put(stats, n, token.head, top + tirx.log(total))
            put(stats, n, of.heads + token.head, token.dot(cotangent, n, out, n))
            write_by_query(token, slope, k, dq)
        with each_token(
            of, ends, tokens
        ) as token:  # a separate launch, because each thread reads other threads' stats
            write_by_key(token, slope, q, cotangent, dk, dv)
    return built.get()


def _weigh(token: Token, q: Any, k: Any, use: Callable[[Any, Any, Any], None]) -> tuple[Any, Any]:
    """Return the largest score of a query, and the sum of the exponentials relative to it.

    For each key, call `use` with the key, its weight, and the factor that rescales earlier sums.
    """
    top, total = Number(token.of.dtype), Number(token.of.dtype)
    top.set(token.of.number(float("-inf")))
    with token.keys() as j:
        score = T.Bind(token.dot(q, token.number, k, j) * token.of.number(token.of.scale))
        higher = T.Bind(tirx.max(top.now, score))
        kept, weight = T.Bind(tirx.exp(top.now - higher)), T.Bind(tirx.exp(score - higher))
        top.set(higher)
        total.set(total.now * kept + weight)
        use(j, weight, kept)
    return T.Bind(top.now), T.Bind(total.now)


def _scaled(token: Token, factors: Any, i: Any, j: Any, value: Any) -> Any:
    """Multiply a value by the factor of query i and key j, if there are factors."""
    if factors is None:
        return value
    places = int(factors.shape[1]) // token.of.heads
    place = token.head * places + tirx.min(j - token.first, places - 1)
    return value * factors[i, place]
