# SPDX-License-Identifier: Apache-2.0
"""Rows of memory are asked for before they are worked on.

The rows of a large table are in no cache, so they are asked for while others are worked on. How is
a table by processor; the bits are the same.

- AMD's Zen but 3 (measured: 5): into the first cache, to be written. Narrow rows dozens at once: a
  loop of that alone is so short that as many are on their way together; between the sums of others
  only few are, as a request waits for the processor to look its page up. Wide ones fill its queues
  one by one.
- Zen 3: into the first cache, to be read, one by one: 2,048 rows of a million take 26 us so, and 32
  in the way of Zen 5.
- Others: into the second cache, to be read, one by one. An Intel core waits for 48 lines that go
  there, for 16 that go to the first; and what is asked for to be written leaves the other cores'
  caches, the gradient that was computed there included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.builder import Prefetch
from sparsetrain.kernels.table_formats import is_half
from sparsetrain.optim.kernel_parts import Parameter
from sparsetrain.runtime.target_features import select_by_cpu

LINES = 256  # of all rows that are asked for and not used yet
NARROW = 2  # lines that a row takes
MOST_ENTRIES = 2  # of the gradient, for each row: a long run is read fast enough by itself
LINE = 64  # bytes
VALUE_LINES = 8  # of a row of the gradient: more than of a weight, there is nothing to compute

Emit = Callable[[Any], None]  # emits what is done for one run, or one entry


class RowPrefetch(NamedTuple):
    """How rows are asked for.

    Parameters
    ----------
    prefetch : Prefetch
        For one line of them, and of the gradient.
    narrow_at_once : bool
        Whether narrow rows are asked for dozens at once.
    """

    prefetch: Prefetch
    narrow_at_once: bool


# See `select_by_cpu`.
PREFETCH = {
    "znver3": RowPrefetch(Prefetch(write=False, near=3), narrow_at_once=False),
    "znver": RowPrefetch(Prefetch(write=True, near=3), narrow_at_once=True),
    "": RowPrefetch(Prefetch(write=False, near=2), narrow_at_once=False),
}


def with_rows_ahead(
    parameter: Parameter, runs: Any, span: tuple[Any, Any], last: Any, update: Emit
) -> None:
    """Inside a kernel: `update` each run of `span`, in parallel, after asking for what it reads."""
    prefetch, narrow_at_once = select_by_cpu(PREFETCH)
    ask = prefetch.line

    def ask_for(run: Any) -> None:
        _ask_for(parameter, tirx.Cast("int64", runs.rows[run]), last, ask)

    def ask_for_value(place: Any) -> None:
        for column in _line_starts(runs.values, VALUE_LINES):
            ask(runs.values, [runs.value_row(place), column])

    lines = _lines(parameter, runs.values)
    at_once = narrow_at_once and lines <= NARROW
    in_advance = _many_at_once if at_once else _one_by_one
    in_advance(span, runs.offsets, lines, (ask_for, ask_for_value), update)


def _many_at_once(
    span: tuple[Any, Any], offsets: Any, lines: int, ask: tuple[Emit, Emit], update: Emit
) -> None:
    """Work on some rows after asking for all that the next ones need."""
    first, end = span
    ask_for, ask_for_value = ask
    some = LINES // lines // 2
    with T.parallel(0, tirx.ceildiv(end - first, some)) as task:
        edges = [T.Bind(tirx.min(first + (task + n) * some, end)) for n in range(3)]
        with T.serial(edges[1], edges[2]) as later:
            ask_for(later)
        entry, most = (T.Bind(tirx.Cast("int64", offsets[edge])) for edge in edges[1:])
        with T.serial(entry, tirx.min(most, entry + MOST_ENTRIES * some)) as later:
            ask_for_value(later)
        with T.serial(edges[0], edges[1]) as run:
            update(run)


def _one_by_one(
    span: tuple[Any, Any], offsets: Any, lines: int, ask: tuple[Emit, Emit], update: Emit
) -> None:
    """Before working on a row, ask for one some rows ahead, and for the first of its entries."""
    first, end = span
    ask_for, ask_for_value = ask
    ahead = max(16, min(64, LINES // lines))
    with T.parallel(0, end - first) as task:
        run = T.Bind(first + task)
        later = T.Bind(tirx.min(run + ahead, end - 1))
        ask_for(later)
        ask_for_value(offsets[later])
        update(run)


def _lines(parameter: Parameter, values: Any) -> int:
    """Cache lines that are asked for to update a row by one entry."""
    own = sum(len(columns) for _, columns in _lines_of(parameter))
    shared = sum(slot.per == "row" for slot in parameter.spec.formula.slots)
    return own + shared + len(_line_starts(values, VALUE_LINES))


def _lines_of(parameter: Parameter) -> list[tuple[Any, range]]:
    """The weights and slots of a row that are asked for: arrays, and where their lines begin.

    At most four lines of each. Of a half table eight: rounding takes so many instructions that the
    processor, by itself, does not see the loads of the next rows.
    """
    most = 8 if is_half(parameter.stored) else 4
    slots = zip(parameter.spec.formula.slots, parameter.slots, strict=True)
    arrays = [parameter.weight, *(array for slot, array in slots if slot.per == "element")]
    return [(array, _line_starts(array, most)) for array in arrays]


def _line_starts(array: Any, most: int) -> range:
    """The first column of each line of a row of an array, of the first `most` lines."""
    step = LINE * 8 // array.dtype.bits
    return range(0, min(int(array.shape[1]), most * step), step)


def _ask_for(
    parameter: Parameter, row: Any, last: Any, ask: Callable[[Any, list[Any]], None]
) -> None:
    """Ask for the weights and slots of a row."""
    for array, columns in _lines_of(parameter):
        for column in columns:
            ask(array, [row, column])
    for slot, array in zip(parameter.spec.formula.slots, parameter.slots, strict=True):
        if slot.per == "row":
            ask(array, [row])
    if last is not None:
        ask(last, [row])
