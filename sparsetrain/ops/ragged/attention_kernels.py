# SPDX-License-Identifier: Apache-2.0
"""CPU kernels of attention within ragged rows, and its derivative.

Keys are taken in blocks of `BLOCK` tokens, which lie transposed in a local array: the scores of one
query with a block are a vector. The largest score so far and the sum of exponentials go from block
to block (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867). The reverse pass computes
the scores again, so no array is longer than the tokens.

What is parallel: rows. Blocks follow one another, and so do the sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.ops.ragged.kernels import columns, each_row, put

BLOCK = 8


class Attention(NamedTuple):
    """Attention of tokens (N, width), of which each head has its share of the columns."""

    width: int
    heads: int
    causal: bool
    scale: float
    dtype: str

    @property
    def size(self) -> int:
        """Columns of a head."""
        return self.width // self.heads

    def number(self, value: float) -> Any:
        """A constant."""
        return tirx.const(value, self.dtype)

    def local(self, *shape: int) -> Any:
        """An array of one thread."""
        return T.alloc_buffer(shape, self.dtype, scope="local")


@cache
def attention_kernel(of: Attention) -> PrimFunc:
    """``out[i] = sum over j of softmax_j(scale q[i] . k[j]) v[j]``; also writes `stats`.

    Arguments: q, k, v (N, width), ends (B,) int64, out (N, width), stats (N, 2 heads): the largest
    score of each token and head, and the sum of the exponentials.
    """
    with kernel("ragged_attention") as built:
        tokens, rows = extents(2)
        q, k, v = (buffer(name, (tokens, of.width), of.dtype) for name in "qkv")
        ends = buffer("ends", (rows,), "int64")
        out = buffer("out", (tokens, of.width), of.dtype)
        stats = buffer("stats", (tokens, 2 * of.heads), of.dtype)

        def head(first: Any, count: Any, h: Any) -> None:
            _clear_(of, first, count, h, (out,))
            _each_block(
                of, first, count, h, (k,), lambda block: _attend_(of, block, q, v, out, stats)
            )
            with T.serial(0, count) as i:
                total = T.Bind(stats[first + i, of.heads + h])
                _columns(of, h, lambda c, _: put(out, first + i, c, out[first + i, c] / total))

        _each_row(of, ends, stats, head)
    return built.get()


@cache
def attention_cotangent_kernel(of: Attention) -> PrimFunc:
    """Cotangents of q, k and v; see `attention_kernel`.

    Arguments: q, k, v (N, width), ends (B,), out, cotangent (N, width), dq, dk, dv (N, width),
    stats (N, 2 heads), which it works in.
    """
    with kernel("ragged_attention_cotangent") as built:
        tokens, rows = extents(2)
        q, k, v = (buffer(name, (tokens, of.width), of.dtype) for name in "qkv")
        ends = buffer("ends", (rows,), "int64")
        names = ("out", "cotangent", "dq", "dk", "dv")
        out, cotangent, dq, dk, dv = (buffer(n, (tokens, of.width), of.dtype) for n in names)
        stats = buffer("stats", (tokens, 2 * of.heads), of.dtype)

        def head(first: Any, count: Any, h: Any) -> None:
            _clear_(of, first, count, h, (dq, dk, dv))
            _each_block(of, first, count, h, (k,), lambda block: _measure_(of, block, q, stats))
            with T.serial(0, count) as i:  # from here on: log of the sum, and cotangent . out
                n = T.Bind(first + i)
                put(stats, n, h, stats[n, h] + tirx.log(stats[n, of.heads + h]))
                put(stats, n, of.heads + h, _dot(of, h, cotangent, out, n))
            _each_block(
                of,
                first,
                count,
                h,
                (k, v),
                lambda block: _attend_back_(of, block, q, k, cotangent, (dq, dk, dv), stats),
            )

        _each_row(of, ends, stats, head)
    return built.get()


class _Block(NamedTuple):
    """Tokens `start` to `start` + BLOCK of a row, as keys of one head."""

    first: Any  # token of the row
    count: Any  # tokens of the row
    head: Any
    start: Any  # within the row
    transposed: list[Any]  # (size, BLOCK) of each array that was asked for


def _each_row(of: Attention, ends: Any, stats: Any, head: Callable[[Any, Any, Any], None]) -> None:
    with each_row(ends) as (_, begin, count), T.serial(0, wide(of.heads)) as h:
        with T.serial(0, count) as i:
            put(stats, begin + i, h, of.number(float("-inf")))
            put(stats, begin + i, of.heads + h, of.number(0))
        head(begin, count, h)


def _each_block(
    of: Attention,
    first: Any,
    count: Any,
    h: Any,
    keys: tuple[Any, ...],
    do: Callable[[_Block], None],
) -> None:
    with T.serial(0, tirx.ceildiv(count, BLOCK)) as number:
        start = T.Bind(number * BLOCK)
        copies = []
        for array in keys:
            copies.append(of.local(of.size, BLOCK))
            with T.serial(0, wide(BLOCK)) as j, T.serial(0, wide(of.size)) as d:
                token = first + tirx.min(start + j, count - 1)
                T.buffer_store(copies[-1], array[token, h * of.size + d], [d, j])
        do(_Block(first, count, h, start, copies))


def _queries(of: Attention, block: _Block, do: Callable[[Any], None]) -> None:
    """For each token of the row that sees a block."""
    begin = block.start if of.causal else wide(0)
    with T.serial(0, block.count - begin) as i:
        do(T.Bind(begin + i))


def _products_(of: Attention, block: _Block, rows: Any, i: Any, keys: Any) -> Any:
    """Return rows[i] . key for the keys of a block."""
    scores = of.local(BLOCK)
    with T.vectorized(0, wide(BLOCK)) as j:
        T.buffer_store(scores, of.number(0), [j])
    with T.serial(0, wide(of.size)) as d, T.vectorized(0, wide(BLOCK)) as j:
        value = rows[block.first + i, block.head * of.size + d]
        T.buffer_store(scores, scores[j] + value * keys[d, j], [j])
    return scores


def _scores_(of: Attention, block: _Block, q: Any, i: Any) -> Any:
    """Return the scores of a query and a block, -inf where it does not see a key."""
    scores = _products_(of, block, q, i, block.transposed[0])
    last = T.Bind(i if of.causal else block.count - 1)
    with T.vectorized(0, wide(BLOCK)) as j:
        seen = block.start + j <= last
        value = tirx.Select(seen, scores[j] * of.number(of.scale), of.number(float("-inf")))
        T.buffer_store(scores, value, [j])
    return scores


def _weigh_(of: Attention, block: _Block, stats: Any, scores: Any, i: Any) -> Any:
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


def _measure_(of: Attention, block: _Block, q: Any, stats: Any) -> None:
    _queries(of, block, lambda i: _weigh_(of, block, stats, _scores_(of, block, q, i), i))


def _attend_(of: Attention, block: _Block, q: Any, v: Any, out: Any, stats: Any) -> None:
    def attend(i: Any) -> None:
        weights = _scores_(of, block, q, i)
        factor = _weigh_(of, block, stats, weights, i)
        n = T.Bind(block.first + i)

        def column(c: Any, _: Any) -> None:
            kept = out[n, c] * factor
            for j in range(BLOCK):
                kept = kept + weights[j] * v[_token(block, j), c]
            put(out, n, c, kept)

        _columns(of, block.head, column)

    _queries(of, block, attend)


def _attend_back_(
    of: Attention, block: _Block, q: Any, k: Any, cotangent: Any, into: Any, stats: Any
) -> None:
    dq, dk, dv = into
    by_key = [of.local(BLOCK, of.size) for _ in range(2)]  # of dk and dv
    for array in by_key:
        with T.serial(0, wide(BLOCK)) as j, T.serial(0, wide(of.size)) as d:
            T.buffer_store(array, of.number(0), [j, d])

    def attend(i: Any) -> None:
        n = T.Bind(block.first + i)
        weights = _scores_(of, block, q, i)
        slopes = _products_(of, block, cotangent, i, block.transposed[1])
        logarithm, mean = T.Bind(stats[n, block.head]), T.Bind(stats[n, of.heads + block.head])
        with T.vectorized(0, wide(BLOCK)) as j:
            T.buffer_store(weights, tirx.exp(weights[j] - logarithm), [j])
        with T.vectorized(0, wide(BLOCK)) as j:
            slope = weights[j] * (slopes[j] - mean) * of.number(of.scale)
            T.buffer_store(slopes, slope, [j])

        def column(c: Any, d: Any) -> None:
            total = dq[n, c]
            for j in range(BLOCK):
                total = total + slopes[j] * k[_token(block, j), c]
            put(dq, n, c, total)
            for j in range(BLOCK):
                put(by_key[0], j, d, by_key[0][j, d] + slopes[j] * q[n, c])
                put(by_key[1], j, d, by_key[1][j, d] + weights[j] * cotangent[n, c])

        _columns(of, block.head, column)

    _queries(of, block, attend)
    for array, target in zip(by_key, (dk, dv), strict=True):
        with T.serial(0, tirx.min(block.count - block.start, wide(BLOCK))) as j:
            _copy_(of, block, array, target, j)


def _copy_(of: Attention, block: _Block, source: Any, target: Any, j: Any) -> None:
    """Copy a row of a block's local array to its token of `target`."""
    token = T.Bind(block.first + block.start + j)
    _columns(of, block.head, lambda c, d: put(target, token, c, source[j, d]))


def _token(block: _Block, j: int) -> Any:
    """Number of a key; beyond the row the last one, whose weight is 0."""
    return block.first + tirx.min(block.start + j, block.count - 1)


def _columns(of: Attention, h: Any, do: Callable[[Any, Any], None]) -> None:
    """For each column of a head, and its number within the head; in vectors."""
    columns(of.size, lambda d: do(h * of.size + d, d))


def _clear_(of: Attention, first: Any, count: Any, h: Any, arrays: tuple[Any, ...]) -> None:
    with T.serial(0, count) as i:

        def clear(c: Any, _: Any) -> None:
            for array in arrays:
                put(array, first + i, c, of.number(0))

        _columns(of, h, clear)


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


def wide(value: int) -> Any:
    """The number as int64, which indices are."""
    return tirx.const(value, "int64")
