# SPDX-License-Identifier: Apache-2.0
"""Software prefetch of table rows before their update.

The rows of a large table are in no cache, so they are prefetched while others are updated. A table
by processor decides how; the bits are the same.

- AMD Zen except 3 (measured on 5): into L1, for writing. Narrow rows by the dozen: a loop of
  nothing but prefetches is so short that many are in flight at once, whereas between the sums of
  other rows few are, because a prefetch waits for the page walk. Wide rows fill the queues one by
  one.
- Zen 3: into L1, for reading, one by one: 2,048 of a million rows take 26 us, against 32 in the
  manner of Zen 5.
- Others: into L2, for reading, one by one. An Intel core has 48 requests to L2 in flight, and 16 to
  L1; and lines prefetched for writing leave the caches of the other cores, including the gradient
  computed there.
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

LINES = 256  # prefetched and not used yet
NARROW = 2  # lines of a row
MOST_ENTRIES = 2  # of the gradient, per row: the hardware prefetches long runs
LINE = 64  # bytes
VALUE_LINES = 8  # of a row of the gradient; more than of a weight, as nothing is computed

Emit = Callable[[Any], None]  # emits what is done for one run, or one entry


class RowPrefetch(NamedTuple):
    """Prefetch strategy for rows.

    Parameters
    ----------
    prefetch : Prefetch
        For one cache line of them, and of the gradient.
    narrow_at_once : bool
        Whether narrow rows are prefetched by the dozen.
    """

    prefetch: Prefetch
    narrow_at_once: bool


# See `select_by_cpu`.
PREFETCH = {
    "znver3": RowPrefetch(Prefetch(write=False, near=3), narrow_at_once=False),
    "znver": RowPrefetch(Prefetch(write=True, near=3), narrow_at_once=True),
    "": RowPrefetch(Prefetch(write=False, near=2), narrow_at_once=False),
}


def with_prefetched_rows(
    parameter: Parameter, runs: Any, span: tuple[Any, Any], last: Any, update: Emit
) -> None:
    """Inside a kernel: `update` each run of `span`, in parallel, after a prefetch of its rows."""
    prefetch, narrow_at_once = select_by_cpu(PREFETCH)
    ask = prefetch.line

    def prefetch_row(run: Any) -> None:
        _prefetch_row(parameter, tirx.Cast("int64", runs.rows[run]), last, ask)

    def prefetch_value(place: Any) -> None:
        for column in _line_starts(runs.values, VALUE_LINES):
            ask(runs.values, [runs.value_row(place), column])

    lines = _lines(parameter, runs.values)
    at_once = narrow_at_once and lines <= NARROW
    in_advance = _many_at_once if at_once else _one_by_one
    in_advance(span, runs.offsets, lines, (prefetch_row, prefetch_value), update)


def _many_at_once(
    span: tuple[Any, Any], offsets: Any, lines: int, ask: tuple[Emit, Emit], update: Emit
) -> None:
    """Prefetch all that the next rows need, then update some rows."""
    first, end = span
    prefetch_row, prefetch_value = ask
    some = LINES // lines // 2
    with T.parallel(0, tirx.ceildiv(end - first, some)) as task:
        edges = [T.Bind(tirx.min(first + (task + n) * some, end)) for n in range(3)]
        with T.serial(edges[1], edges[2]) as later:
            prefetch_row(later)
        entry, most = (T.Bind(tirx.Cast("int64", offsets[edge])) for edge in edges[1:])
        with T.serial(entry, tirx.min(most, entry + MOST_ENTRIES * some)) as later:
            prefetch_value(later)
        with T.serial(edges[0], edges[1]) as run:
            update(run)


def _one_by_one(
    span: tuple[Any, Any], offsets: Any, lines: int, ask: tuple[Emit, Emit], update: Emit
) -> None:
    """Before each row, prefetch a later one and the first of its entries."""
    first, end = span
    prefetch_row, prefetch_value = ask
    ahead = max(16, min(64, LINES // lines))
    with T.parallel(0, end - first) as task:
        run = T.Bind(first + task)
        later = T.Bind(tirx.min(run + ahead, end - 1))
        prefetch_row(later)
        prefetch_value(offsets[later])
        update(run)


def _lines(parameter: Parameter, values: Any) -> int:
    """Cache lines that are prefetched to update a row by one entry."""
    own = sum(len(columns) for _, columns in _lines_of(parameter))
    shared = sum(slot.per == "row" for slot in parameter.spec.formula.slots)
    return own + shared + len(_line_starts(values, VALUE_LINES))


def _lines_of(parameter: Parameter) -> list[tuple[Any, range]]:
    """Weights and slots of a row that are prefetched: arrays, and the columns where lines begin.

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


def _prefetch_row(
    parameter: Parameter, row: Any, last: Any, ask: Callable[[Any, list[Any]], None]
) -> None:
    """Prefetch the weights and slots of a row."""
    for array, columns in _lines_of(parameter):
        for column in columns:
            ask(array, [row, column])
    for slot, array in zip(parameter.spec.formula.slots, parameter.slots, strict=True):
        if slot.per == "row":
            ask(array, [row])
    if last is not None:
        ask(last, [row])
