# SPDX-License-Identifier: Apache-2.0
"""CPU kernels for causal attention with SiLU instead of a softmax, and its derivative.

A token's `bias` has a column for each distance to a key; larger distances use the last column. Rows
run in parallel; blocks of keys, heads and sums are serial.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.kernels.builder import buffer, kernel
from sparsetrain.ops.ragged.attention_blocks import (
    BLOCK,
    Attention,
    Block,
    Query,
    add_values_,
    arguments_of,
    attend_back_,
    clear_,
    clear_cotangents_,
    each_block,
    products_,
    queries,
    wide,
)
from sparsetrain.ops.ragged.row_kernels import put


@cache
def silu_attention_kernel(of: Attention, distances: int, chosen: bool = False) -> PrimFunc:
    """Compute ``out[i] = sum over j <= i of scale silu(q[i] . k[j] + bias[i, i - j]) v[j]``.

    Arguments: q, k, v (N, width), bias (N, distances), ends (B,) int64, out (N, width). With
    selected queries, q, bias and out have M rows, and `ends` is followed by the queries' places
    within rows (M,) and their ends by row (B,).
    """
    with kernel("ragged_silu_attention") as built:
        given = arguments_of(of, chosen, distances)
        q, k, v = given.qkv
        bias = given.bias
        out = buffer("out", (given.num_queries, of.width), of.dtype)

        def attend(block: Block, query: Query) -> None:
            scores, gates = _scores_(of, block, q, bias, query)
            with T.vectorized(0, wide(BLOCK)) as j:
                T.buffer_store(scores, scores[j] * gates[j], [j])
            add_values_(of, block, query, scores, v, out)

        with given.rows() as row, T.serial(0, wide(of.heads)) as h:
            clear_(of, row.first_query, row.queries, h, (out,))
            each_block(of, row, h, (k,), _each_query(of, attend))
    return built.get()


@cache
def silu_attention_cotangent_kernel(
    of: Attention, distances: int, chosen: bool = False
) -> PrimFunc:
    """Compute the cotangents of q, k, v and bias; see `silu_attention_kernel`.

    Arguments: q, k, v (N, width), bias (N, distances), ends (B,), cotangent (N, width), dq, dk, dv
    (N, width), dbias (N, distances). For chosen queries, cotangent, dq and dbias have length M.
    """
    with kernel("ragged_silu_attention_cotangent") as built:
        given = arguments_of(of, chosen, distances)
        q, k, v = given.qkv
        bias = given.bias
        lengths = {"cotangent": given.num_queries, "dq": given.num_queries}
        lengths |= dict.fromkeys(("dk", "dv"), given.tokens)
        arrays = (buffer(name, (n, of.width), of.dtype) for name, n in lengths.items())
        cotangent, *into = arrays
        dbias = buffer("dbias", (given.num_queries, distances), of.dtype)

        def weigh(block: Block, query: Query) -> tuple[Any, Any]:
            weights, gates = _scores_(of, block, q, bias, query)
            slopes = products_(of, block, cotangent, query, block.transposed[1])
            # silu'(s) = gate + s gate - s gate gate / scale
            with T.vectorized(0, wide(BLOCK)) as j:
                inner = 1 - gates[j] / of.number(of.scale)
                T.buffer_store(slopes, slopes[j] * gates[j] * (1 + weights[j] * inner), [j])
            with T.vectorized(0, wide(BLOCK)) as j:
                T.buffer_store(weights, weights[j] * gates[j], [j])
            with T.serial(0, tirx.min(query.place - block.start + 1, wide(BLOCK))) as j:
                n, column = _bias_of(block, bias, query, j)
                put(dbias, n, column, dbias[n, column] + slopes[j])
            return weights, slopes

        def back(block: Block) -> None:
            arrays = (q, k, cotangent), tuple(into)
            attend_back_(of, block, lambda query: weigh(block, query), *arrays)

        with given.rows() as row:
            with T.serial(0, row.queries) as i, T.vectorized(0, wide(distances)) as column:
                put(dbias, row.first_query + i, column, of.number(0))
            with T.serial(0, wide(of.heads)) as h:
                clear_cotangents_(of, row, h, tuple(into))
                each_block(of, row, h, (k, v), back)
    return built.get()


def _each_query(of: Attention, do: Callable[[Block, Query], None]) -> Callable[[Block], None]:
    return lambda block: queries(of, block, lambda query: do(block, query))


def _bias_of(block: Block, bias: Any, query: Query, j: Any) -> tuple[Any, Any]:
    """Return the index into the bias: the query, and the distance back to the key, at least 0."""
    distance = tirx.max(query.place - block.start - j, wide(0))
    return query.number, tirx.min(distance, bias.shape[1] - 1)


def _scores_(of: Attention, block: Block, q: Any, bias: Any, query: Query) -> tuple[Any, Any]:
    """Return the scores s of a query and a block, and ``scale sigmoid(s)``, 0 for later keys."""
    scores, gates = products_(of, block, q, query, block.transposed[0]), of.local(BLOCK)
    with T.serial(0, wide(BLOCK)) as j:
        T.buffer_store(scores, scores[j] + bias[_bias_of(block, bias, query, j)], [j])
    with T.vectorized(0, wide(BLOCK)) as j:
        gate = of.number(of.scale) / (of.number(1) + tirx.exp(-scores[j]))
        T.buffer_store(gates, tirx.Select(block.start + j <= query.place, gate, of.number(0)), [j])
    return scores, gates
