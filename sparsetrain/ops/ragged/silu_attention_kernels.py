# SPDX-License-Identifier: Apache-2.0
"""CPU kernels of causal attention with SiLU in place of the softmax, and its derivative.

A token's `bias` has a column for each distance to a key; the last is that of all larger ones too.
What is parallel: rows. Blocks of keys follow one another, and so do heads and sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.ops.ragged.attention_blocks import (
    BLOCK,
    Attention,
    Block,
    add_values_,
    attend_back_,
    clear_,
    each_block,
    products_,
    queries,
    wide,
)
from sparsetrain.ops.ragged.kernels import each_row, put


@cache
def silu_attention_kernel(of: Attention, distances: int) -> PrimFunc:
    """``out[i] = sum over j <= i of scale silu(q[i] . k[j] + bias[i, i - j]) v[j]``.

    Arguments: q, k, v (N, width), bias (N, distances), ends (B,) int64, out (N, width).
    """
    with kernel("ragged_silu_attention") as built:
        tokens, rows = extents(2)
        q, k, v = (buffer(name, (tokens, of.width), of.dtype) for name in "qkv")
        bias = buffer("bias", (tokens, distances), of.dtype)
        ends = buffer("ends", (rows,), "int64")
        out = buffer("out", (tokens, of.width), of.dtype)

        def attend(block: Block, i: Any) -> None:
            scores, gates = _scores_(of, block, q, bias, i)
            with T.vectorized(0, wide(BLOCK)) as j:
                T.buffer_store(scores, scores[j] * gates[j], [j])
            add_values_(of, block, i, scores, v, out)

        with each_row(ends) as (_, first, count), T.serial(0, wide(of.heads)) as h:
            clear_(of, first, count, h, (out,))
            each_block(of, first, count, h, (k,), _each_query(of, attend))
    return built.get()


@cache
def silu_attention_cotangent_kernel(of: Attention, distances: int) -> PrimFunc:
    """Cotangents of q, k, v and bias; see `silu_attention_kernel`.

    Arguments: q, k, v (N, width), bias (N, distances), ends (B,), cotangent (N, width), dq, dk, dv
    (N, width), dbias (N, distances).
    """
    with kernel("ragged_silu_attention_cotangent") as built:
        tokens, rows = extents(2)
        q, k, v = (buffer(name, (tokens, of.width), of.dtype) for name in "qkv")
        bias = buffer("bias", (tokens, distances), of.dtype)
        ends = buffer("ends", (rows,), "int64")
        names = ("cotangent", "dq", "dk", "dv")
        cotangent, *into = (buffer(name, (tokens, of.width), of.dtype) for name in names)
        dbias = buffer("dbias", (tokens, distances), of.dtype)

        def weigh(block: Block, i: Any) -> tuple[Any, Any]:
            weights, gates = _scores_(of, block, q, bias, i)
            slopes = products_(of, block, cotangent, i, block.transposed[1])
            # silu'(s) = gate + s gate - s gate gate / scale
            with T.vectorized(0, wide(BLOCK)) as j:
                inner = 1 - gates[j] / of.number(of.scale)
                T.buffer_store(slopes, slopes[j] * gates[j] * (1 + weights[j] * inner), [j])
            with T.vectorized(0, wide(BLOCK)) as j:
                T.buffer_store(weights, weights[j] * gates[j], [j])
            with T.serial(0, tirx.min(i - block.start + 1, wide(BLOCK))) as j:
                n, column = _bias_of(block, bias, i, j)
                put(dbias, n, column, dbias[n, column] + slopes[j])
            return weights, slopes

        def back(block: Block) -> None:
            arrays = (q, k, cotangent), tuple(into)
            attend_back_(of, block, lambda i: weigh(block, i), *arrays)

        with each_row(ends) as (_, first, count):
            with T.serial(0, count) as i, T.vectorized(0, wide(distances)) as column:
                put(dbias, first + i, column, of.number(0))
            with T.serial(0, wide(of.heads)) as h:
                clear_(of, first, count, h, tuple(into))
                each_block(of, first, count, h, (k, v), back)
    return built.get()


def _each_query(of: Attention, do: Callable[[Block, Any], None]) -> Callable[[Block], None]:
    return lambda block: queries(of, block, lambda i: do(block, i))


def _bias_of(block: Block, bias: Any, i: Any, j: Any) -> tuple[Any, Any]:
    """Token and column of the bias of a query and a key, which a query does not see before it."""
    distance = tirx.max(i - block.start - j, wide(0))
    return block.first + i, tirx.min(distance, bias.shape[1] - 1)


def _scores_(of: Attention, block: Block, q: Any, bias: Any, i: Any) -> tuple[Any, Any]:
    """Return the scores s of a query and a block, and ``scale sigmoid(s)``, 0 for an unseen key."""
    scores, gates = products_(of, block, q, i, block.transposed[0]), of.local(BLOCK)
    with T.serial(0, wide(BLOCK)) as j:
        T.buffer_store(scores, scores[j] + bias[_bias_of(block, bias, i, j)], [j])
    with T.vectorized(0, wide(BLOCK)) as j:
        gate = of.number(of.scale) / (of.number(1) + tirx.exp(-scores[j]))
        T.buffer_store(gates, tirx.Select(block.start + j <= i, gate, of.number(0)), [j])
    return scores, gates
