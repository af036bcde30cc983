# SPDX-License-Identifier: Apache-2.0
"""CPU kernels of attention within ragged rows, and its derivative.

The largest score so far and the sum of exponentials go from block of keys to block (Milakov and
Gimelshein 2018, https://arxiv.org/abs/1805.02867). The reverse pass computes the scores again, so
no array is longer than the tokens.

What is parallel: rows. Blocks follow one another, and so do the sums.
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
    each_column,
    products_,
    queries,
    wide,
)
from sparsetrain.ops.ragged.kernels import each_row, put


@cache
def attention_kernel(of: Attention, places: int | None = None) -> PrimFunc:
    """``out[i] = sum over j of f[i, j] softmax_j(scale q[i] . k[j]) v[j]``; also writes `stats`.

    Arguments: q, k, v (N, width), ends (B,) int64, with `places` the factors f (N, heads places),
    out (N, width), stats (N, 2 heads): the largest score of each token and head, and the sum of the
    exponentials.
    """
    with kernel("ragged_attention") as built:
        tokens, rows = extents(2)
        q, k, v = (buffer(name, (tokens, of.width), of.dtype) for name in "qkv")
        ends = buffer("ends", (rows,), "int64")
        factors = factors_of(of, tokens, places)
        out = buffer("out", (tokens, of.width), of.dtype)
        stats = buffer("stats", (tokens, 2 * of.heads), of.dtype)

        def head(first: Any, count: Any, h: Any) -> None:
            clear_(of, first, count, h, (out,))
            each_block(
                of,
                first,
                count,
                h,
                (k,),
                lambda block: _attend_(of, block, q, v, factors, out, stats),
            )
            with T.serial(0, count) as i:
                total = T.Bind(stats[first + i, of.heads + h])
                each_column(of, h, lambda c, _: put(out, first + i, c, out[first + i, c] / total))

        _each_row(of, ends, stats, head)
    return built.get()


@cache
def attention_cotangent_kernel(of: Attention, places: int | None = None) -> PrimFunc:
    """Cotangents of q, k and v; see `attention_kernel`.

    Arguments: q, k, v (N, width), ends (B,), factors, out, cotangent (N, width), dq, dk, dv
    (N, width), stats (N, 2 heads), which it works in.
    """
    with kernel("ragged_attention_cotangent") as built:
        tokens, rows = extents(2)
        q, k, v = (buffer(name, (tokens, of.width), of.dtype) for name in "qkv")
        ends = buffer("ends", (rows,), "int64")
        factors = factors_of(of, tokens, places)
        names = ("out", "cotangent", "dq", "dk", "dv")
        out, cotangent, dq, dk, dv = (buffer(n, (tokens, of.width), of.dtype) for n in names)
        stats = buffer("stats", (tokens, 2 * of.heads), of.dtype)

        def head(first: Any, count: Any, h: Any) -> None:
            clear_(of, first, count, h, (dq, dk, dv))
            each_block(of, first, count, h, (k,), lambda block: _measure_(of, block, q, stats))
            with T.serial(0, count) as i:  # from here on: log of the sum, and cotangent . out
                n = T.Bind(first + i)
                put(stats, n, h, stats[n, h] + tirx.log(stats[n, of.heads + h]))
                put(stats, n, of.heads + h, _dot(of, h, cotangent, out, n))
            each_block(
                of,
                first,
                count,
                h,
                (k, v),
                lambda block: attend_back_(
                    of,
                    block,
                    lambda i: _slopes_(of, block, q, cotangent, factors, stats, i),
                    (q, k, cotangent),
                    (dq, dk, dv),
                ),
            )

        _each_row(of, ends, stats, head)
    return built.get()


def _each_row(of: Attention, ends: Any, stats: Any, head: Callable[[Any, Any, Any], None]) -> None:
    with each_row(ends) as (_, begin, count), T.serial(0, wide(of.heads)) as h:
        with T.serial(0, count) as i:
            put(stats, begin + i, h, of.number(float("-inf")))
            put(stats, begin + i, of.heads + h, of.number(0))
        head(begin, count, h)


def _scores_(of: Attention, block: Block, q: Any, i: Any) -> Any:
    """Return the scores of a query and a block, -inf where it does not see a key."""
    scores = products_(of, block, q, i, block.transposed[0])
    last = T.Bind(i if of.causal else block.count - 1)
    with T.vectorized(0, wide(BLOCK)) as j:
        seen = block.start + j <= last
        value = tirx.Select(seen, scores[j] * of.number(of.scale), of.number(float("-inf")))
        T.buffer_store(scores, value, [j])
    return scores


def _weigh_(of: Attention, block: Block, stats: Any, scores: Any, i: Any) -> Any:
    """Make weights of scores, and note them; return the factor of what was summed before."""
    n = T.Bind(block.first + i)
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
    """The argument of the factors, if there are any."""
    return None if places is None else buffer("factors", (tokens, of.heads * places), of.dtype)


def _multiply_(of: Attention, block: Block, array: Any, factors: Any, i: Any) -> None:
    """Multiply what a query has for each key of a block."""
    if factors is None:
        return
    places = int(factors.shape[1]) // of.heads
    with T.serial(0, wide(BLOCK)) as j:
        place = block.head * places + tirx.min(block.start + j, places - 1)
        T.buffer_store(array, array[j] * factors[block.first + i, place], [j])


def _slopes_(
    of: Attention, block: Block, q: Any, cotangent: Any, factors: Any, stats: Any, i: Any
) -> tuple[Any, Any]:
    """Return a query's factors of the values, and the loss's derivatives by the products."""
    n = T.Bind(block.first + i)
    weights = _scores_(of, block, q, i)
    slopes = products_(of, block, cotangent, i, block.transposed[1])
    _multiply_(of, block, slopes, factors, i)
    logarithm, mean = T.Bind(stats[n, block.head]), T.Bind(stats[n, of.heads + block.head])
    with T.vectorized(0, wide(BLOCK)) as j:
        T.buffer_store(weights, tirx.exp(weights[j] - logarithm), [j])
    with T.vectorized(0, wide(BLOCK)) as j:
        slope = weights[j] * (slopes[j] - mean) * of.number(of.scale)
        T.buffer_store(slopes, slope, [j])
    _multiply_(of, block, weights, factors, i)
    return weights, slopes


def _measure_(of: Attention, block: Block, q: Any, stats: Any) -> None:
    queries(of, block, lambda i: _weigh_(of, block, stats, _scores_(of, block, q, i), i))


def _attend_(
    of: Attention, block: Block, q: Any, v: Any, factors: Any, out: Any, stats: Any
) -> None:
    def attend(i: Any) -> None:
        weights = _scores_(of, block, q, i)
        factor = _weigh_(of, block, stats, weights, i)
        _multiply_(of, block, weights, factors, i)
        add_values_(of, block, i, weights, v, out, lambda before: before * factor)

    queries(of, block, attend)


def _dot(of: Attention, h: Any, left: Any, right: Any, n: Any) -> Any:
    total = of.local(1)
    T.buffer_store(total, of.number(0), [0])
    with T.serial(0, wide(of.size)) as d:
        c = h * of.size + d
        T.buffer_store(total, total[0] + left[n, c] * right[n, c], [0])
    return total[0]


def _pairs(combine: Callable[[Any, Any], Any], numbers: Any) -> Any:
    """All numbers of a block, combined in pairs."""
    parts = [numbers[j] for j in range(BLOCK)]
    while len(parts) > 1:
        parts = [combine(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
