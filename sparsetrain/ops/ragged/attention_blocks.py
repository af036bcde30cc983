# SPDX-License-Identifier: Apache-2.0
"""Blocks of keys, and the loops over them in the kernels of attention within ragged rows.

A block's keys are transposed into a local array, so that the products of a query and a block form a
vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.builder import buffer, extents
from sparsetrain.kernels.loops import columns
from sparsetrain.ops.ragged.row_kernels import each_row, first_of, put

BLOCK = 8  # tokens


class Attention(NamedTuple):
    """Attention of tokens (N, width), with the columns divided among the heads."""

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
        """Return a constant."""
        return tirx.const(value, self.dtype)

    def local(self, *shape: int) -> Any:
        """Allocate an array that is local to a thread."""
        return T.alloc_buffer(shape, self.dtype, scope="local")


class Query(NamedTuple):
    """A query: its index among all queries, and its place within its row."""

    number: Any
    place: Any


class Row(NamedTuple):
    """A row: its tokens, which are the keys, and its queries: all tokens, or those at `places`."""

    first: Any  # token
    count: Any  # tokens
    first_query: Any
    queries: Any
    places: Any = None  # array of each query's position within its row


class Block(NamedTuple):
    """Tokens `start` to `start` + BLOCK of a row, as keys of one head."""

    row: Row
    head: Any
    start: Any  # within the row
    transposed: list[Any]  # (size, BLOCK) for each requested array

    @property
    def first(self) -> Any:
        """The first token of the row."""
        return self.row.first

    @property
    def count(self) -> Any:
        """The number of tokens of the row."""
        return self.row.count


class Arguments(NamedTuple):
    """The first arguments of an attention kernel."""

    tokens: Any
    num_queries: Any  # number of queries: of tokens, unless queries are selected
    qkv: tuple[Any, Any, Any]
    bias: Any
    ends: Any
    places: Any
    place_ends: Any

    @contextmanager
    def rows(self) -> Iterator[Row]:
        """Loop over the rows, in parallel."""
        with each_row(self.ends) as (b, first, count):
            if self.places is None:
                yield Row(first, count, first, count)
                return
            query = first_of(self.place_ends, b)
            yield Row(first, count, query, T.Bind(self.place_ends[b] - query), self.places)


def arguments_of(of: Attention, chosen: bool, distances: int | None = None) -> Arguments:
    """Declare q, k, v, perhaps a bias, ends and, for chosen queries, places and their ends."""
    tokens, rows = extents(2)
    num_queries = extents(1)[0] if chosen else tokens
    lengths = zip("qkv", (num_queries, tokens, tokens), strict=True)
    q, k, v = (buffer(name, (n, of.width), of.dtype) for name, n in lengths)
    bias = None if distances is None else buffer("bias", (num_queries, distances), of.dtype)
    ends = buffer("ends", (rows,), "int64")
    places = buffer("places", (num_queries,), "int64") if chosen else None
    place_ends = buffer("place_ends", (rows,), "int64") if chosen else None
    return Arguments(tokens, num_queries, (q, k, v), bias, ends, places, place_ends)


def each_block(
    of: Attention, row: Row, h: Any, keys: tuple[Any, ...], do: Callable[[Block], None]
) -> None:
    """Loop over blocks of a row's keys, with copies of the `keys` arrays."""
    first, count = row.first, row.count
    with T.serial(0, tirx.ceildiv(count, BLOCK)) as number:
        start = T.Bind(number * BLOCK)
        copies = []
        for array in keys:
            copies.append(of.local(of.size, BLOCK))
            with T.serial(0, wide(BLOCK)) as j, T.serial(0, wide(of.size)) as d:
                token = first + tirx.min(start + j, count - 1)
                T.buffer_store(copies[-1], array[token, h * of.size + d], [d, j])
        do(Block(row, h, start, copies))


