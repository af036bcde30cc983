# SPDX-License-Identifier: Apache-2.0
"""Loops of CUDA attention kernels: a thread for each token and head visits the token's row.

With one thread per row, as on the CPU, most of a device would be idle. Here each thread has its own
query or, in a second launch, its own key. So every element has one writer, which sums from the
first token to the last. Cost: a reverse pass computes the products of queries and keys three times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.backends.cuda.sparse.parts import each_of
from sparsetrain.kernels.loops import Number
from sparsetrain.ops.ragged.attention_blocks import Attention, wide
from sparsetrain.ops.ragged.row_kernels import first_of


class Token(NamedTuple):
    """A token and a head; the token's row has the tokens [first, end)."""

    of: Attention
    number: Any
    head: Any
    first: Any
    end: Any

    @contextmanager
    def keys(self) -> Iterator[Any]:
        """Emit a loop over the tokens that this token attends to."""
        end = self.number + 1 if self.of.causal else self.end
        with T.serial(0, end - self.first) as place:
            yield T.Bind(self.first + place)

    @contextmanager
    def queries(self) -> Iterator[Any]:
        """Emit a loop over the tokens that attend to this token."""
        first = self.number if self.of.causal else self.first
        with T.serial(0, self.end - first) as place:
            yield T.Bind(first + place)

    def dot(self, left: Any, i: Any, right: Any, j: Any) -> Any:
        """Return the dot product of ``left[i]`` and ``right[j]`` over the columns of the head."""
        total = Number(self.of.dtype)
        with T.serial(0, wide(self.of.size)) as d:
            c = self.head * self.of.size + d
            total.add(left[i, c] * right[j, c])
        return T.Bind(total.now)


@contextmanager
def each_token(of: Attention, ends: Any, tokens: Any) -> Iterator[Token]:
    """Run a thread for each token and head."""
    with each_of(tokens * of.heads) as thread:
        n = T.Bind(tirx.floordiv(thread, wide(of.heads)))
        row = row_of(ends, n)
        head = T.Bind(tirx.floormod(thread, wide(of.heads)))
        yield Token(of, n, head, first_of(ends, row), T.Bind(ends[row]))


def row_of(ends: Any, n: Any) -> Any:
    """Find the row of token n by binary search: the first row that ends after the token."""
    low, high = Number("int64"), Number("int64")
    high.set(ends.shape[0] - 1)
    with T.While(low.now < high.now):
        middle = T.Bind(tirx.floordiv(low.now + high.now, wide(2)))
        with T.If(ends[middle] > n):
            with T.Then():
                high.set(middle)
            with T.Else():
                low.set(middle + 1)
    return T.Bind(low.now)


# (token, query, key) -> d(loss) / d(score of query and key), and the weight of the key's value.
Slope = Callable[[Token, Any, Any], tuple[Any, Any]]


def write_by_query(token: Token, slope: Slope, k: Any, dq: Any) -> None:
    """Write the derivative of the loss with respect to a token's query."""
    total = Sum(token)
    with token.keys() as j:
        total.add(slope(token, token.number, j)[0], k, j)
    total.write(dq)


def write_by_key(token: Token, slope: Slope, q: Any, cotangent: Any, dk: Any, dv: Any) -> None:
    """Write the derivatives of the loss with respect to a token's key and value."""
    by_key, by_value = Sum(token), Sum(token)
    with token.queries() as i:
        by_score, weight = slope(token, i, token.number)
        by_key.add(by_score, q, i)
        by_value.add(weight, cotangent, i)
    by_key.write(dk)
    by_value.write(dv)


class Sum:
    """A thread's sum of vectors, over the columns of one head; initially 0."""

    def __init__(self, token: Token) -> None:
        self._token, self._numbers = token, token.of.local(token.of.size)
        self._store(lambda _c, _d: token.of.number(0))

    def add(self, factor: Any, array: Any, n: Any, kept: Any = None) -> None:
        """Add `factor` times row n of `array`; if `kept` is given, first multiply the sum by it."""

        def sum_of(c: Any, d: Any) -> Any:
            before = self._numbers[d] if kept is None else self._numbers[d] * kept
            return before + factor * array[n, c]

        self._store(sum_of)

    def write(self, array: Any, divisor: Any = None) -> None:
        """Write the sum to the token's columns of an array."""
        with self._columns() as (c, d):
            number = self._numbers[d] if divisor is None else self._numbers[d] / divisor
            T.buffer_store(array, number, [self._token.number, c])

    def _store(self, value: Callable[[Any, Any], Any]) -> None:
        with self._columns() as (c, d):
            T.buffer_store(self._numbers, value(c, d), [d])

    @contextmanager
    def _columns(self) -> Iterator[tuple[Any, Any]]:
        size = self._token.of.size
        with T.serial(0, wide(size)) as d:
            yield self._token.head * size + d, d
