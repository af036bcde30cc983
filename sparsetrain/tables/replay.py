# SPDX-License-Identifier: Apache-2.0
"""Catch-up of ``mode="exact"``: the kernel that replays missed steps from their `History`.

An untouched row has gradient 0, but in a dense optimizer momentum, a second moment or decay would
still move it. ``last[row]`` is the step up to which a row is current. The kernel applies the same
spec with gradient 0 for each later step, with that step's numbers. The zero is an argument: with a
constant the compiler would simplify the arithmetic and change the bits. A table in half precision
is rounded in every replayed step, by that step's random bits.

Cost: D elements times the missed steps of each row; over all rows at most the arithmetic of dense
training, without its memory traffic. `max_replayed_steps` limits the steps per row; the remaining
ones become one multiplication of each slot, without their effect on the weight.

Each step of an element depends on the previous one. So the rows of a block are replayed one by one
up to the step of the most recent row, and from there as one long row with independent elements.
Listed rows that may have missed many steps are sorted by the number of missed steps (`sorts`).

Parallel: strips of interleaved blocks of rows, because the missed steps of rows differ widely and
each thread gets a fixed share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from operator import add, mul
from types import SimpleNamespace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.kernels.builder import buffer, extents, kernel, scalar
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.tables.formula import KernelSpec
from sparsetrain.tables.history import columns
from sparsetrain.tables.kernel_parts import Parameter, is_flat
from sparsetrain.tables.slots import UNTOUCHED

STRIPS = 64


def tasks_of(_rows: int) -> int:
    """Return the number of tasks for this number of rows."""
    return STRIPS


LISTED_BLOCK = 8  # listed rows that a strip processes at a time
TABLE_BLOCK = 16  # rows of a table: one cache line of `last`
JOINED = 1024  # most elements of a block that is replayed as one row, so that it stays in L1
FEW = 8  # missed steps that closed mode replays


def catch_up_kernel(
    spec: KernelSpec, width: int, dtype: str, index_dtype: str | None, capped: bool
) -> PrimFunc:
    """Bring rows up to step `now`.

    Arguments: rows (U,) unless `index_dtype` is None, weight (V, D), one array per slot, last (V,),
    history (T, K) float64, replayed (STRIPS,) int64 (receives the replayed steps of each strip),
    then zero, first, end (of `rows`, or of the table), base (the step of ``history[0]``), now,
    max_steps.
    """
    listed = index_dtype is not None
    with kernel() as built:
        segments, table, steps = extents(3)
        rows = buffer("rows", (segments,), index_dtype) if index_dtype is not None else None
        parameter = Parameter.declare(spec, table, width, dtype)
        last = buffer("last", (table,), "int32")
        history = buffer("history", (steps, columns(spec, dtype)), "float64")
        replayed = buffer("replayed", (STRIPS,), "int64")
        zero = scalar("zero", format_of(dtype).computed)
        first, end = scalar("first", "int64"), scalar("end", "int64")
        base, now, max_steps = (scalar(name, "int32") for name in ("base", "now", "max_steps"))
        past, until = PastSteps(history, base, spec, dtype), (now, max_steps if capped else None)
        block = LISTED_BLOCK if listed else TABLE_BLOCK

        joins = _can_join(parameter, block) and (not listed or sorts(spec))

        def row_at(place: Any) -> Any:
            return T.Bind(place if rows is None else tirx.Cast("int64", rows[place]))

        def replay_each(strip: Any, begin: Any) -> None:
            with T.serial(0, block) as i:
                place = T.Bind(begin + i)
                with T.If(place < end), T.Then():
                    row = row_at(place)
                    with replay_row(parameter, row, last, past, until, zero) as count:
                        T.buffer_store(replayed, replayed[strip] + count, [strip])

        def replay_together(strip: Any, begin: Any) -> None:
            together = _Block(parameter, block, lambda i: row_at(begin + i), last, until)
            with T.If(together.can_join(begin + block <= end)):
                with T.Then():
                    count = together.replay(past, zero)
                    T.buffer_store(replayed, replayed[strip] + count, [strip])
                with T.Else():
                    replay_each(strip, begin)

        with T.parallel(0, STRIPS) as strip:
            T.buffer_store(replayed, tirx.const(0, "int64"), [strip])
            with T.serial(0, tirx.ceildiv(end - first, block * STRIPS)) as turn:
                begin = T.Bind(first + (turn * STRIPS + strip) * block)
                (replay_together if joins else replay_each)(strip, begin)
    return built.get()


def sorts(spec: KernelSpec) -> bool:
    """Whether sorting listed rows by missed steps pays: only if all of these are replayed."""
    return spec.noop_on_zero_grad == "never" and not spec.closed


@contextmanager
def replay_row(
    parameter: Parameter, row: Any, last: Any, past: PastSteps, until: tuple[Any, Any], zero: Any
) -> Iterator[Any]:
    """Replay a row's missed steps, if any, and mark it current.

    `until` is (current step, `max_steps` or None). The ``with`` block belongs to the branch of rows
    that are behind, and gets the number of replayed steps.
    """
    since = T.Bind(last[row])
    with T.If(_behind(parameter.spec, since, until[0])), T.Then():
        count = _replay_limited(parameter, (row, 0), since, past, until, zero)
        T.buffer_store(last, until[0], [row])
        yield tirx.Cast("int64", count)


class _Block:
    """Rows `row_at(i)` that may be replayed as one row; `until` is as in `replay_row`."""

    def __init__(
        self,
        parameter: Parameter,
        rows: int,
        row_at: Callable[[Any], Any],
        last: Any,
        until: tuple[Any, Any],
    ) -> None:
        self._parameter, self._rows, self._row_at = parameter, rows, row_at
        self._last, self._until = last, until

    def can_join(self, whole: Any) -> Any:
        """Whether all rows are behind and, if steps are limited, by equally many steps.

        `whole` says if the block has all of its rows.
        """
        now, max_steps = self._until
        self._latest = T.alloc_local((1,), "int32")
        least = T.alloc_local((1,), "int32")
        for bound in (least, self._latest):
            T.buffer_store(bound, now, [0])
        with T.If(whole), T.Then():
            T.buffer_store(self._latest, tirx.const(UNTOUCHED, "int32"), [0])
            with T.serial(0, self._rows) as i:
                since = T.Bind(self._last[self._row_at(i)])
                T.buffer_store(least, tirx.min(least[0], since), [0])
                T.buffer_store(self._latest, tirx.max(self._latest[0], since), [0])
        behind = tirx.And(_behind(self._parameter.spec, least[0], now), self._latest[0] < now)
        return behind if max_steps is None else tirx.And(behind, least[0] == self._latest[0])

    def replay(self, past: PastSteps, zero: Any) -> Any:
        """Replay all rows and mark them as current; return the number of steps."""
        parameter, last, count = self._parameter, self._last, T.alloc_local((1,), "int64")
        arrays, width = [parameter.weight, *parameter.slots], self._rows * parameter.width
        copies = [T.alloc_local((1, width), array.dtype) for array in arrays]
        joined = Parameter(parameter.spec, copies[0], copies[1:], width, parameter.stored)
        latest = T.Bind(self._latest[0])
        T.buffer_store(count, tirx.const(0, "int64"), [0])
        with T.serial(0, self._rows) as i:
            row = self._row_at(i)
            alone = T.Bind(latest - last[row])
            _replay(parameter, (row, 0), (last[row], alone), past, zero)
            T.buffer_store(count, count[0] + tirx.Cast("int64", alone), [0])
            with self._each_column(i) as (column, place):
                for array, copy in zip(arrays, copies, strict=True):
                    T.buffer_store(copy, array[row, column], [0, place])
        steps = _replay_limited(joined, (0, 0), latest, past, self._until, zero)
        with T.serial(0, self._rows) as i:
            row = self._row_at(i)
            T.buffer_store(last, self._until[0], [row])
            with self._each_column(i) as (column, place):
                for array, copy in zip(arrays, copies, strict=True):
                    T.buffer_store(array, copy[0, place], [row, column])
        return count[0] + tirx.Cast("int64", steps) * self._rows

    @contextmanager
    def _each_column(self, i: Any) -> Iterator[tuple[Any, Any]]:
        """Loop over the columns of the i-th row, with their positions in the copies."""
        tiles, lanes = self._parameter.tiles()
        with T.serial(0, tiles) as tile, T.vectorized(0, lanes) as lane:
            column = tile * lanes + lane
            yield column, i * self._parameter.width + column


def _can_join(parameter: Parameter, rows: int) -> bool:
    """Whether this number of rows can be replayed as one row."""
    return is_flat(parameter.spec, parameter.stored) and parameter.width * rows <= JOINED


class PastSteps:
    """Inside a kernel: the numbers of a `history` that begins with step `base`."""

    def __init__(self, array: Any, base: Any, spec: KernelSpec, dtype: str) -> None:
        self.array, self.base, self.spec, self.dtype = array, base, spec, dtype

    def numbers(self, step: Any) -> SimpleNamespace:
        """Return the numbers of a step, rounded like scalar arguments."""
        row = T.Bind(tirx.Cast("int64", step - self.base))
        values = {
            name: T.Bind(tirx.Cast(format_of(self.dtype).computed, self.array[row, column]))
            for column, name in enumerate(self.spec.numbers)
        }
        return SimpleNamespace(**values, **self._keys(row))

    def _keys(self, row: Any) -> dict[str, Any]:
        if not format_of(self.dtype).rounded:
            return {}
        end = columns(self.spec, self.dtype)
        places = (end - 2, end - 1)
        return {"keys": [T.Bind(tirx.Cast("int64", self.array[row, at])) for at in places]}

    def transition(self, since: Any, i: int, j: int) -> Any:
        """Return entry (i, j) of the product of all `transition` matrices after step `since`."""
        column = len(self.spec.numbers) + i * self.spec.order + j
        return self.array[tirx.Cast("int64", since - self.base), column]

    def product(self, column: int, since: Any, until: Any) -> Any:
        """Return the product of a decay number over the steps (since, until]."""
        place = len(self.spec.numbers) + column
        begin, end = (tirx.Cast("int64", step - self.base) for step in (since, until))
        logarithm = self.array[end, place] - self.array[begin, place]
        return T.Bind(tirx.Cast(format_of(self.dtype).computed, tirx.exp(logarithm)))


def _behind(spec: KernelSpec, since: Any, now: Any) -> Any:
    """Whether a row has missed steps; for some formulas, an untouched row (-1) has none."""
    behind = since < now
    return tirx.And(since >= 0, behind) if spec.noop_on_zero_grad == "untouched" else behind


def _replay_limited(
    parameter: Parameter,
    place: tuple[Any, Any],
    since: Any,
    past: PastSteps,
    until: tuple[Any, Any],
    zero: Any,
) -> Any:
    """Replay the steps after `since`; beyond a limit, only decay; return the number replayed.

    In closed mode, if there are more steps than the limit, one product replaces them all.
    """
    now, max_steps = until
    count = T.Bind(now - since if max_steps is None else tirx.min(now - since, max_steps))
    if parameter.spec.closed:
        with T.If(count < now - since):
            with T.Then():
                _multiply(parameter, place, past, since, now)
            with T.Else():
                _replay(parameter, place, (since, count), past, zero)
        return count
    _replay(parameter, place, (since, count), past, zero)
    if max_steps is not None:
        with T.If(count < now - since), T.Then():
            _decay_by_powers(parameter, place, past, since + count, now)
    return count


def _replay(
    parameter: Parameter, place: tuple[Any, Any], span: tuple[Any, Any], past: PastSteps, zero: Any
) -> None:
    row, start = place
    # The spec without scale and clip, which do not change a gradient of 0.
    tiles, lanes = parameter.tiles()
    with T.serial(0, span[1]) as step:
        h = past.numbers(span[0] + 1 + step)
        state = parameter.begin_row(row, lambda d: zero, h, zero)
        with T.serial(0, tiles) as tile, T.vectorized(0, lanes) as lane:
            state.update(start + tile * lanes + lane, zero)
        state.end()


def _multiply(
    parameter: Parameter, place: tuple[Any, Any], past: PastSteps, since: Any, now: Any
) -> None:
    """Make a row current: apply the matrix product of the steps (since, now], in float64."""
    (row, start), order = place, parameter.spec.order
    product = [[T.Bind(past.transition(since, i, j)) for j in range(order)] for i in range(order)]
    weights = parameter.open(row, past.numbers(now))
    weights.begin()
    tiles, lanes = parameter.tiles()
    with T.serial(0, tiles) as tile, T.vectorized(0, lanes) as lane:
        d = start + tile * lanes + lane
        values = [weights.read(d), *(slot[row, d] for slot in parameter.slots)]
        values = [T.Bind(tirx.Cast("float64", value)) for value in values]
        sums = [reduce(add, map(mul, factors, values)) for factors in product]
        weight, *slots = [T.Bind(tirx.Cast(parameter.dtype, value)) for value in sums]
        weights.write(d, weight)
        for array, value in zip(parameter.slots, slots, strict=True):
            T.buffer_store(array, value, [row, d])


def _decay_by_powers(
    parameter: Parameter, place: tuple[Any, Any], past: PastSteps, since: Any, until: Any
) -> None:
    spec, (row, start) = parameter.spec, place
    slots = zip(spec.formula.slot_decay, parameter.slots, strict=True)
    targets = [parameter.weight] if spec.decay == "decoupled" else []
    targets += [array for name, array in slots if name is not None]
    for column, array in enumerate(targets):
        factor = past.product(column, since, until)
        if len(array.shape) == 1:
            T.buffer_store(array, array[row] * factor, [row])
            continue
        weights = None
        if array is parameter.weight:
            weights = parameter.open(row, past.numbers(until))
            weights.begin()
        tiles, lanes = parameter.tiles()
        with T.serial(0, tiles) as tile, T.vectorized(0, lanes) as lane:
            d = start + tile * lanes + lane
            if weights is not None:
                weights.write(d, weights.read(d) * factor)
            else:
                T.buffer_store(array, array[row, d] * factor, [row, d])