def queries(of: Attention, block: Block, do: Callable[[Query], None]) -> None:
    """Loop over the queries of the row that attend to a block."""
    row = block.row
    if row.places is None:
        begin = block.start if of.causal else wide(0)
        with T.serial(0, block.count - begin) as i:
            place = T.Bind(begin + i)
            do(Query(block.first + place, place))
        return
    with T.serial(0, row.queries) as m:
        number = T.Bind(row.first_query + m)
        place = T.Bind(row.places[number])
        sees = T.If(block.start <= place) if of.causal else nullcontext()
        with sees, T.Then() if of.causal else nullcontext():
            do(Query(number, place))


def products_(of: Attention, block: Block, rows: Any, query: Query, keys: Any) -> Any:
    """Return the products of a query's row with the keys of a block."""
    scores = of.local(BLOCK)
    with T.vectorized(0, wide(BLOCK)) as j:
        T.buffer_store(scores, of.number(0), [j])
    with T.serial(0, wide(of.size)) as d, T.vectorized(0, wide(BLOCK)) as j:
        value = rows[query.number, block.head * of.size + d]
        T.buffer_store(scores, scores[j] + value * keys[d, j], [j])
    return scores


def add_values_(
    of: Attention,
    block: Block,
    query: Query,
    weights: Any,
    v: Any,
    out: Any,
    kept: Callable[[Any], Any] = lambda before: before,
) -> None:
    """Add the weighted values of a block to a query's output."""
    n = T.Bind(query.number)

    def column(c: Any, _: Any) -> None:
        total = kept(out[n, c])
        for j in range(BLOCK):
            total = total + weights[j] * v[_token(block, j), c]
        put(out, n, c, total)

    each_column(of, block.head, column)


def attend_back_(
    of: Attention,
    block: Block,
    weigh: Callable[[Query], tuple[Any, Any]],
    inputs: tuple[Any, Any, Any],
    into: tuple[Any, Any, Any],
) -> None:
    """Add a block's share to the cotangents of q, k and v.

    `weigh` returns a query's weights, and the loss's derivatives by its products with the keys.
    `inputs` are q, k and the cotangent of the output.
    """
    q, k, cotangent = inputs
    dq, dk, dv = into
    by_key = [of.local(BLOCK, of.size) for _ in range(2)]  # of dk and dv
    for array in by_key:
        with T.serial(0, wide(BLOCK)) as j, T.serial(0, wide(of.size)) as d:
            T.buffer_store(array, of.number(0), [j, d])

    def attend(query: Query) -> None:
        n = T.Bind(query.number)
        weights, slopes = weigh(query)

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
    """Return a key's index among all tokens; past the row's end, the last key's, with weight 0."""
    return block.first + tirx.min(block.start + j, block.count - 1)


def each_column(of: Attention, h: Any, do: Callable[[Any, Any], None]) -> None:
    """Call `do` for each column of a head, vectorized, with its numbers overall and in the head."""
    columns(of.size, lambda d: do(h * of.size + d, d))


def clear_(of: Attention, first: Any, count: Any, h: Any, arrays: tuple[Any, ...]) -> None:
    """Write 0 to a head's columns of a row's tokens."""
    with T.serial(0, count) as i:

        def clear(c: Any, _: Any) -> None:
            for array in arrays:
                put(array, first + i, c, of.number(0))

        each_column(of, h, clear)


def clear_cotangents_(of: Attention, row: Row, h: Any, arrays: tuple[Any, Any, Any]) -> None:
    """Write 0 to a head's columns of a row in the cotangents of q, k and v."""
    dq, *of_keys = arrays
    if row.places is None:
        clear_(of, row.first, row.count, h, arrays)
        return
    clear_(of, row.first_query, row.queries, h, (dq,))
    clear_(of, row.first, row.count, h, tuple(of_keys))


def wide(value: int) -> Any:
    """Return the number as int64, the dtype of indices."""
    return tirx.const(value, "int64")
