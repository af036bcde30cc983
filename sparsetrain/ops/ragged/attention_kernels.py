# SPDX-License-Identifier: Apache-2.0
"""CPU kernels for attention within ragged rows, and its derivative.

The largest score and the sum of exponentials are updated from one block of keys to the next
(Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867). The reverse pass recomputes the
scores, so no array grows with the square of a row's length.

Rows run in parallel; blocks and sums are serial.
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
    Arguments,
    Attention,
    Block,
    Query,
    Row,
    add_values_,
    arguments_of,
    attend_back_,
    clear_,
    clear_cotangents_,
    each_block,
    each_column,
    products_,
    queries,
    wide,
)
from sparsetrain.ops.ragged.row_kernels import put


@cache
def attention_kernel(of: Attention, places: int | None = None, chosen: bool = False) -> PrimFunc:
    """Compute ``out[i] = sum over j of f[i, j] softmax_j(scale q[i] . k[j]) v[j]``, and `stats`.

    Arguments: q, k, v (N, width), ends (B,) int64, factors f (N, heads places) if there are
    `places`, out (N, width), stats (N, 2 heads): the largest score of each token and head, and the
    sum of exponentials. With selected queries, q, f, out and stats have M rows, and `ends` is
    followed by the queries' places within rows (M,) and their ends by row (B,); a row without
    tokens gives 0.
    """
    with kernel("ragged_attention") as built:
        given = arguments_of(of, chosen)
        q, k, v = given.qkv
        factors = factors_of(of, given.num_queries, places)
        out = buffer("out", (given.num_queries, of.width), of.dtype)
        stats = buffer("stats", (given.num_queries, 2 * of.heads), of.dtype)

        def head(row: Row, h: Any) -> None:
            clear_(of, row.first_query, row.queries, h, (out,))
            each_block(
                of, row, h, (k,), lambda block: _attend_(of, block, q, v, factors, out, stats)
            )
            with T.serial(0, row.queries) as i:
                n = row.first_query + i
                total = T.Bind(stats[n, of.heads + h])
                if chosen:
                    total = tirx.Select(row.count > 0, total, of.number(1))
                each_column(of, h, lambda c, _: put(out, n, c, out[n, c] / total))

        _each_row(of, given, stats, head)
    return built.get()


@cache
def attention_cotangent_kernel(
    of: Attention, places: int | None = None, chosen: bool = False
) -> PrimFunc:
    """Compute the cotangents of q, k and v; see `attention_kernel`.

    Arguments: q, k, v (N, width), ends (B,), factors, out, cotangent (N, width), dq, dk, dv (N,
    width), stats (N, 2 heads) as scratch. With selected queries, out, cotangent, dq and stats have
    M rows.
    """
    with kernel("ragged_attention_cotangent") as built:
        given = arguments_of(of, chosen)
        q, k, v = given.qkv
        factors = factors_of(of, given.num_queries, places)
        lengths = {
            "out": given.num_queries,
            "cotangent": given.num_queries,
            "dq": given.num_queries,
        }
        lengths |= dict.fromkeys(("dk", "dv"), given.tokens)
        arrays = (buffer(name, (n, of.width), of.dtype) for name, n in lengths.items())
        out, cotangent, dq, dk, dv = arrays
        stats = buffer("stats", (given.num_queries, 2 * of.heads), of.dtype)

        def head(row: Row, h: Any) -> None:
            clear_cotangents_(of, row, h, (dq, dk, dv))
            each_block(of, row, h, (k,), lambda block: _measure_(of, block, q, stats))
            with T.serial(
                0, row.queries
            ) as i:  # from here on, stats hold the log of the sum, and cotangent . out
                n = T.Bind(row.first_query + i)
                put(stats, n, h, stats[n, h] + tirx.log(stats[n, of.heads + h]))
                put(stats, n, of.heads + h, _dot(of, h, cotangent, out, n))
            each_block(
                of,
                row,
                h,
                (k, v),
                lambda block: attend_back_(
                    of,
                    block,
                    lambda query: _slopes_(of, block, q, cotangent, factors, stats, query),
                    (q, k, cotangent),
                    (dq, dk, dv),
                ),
            )

        _each_row(of, given, stats, head)
    return built.get()


def _each_row(
    of: Attention, given: Arguments, stats: Any, head: Callable[[Row, Any], None]
) -> None:
    with given.rows() as row, T.serial(0, wide(of.heads)) as h:
        with T.serial(0, row.queries) as i:
            put(stats, row.first_query + i, h, of.number(float("-inf")))
            put(stats, row.first_query + i, of.heads + h, of.number(0))
        head(row, h)


def _scores_(of: Attention, block: Block, q: Any, query: Query) -> Any:
    """Return the scores of a query and a block, -inf for keys that it does not attend to."""
    scores = products_(of, block, q, query, block.transposed[0])
    last = T.Bind(query.place if of.causal else block.count - 1)
    with T.vectorized(0, wide(BLOCK)) as j:
        seen = block.start + j <= last
        value = tirx.Select(seen, scores[j] * of.number(of.scale), of.number(float("-inf")))
        T.buffer_store(scores, value, [j])
    return scores


def _weigh_(of: Attention, block: Block, stats: Any, scores: Any, query: Query) -> Any:
    """Turn scores into weights and store them; return the factor that rescales earlier sums."""
    n = T.Bind(query.number)
    state = of.local(2)
    before = stats[n, block.head]
    T.buffer_store(state, tirx.max(before, _pairs(tirx.max, scores)), [0])
    T.buffer_store(state, tirx.exp(before - state[0]), [1])
    with T.vectorized(0, wide(BLOCK)) as j:
        T.buffer_store(scores, tirx.exp(scores[j] - state[0]), [j])
    put(stats, n, block.head, state[0])
    total = stats[n, of.heads + block.head] * state[1] + _pairs(lambda a, b: a + b, scores)
    put(stats, n, of.heads + block.head, total)
    return state[1]


def factors_of(of: Attention, tokens: Any, places: int | None) -> Any:
    """Declare the argument of the factors, if there are any."""
    return None if places is None else buffer("factors", (tokens, of.heads * places), of.dtype)


def _multiply_(of: Attention, block: Block, array: Any, factors: Any, query: Query) -> None:
    """Multiply a query's values for the keys of a block by their factors."""
    if factors is None:
        return
    places = int(factors.shape[1]) // of.heads
    with T.serial(0, wide(BLOCK)) as j:
        place = block.head * places + tirx.min(block.start + j, places - 1)
        T.buffer_store(array, array[j] * factors[query.number, place], [j])


