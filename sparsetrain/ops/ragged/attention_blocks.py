# SPDX-License-Identifier: Apache-2.0
"""Blocks of keys, which kernels of attention within ragged rows go through.

The keys of a block lie transposed in a local array, so that the products of one query with a block
are a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.loops import columns
from sparsetrain.ops.ragged.kernels import put

BLOCK = 8  # tokens


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


class Block(NamedTuple):
    """Tokens `start` to `start` + BLOCK of a row, as keys of one head."""

    first: Any  # token of the row
    count: Any  # tokens of the row
    head: Any
    start: Any  # within the row
    transposed: list[Any]  # (size, BLOCK) of each array that was asked for


def each_block(
    of: Attention,
    first: Any,
    count: Any,
    h: Any,
    keys: tuple[Any, ...],
    do: Callable[[Block], None],
) -> None:
    """For each block of a row's keys, with copies of the `keys` arrays, which may be several."""
    with T.serial(0, tirx.ceildiv(count, BLOCK)) as number:
        start = T.Bind(number * BLOCK)
        copies = []
        for array in keys:
            copies.append(of.local(of.size, BLOCK))
            with T.serial(0, wide(BLOCK)) as j, T.serial(0, wide(of.size)) as d:
                token = first + tirx.min(start + j, count - 1)
                T.buffer_store(copies[-1], array[token, h * of.size + d], [d, j])
        do(Block(first, count, h, start, copies))


def queries(of: Attention, block: Block, do: Callable[[Any], None]) -> None:
    """For each token of the row that sees a block."""
    begin = block.start if of.causal else wide(0)
    with T.serial(0, block.count - begin) as i:
        do(T.Bind(begin + i))


def products_(of: Attention, block: Block, rows: Any, i: Any, keys: Any) -> Any:
    """Return rows[i] . key for the keys of a block."""
    scores = of.local(BLOCK)
    with T.vectorized(0, wide(BLOCK)) as j:
        T.buffer_store(scores, of.number(0), [j])
    with T.serial(0, wide(of.size)) as d, T.vectorized(0, wide(BLOCK)) as j:
        value = rows[block.first + i, block.head * of.size + d]
        T.buffer_store(scores, scores[j] + value * keys[d, j], [j])
    return scores


def add_values_(
    of: Attention,
    block: Block,
    i: Any,
    weights: Any,
    v: Any,
    out: Any,
    kept: Callable[[Any], Any] = lambda before: before,
) -> None:
    """Add the weighted values of a block to what is kept of a query's output."""
    n = T.Bind(block.first + i)

    def column(c: Any, _: Any) -> None:
        total = kept(out[n, c])
        for j in range(BLOCK):
            total = total + weights[j] * v[_token(block, j), c]
        put(out, n, c, total)

    each_column(of, block.head, column)


def attend_back_(
    of: Attention,
    block: Block,
    weigh: Callable[[Any], tuple[Any, Any]],
    inputs: tuple[Any, Any, Any],
    into: tuple[Any, Any, Any],
) -> None:
    """Add to the cotangents of q, k and v what a block gives.

    `weigh` returns the weights of a query, and the derivatives of the loss by its products with the
    keys. `inputs` are q, k and the cotangent of the output.
    """
    q, k, cotangent = inputs
    dq, dk, dv = into
    by_key = [of.local(BLOCK, of.size) for _ in range(2)]  # of dk and dv
    for array in by_key:
        with T.serial(0, wide(BLOCK)) as j, T.serial(0, wide(of.size)) as d:
            T.buffer_store(array, of.number(0), [j, d])

    def attend(i: Any) -> None:
        n = T.Bind(block.first + i)
        weights, slopes = weigh(i)

        def column(c: Any, d: Any) -> None:
            total = dq[n, c]
            for j in range(BLOCK):
                total = total + slopes[j] * k[_token(block, j), c]
            put(dq, n, c, total)
            for j in range(BLOCK):
                put(by_key[0], j, d, by_key[0][j, d] + slopes[j] * q[n, c])
                put(by_key[1], j, d, by_key[1][j, d] + weights[j] * cotangent[n, c])

        each_column(of, block.head, column)

    queries(of, block, attend)
    for array, target in zip(by_key, (dk, dv), strict=True):
        with T.serial(0, tirx.min(block.count - block.start, wide(BLOCK))) as j:
            _copy_(of, block, array, target, j)


def _copy_(of: Attention, block: Block, source: Any, target: Any, j: Any) -> None:
    """Copy a row of a block's local array to its token of `target`."""
    token = T.Bind(block.first + block.start + j)
    each_column(of, block.head, lambda c, d: put(target, token, c, source[j, d]))


def _token(block: Block, j: int) -> Any:
    """Number of a key; beyond the row the last one, whose weight is 0."""
    return block.first + tirx.min(block.start + j, block.count - 1)


def each_column(of: Attention, h: Any, do: Callable[[Any, Any], None]) -> None:
    """For each column of a head, and its number within the head; in vectors."""
    columns(of.size, lambda d: do(h * of.size + d, d))


def clear_(of: Attention, first: Any, count: Any, h: Any, arrays: tuple[Any, ...]) -> None:
    """Write 0 to a head's columns of a row's tokens."""
    with T.serial(0, count) as i:

        def clear(c: Any, _: Any) -> None:
            for array in arrays:
                put(array, first + i, c, of.number(0))

        each_column(of, h, clear)


def wide(value: int) -> Any:
    """The number as int64, which indices are."""
    return tirx.const(value, "int64")
