# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels of causal SiLU attention and its derivative, with the CPU kernels' arguments."""

from __future__ import annotations

from functools import cache
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.backends.cuda.attention.tokens import (
    Sum,
    Token,
    each_token,
    row_of,
    write_by_key,
    write_by_query,
)
from sparsetrain.backends.cuda.sparse.parts import each_of
from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.kernels.loops import Number
from sparsetrain.ops.ragged.attention_blocks import Attention, wide
from sparsetrain.ops.ragged.row_kernels import first_of, put


@cache
def silu_attention_kernel(of: Attention, distances: int) -> PrimFunc:
    """See `ops.ragged.silu_attention_kernels.silu_attention_kernel`."""
    with kernel("ragged_silu_attention") as built:
        tokens, rows = extents(2)
        q, k, v = (buffer(name, (tokens, of.width), of.dtype) for name in "qkv")
        bias = buffer("bias", (tokens, distances), of.dtype)
        ends = buffer("ends", (rows,), "int64")
        out = buffer("out", (tokens, of.width), of.dtype)
        with each_token(of, ends, tokens) as token:
            values = Sum(token)
            with token.keys() as j:
                score, gate = _score(token, q, k, bias, token.number, j)
                values.add(T.Bind(score * gate), v, j)
            values.write(out)
    return built.get()


@cache
def silu_attention_cotangent_kernel(of: Attention, distances: int) -> PrimFunc:
    """See `ops.ragged.silu_attention_kernels.silu_attention_cotangent_kernel`."""
    with kernel("ragged_silu_attention_cotangent") as built:
        tokens, rows = extents(2)
        q, k, v = (buffer(name, (tokens, of.width), of.dtype) for name in "qkv")
        bias = buffer("bias", (tokens, distances), of.dtype)
        ends = buffer("ends", (rows,), "int64")
        names = ("cotangent", "dq", "dk", "dv")
        cotangent, dq, dk, dv = (buffer(name, (tokens, of.width), of.dtype) for name in names)
        dbias = buffer("dbias", (tokens, distances), of.dtype)

        def slope(token: Token, i: Any, j: Any) -> tuple[Any, Any]:
            """Return d(loss) / d(score of query i and key j), and the weight of the key's value."""
            score, gate = _score(token, q, k, bias, i, j)
            # silu'(s) = gate + s gate - s gate gate / scale
            inner = 1 + score * (1 - gate / of.number(of.scale))
            return T.Bind(token.dot(cotangent, i, v, j) * gate * inner), T.Bind(score * gate)

        with each_token(of, ends, tokens) as token:
            write_by_query(token, slope, k, dq)
        with each_token(of, ends, tokens) as token:
            write_by_key(token, slope, q, cotangent, dk, dv)
        with each_of(tokens * distances) as thread:
            n = T.Bind(tirx.floordiv(thread, wide(distances)))
            distance = T.Bind(tirx.floormod(thread, wide(distances)))
            first, total = first_of(ends, row_of(ends, n)), Number(of.dtype)
            nearest = T.Bind(n - distance)
            keys = tirx.if_then_else(distance < distances - 1, wide(1), nearest - first + 1)
            keys = T.Bind(tirx.if_then_else(nearest < first, wide(0), keys))
            with T.serial(0, wide(of.heads)) as h, T.serial(0, keys) as m:
                token = Token(of, n, h, first, n + 1)
                total.add(slope(token, n, T.Bind(nearest - m))[0])
            put(dbias, n, distance, total.now)
    return built.get()


def _score(token: Token, q: Any, k: Any, bias: Any, i: Any, j: Any) -> tuple[Any, Any]:
    """Return the score s of a query and a key, and ``scale sigmoid(s)``."""
    column = tirx.min(i - j, bias.shape[1] - 1)
    score = T.Bind(token.dot(q, i, k, j) + bias[i, column])
    number = token.of.number
    return score, T.Bind(number(token.of.scale) / (number(1) + tirx.exp(-score)))