def _slopes_(
    of: Attention, block: Block, q: Any, cotangent: Any, factors: Any, stats: Any, query: Query
) -> tuple[Any, Any]:
    """Return a query's weights of the values, and the loss's derivatives by the products."""
    n = T.Bind(query.number)
    weights = _scores_(of, block, q, query)
    slopes = products_(of, block, cotangent, query, block.transposed[1])
    _multiply_(of, block, slopes, factors, query)
    logarithm, mean = T.Bind(stats[n, block.head]), T.Bind(stats[n, of.heads + block.head])
    with T.vectorized(0, wide(BLOCK)) as j:
        T.buffer_store(weights, tirx.exp(weights[j] - logarithm), [j])
    with T.vectorized(0, wide(BLOCK)) as j:
        slope = weights[j] * (slopes[j] - mean) * of.number(of.scale)
        T.buffer_store(slopes, slope, [j])
    _multiply_(of, block, weights, factors, query)
    return weights, slopes


def _measure_(of: Attention, block: Block, q: Any, stats: Any) -> None:
    queries(
        of, block, lambda query: _weigh_(of, block, stats, _scores_(of, block, q, query), query)
    )


def _attend_(
    of: Attention, block: Block, q: Any, v: Any, factors: Any, out: Any, stats: Any
) -> None:
    def attend(query: Query) -> None:
        weights = _scores_(of, block, q, query)
        factor = _weigh_(of, block, stats, weights, query)
        _multiply_(of, block, weights, factors, query)
        add_values_(of, block, query, weights, v, out, lambda before: before * factor)

    queries(of, block, attend)


def _dot(of: Attention, h: Any, left: Any, right: Any, n: Any) -> Any:
    total = of.local(1)
    T.buffer_store(total, of.number(0), [0])
    with T.serial(0, wide(of.size)) as d:
        c = h * of.size + d
        T.buffer_store(total, total[0] + left[n, c] * right[n, c], [0])
    return total[0]


def _pairs(combine: Callable[[Any, Any], Any], numbers: Any) -> Any:
    """Combine all numbers of a block pairwise."""
    parts = [numbers[j] for j in range(BLOCK)]
    while len(parts) > 1:
        parts = [combine(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
