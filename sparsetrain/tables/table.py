# SPDX-License-Identifier: Apache-2.0
"""`Table`: the rows of a parameter with slots, rules and missed steps.

In exact mode a step updates the rows that a batch looks up; the slot `last` holds the step up to
which a row is current. Readers call `rows(ids)` or `current()`, which first replay the missed steps
of these rows. This costs as much as the missed steps, and nothing if no row lags.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.backend import backend_at, host
from sparsetrain.errors import ConfigError, DataError, NumericalError
from sparsetrain.kernels.table_formats import UINT8, format_of
from sparsetrain.kernels.table_formats.uint8 import quantize_rows_
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.compiling import backend_kernel
from sparsetrain.runtime.pool import scratch_tensor
from sparsetrain.runtime.tensors import reshape_view, target_of, to_device
from sparsetrain.sparse_tensor import CoalescePlan, RowSparse
from sparsetrain.sparse_tensor.coalesce import make_plan, rows_below, same_ids
from sparsetrain.tables import replay
from sparsetrain.tables.formula import KernelSpec, Range, Rule
from sparsetrain.tables.history import History
from sparsetrain.tables.slots import LAST, UNTOUCHED, Span, Target, matrix_shape

FOREVER = 2**31 - 1  # no limit


class Table:
    """Rows of one parameter, which may hold several tables.

    Parameters
    ----------
    name : str
        Name of the parameter.
    weight : Tensor
        (V, D), or any shape for a parameter that is not a table.
    slots : dict of str to Tensor
        Slots by name, with `last` (V,) int32 if rows may lag.
    ranges : sequence of Range
        Ranges of its rows, each with the rule of its updates.
    named : mapping of str to slice
        The rows of each table by name; empty for a parameter that is not a table.
    count : (1,) int64
        Steps taken; read, never written.
    """

    def __init__(
        self,
        name: str,
        weight: NDArray,
        slots: dict[str, NDArray] | None = None,
        ranges: Sequence[Any] = (),
        named: Mapping[str, slice] | None = None,
        count: np.ndarray | None = None,
    ) -> None:
        self.name, self.weight, self.slots = name, weight, {} if slots is None else slots
        self.ranges, self.named, self._count = tuple(ranges), dict(named or {}), count
        self.dtype = str(weight.dtype)
        self._numbered: tuple[Span, ...] = ()  # see `be_part`
        self.histories = {
            number: History(spec, dtype=self.dtype)
            for number, spec in _lagging(self.slots, self.ranges).items()
        }
        self.read: tuple[NDArray, CoalescePlan] | None = None  # ids of the last request

    def __repr__(self) -> str:
        shape = " x ".join(str(int(extent)) for extent in self.weight.shape)
        return f"<Table {self.name!r}: {shape} {self.dtype}, slots {', '.join(self.slots)}>"

    @property
    def lags(self) -> bool:
        """Whether rows can lag, so that they are caught up before they are read."""
        return bool(self.histories)

    @property
    def has_last(self) -> bool:
        """Whether rows have the slot `last`."""
        return LAST in self.slots

    @property
    def weight_bytes(self) -> int:
        """Bytes of all rows."""
        return _bytes_of(self.weight)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows and slots."""
        return sum(map(_bytes_of, (self.weight, *self.slots.values())))

    def stored(self, writing: bool = False) -> tuple[Any, Mapping[str, Any]]:
        """Return weight and slots without catching up, as writable tensors or arrays.

        With `writing`, the caller will write them, so values derived from them are dropped.
        """
        return self.weight, self.slots

    def rows(self, ids: Any) -> NDArray:
        """Return the weight with these rows current; see `catch_up`."""
        self.catch_up(ids)
        return self.weight

    def current(self) -> NDArray:
        """Return the weight with all rows current."""
        self.flush()
        return self.weight

    def as_int8(self, rows: NDArray) -> NDArray:
        """Quantize the table's rows (V, D), or their averages, to (V, D + 8) uint8 for prediction.

        Raises
        ------
        NumericalError
            If a row is not finite; the message names the first such row.
        """
        floats = runtime.as_numpy(rows)
        shape = len(floats), UINT8.extent(floats.shape[1])
        made = runtime.empty(shape, UINT8.dtype, f"rows of bytes of {self.name!r}")
        into = runtime.as_numpy(made, writable=True)
        for name, part in self.named.items():
            problem = quantize_rows_(into[part], floats[part])
            if problem is not None:
                raise NumericalError(f"row {problem.row} of {name!r} is not finite, or above 1e38")
        return made

    def catch_up(self, ids: Any) -> int:
        """Make these rows current and store their plan; return the number of steps replayed.

        Parameters
        ----------
        ids : integer array
            Any shape, duplicates allowed.

        Raises
        ------
        DataError
            If a row is outside the table.
        """
        if not self.histories:
            return 0
        height = matrix_shape(self.weight.shape)[0]
        tensor = to_device(_checked_rows(self.name, ids, height), self.weight.device)
        try:
            plan = make_plan(tensor, height)
        except DataError as error:
            raise DataError(f"catch_up: {self.name!r}: {error}") from None
        self.read = tensor, plan
        return self._catch_up(plan)

    def flush(self, missed: int = 0) -> int:
        """Make all rows current and begin new histories; return the number of steps replayed.

        If no row missed more than `missed` steps, nothing changes.
        """
        replayed = 0
        for part in self.ranges if self.has_last else ():
            if part.rule.has_last and part.rule.dense:
                self._note_current(part, self._step)
        for number, history in self.histories.items():
            if history.missed > missed:
                part = self.ranges[number]
                replayed += self.replay(history, part.rule, (part.first, part.end))
                history.restart()
        return replayed

    def plan_of(self, gradient: RowSparse) -> CoalescePlan:
        """Return the plan of a gradient's rows: the last request's plan if its ids are equal."""
        if self.read is not None and same_ids(self.read[0], gradient.indices):
            return self.read[1]
        return gradient.plan()

    def require_current(self, plan: CoalescePlan) -> None:
        """Refuse a gradient of rows that lagged when they were read.

        Raises
        ------
        ConfigError
            If a row lagged; the rows are made current before the error is raised.
        """
        if self.histories and not (self.read and self.read[1] is plan) and self._catch_up(plan):
            raise ConfigError(
                f"optimizer: rows of {self.name!r} were read before they were caught up: in exact "
                "mode call catch_up_ before the program; now they are caught up"
            )

    def require_last(self) -> None:
        """Refuse a row-sparse gradient if rows need the slot `last`, but do not have it.

        Raises
        ------
        ConfigError
            If `Optimizer.init` did not get this parameter among its tables.
        """
        if not self.has_last and any(part.rule.spec.lags for part in self.ranges):
            raise ConfigError(
                f"optimizer: {self.name!r} has a row-sparse gradient, but was not among the tables "
                "of init, so its rows cannot catch up: pass it there, or set mode 'lazy' for it in "
                "a ParamGroup"
            )

    def be_part(self, numbered: tuple[Span, ...]) -> None:
        """Mark this table as holding only some rows of a whole parameter.

        Parameters
        ----------
        numbered : tuple of Span
            Which rows: random rounding depends on the row's number in the whole parameter.

        Raises
        ------
        ConfigError
            If rows are rounded and can lag, since a replay does not have these numbers.
        """
        self._numbered = numbered
        if self.lags and format_of(self.dtype).rounded:
            raise ConfigError(
                f"parallel: rows of {self.name!r}, {self.dtype}, lag in exact mode: leave out "
                "mode, take float32 tables, or train in one process"
            )

    def keys(self, seed: int, step: int) -> tuple[int, ...]:
        """Keys of the random bits that round rows in a step; () without rounding."""
        return format_of(self.dtype).keys(seed, self.name, step)

    def spans(self, number: int) -> list[Span]:
        """Cut the rows of a range into spans with evenly spaced row numbers for random bits."""
        part = self.ranges[number]
        cut = self._numbered if format_of(self.dtype).rounded else ()
        own = (s._replace(first=max(s.first, part.first), end=min(s.end, part.end)) for s in cut)
        return [s for s in own if s.first < s.end] or [Span(part.first, part.end)]

    def marks(self, number: int, seed: int, step: int) -> tuple[int, ...]:
        """Numbers that the update of a range needs: two noise keys, and the step for `last`."""
        history = self.histories.get(number)
        return self.keys(seed, step) + (() if history is None else (history.now + 1,))

    def note_step(
        self, numbers: Mapping[Any, tuple[float, ...]], keys: tuple[int, ...], dense: bool = False
    ) -> None:
        """Record a step that was taken.

        Parameters
        ----------
        numbers : mapping
            The numbers of each rule.
        keys : tuple of int
            Keys of the random bits, for a table in half precision.
        dense : bool
            Whether the table's gradient was dense, so that all rows are current.
        """
        for number, history in self.histories.items():
            history.append(numbers[self.ranges[number].rule], keys)
            if dense:
                self._note_current(self.ranges[number], history.now)

    def lags_by(self, ranges: Sequence[Any]) -> bool:
        """Whether the same rows lag with these rules as now, and miss the same updates."""
        known = {number: history.spec for number, history in self.histories.items()}
        return known == _lagging(self.slots, ranges)

    @property
    def exact(self) -> list[str]:
        """Names of the tables with a meaningful slot `last`."""
        names = (name for part in self.ranges if part.rule.has_last for name in part.names)
        return sorted(names) if self.has_last else []

    @property
    def _step(self) -> int:
        return 0 if self._count is None else int(self._count[0])

    def _note_current(self, part: Range, step: int) -> None:
        """Mark all rows of a range as current."""
        last = self.slots[LAST]
        backend_at(last).kernel("a number for many rows", _fill_)(last, step, part.first, part.end)

    def _catch_up(self, plan: CoalescePlan) -> int:
        spans = enumerate(segment_spans(plan, self.ranges))
        return sum(
            self.replay(self.histories[n], self.ranges[n].rule, span, plan)
            for n, span in spans
            if n in self.histories
        )

    def replay(
        self,
        history: History,
        rule: Rule,
        span: tuple[int, int],
        plan: CoalescePlan | None = None,
    ) -> int:
        """Catch up rows `span`, or segments `span` of a plan; return the steps replayed."""
        param, limit = self.weight, rule.max_replayed_steps
        if history.spec.closed:
            limit = limit or replay.FEW
        listed = None if plan is None else plan.rows
        if listed is not None and replay.sorts(history.spec) and backend_at(listed) is host():
            listed = _by_lag(runtime.as_numpy(listed)[slice(*span)], self.slots[LAST])
            span = 0, int(listed.shape[0])
        rows, width = matrix_shape(param.shape)
        spec = history.spec.at_zero
        kernel = _catch_up_kernel(
            target_of(param),
            spec,
            width,
            self.dtype,
            None if listed is None else str(listed.dtype),
            limit is not None,
        )
        tasks_of = backend_at(param).kernel("tasks of catching up rows", replay.tasks_of)
        replayed = scratch_tensor((tasks_of(span[1] - span[0]),), "int64", param)
        kernel(
            *([] if listed is None else [listed]),
            *Target(param, self.slots).views(spec, rows, width),
            self.slots[LAST],
            to_device(history.tensor, param.device),
            replayed,
            0.0,
            *span,
            history.base,
            history.now,
            limit or FOREVER,
        )
        return int(backend_at(replayed).totals([replayed])[0])


def new_last(
    name: str, weight: NDArray, ranges: Sequence[Any], fill: bool = True
) -> dict[str, NDArray]:
    """Make the slot `last`: the step up to which each row is current, (V,) int32."""
    what = f"slot {LAST!r} of parameter {name!r}"
    tensor = runtime.empty((matrix_shape(weight.shape)[0],), "int32", what)
    view = runtime.as_numpy(tensor, writable=True)
    for part in ranges if fill else ():
        untouched = part.rule.spec.noop_on_zero_grad == "untouched"
        view[part.first : part.end] = UNTOUCHED if untouched else 0
    return {LAST: to_device(tensor, weight.device, what)}


def segment_spans(plan: CoalescePlan, parts: Sequence[Any]) -> list[tuple[int, int]]:
    """For each range, the plan's segments in it; rows of a plan are in ascending order."""
    if len(parts) == 1:
        return [(0, plan.num_unique)]
    below = rows_below(plan, [edge for part in parts for edge in (part.first, part.end)])
    return [*zip(below[::2], below[1::2], strict=True)]


def _by_lag(rows: np.ndarray, last: NDArray) -> NDArray:
    """Sort rows by the step up to which they are current."""
    return runtime.as_tensor(rows[np.argsort(runtime.as_numpy(last)[rows])])


def _fill_(numbers: NDArray, value: int, first: int, end: int) -> None:
    runtime.as_numpy(numbers, writable=True)[first:end] = value


def _bytes_of(tensor: NDArray) -> int:
    return prod(map(int, tensor.shape)) * format_of(str(tensor.dtype)).array.itemsize


def _lagging(slots: Mapping[str, Any], ranges: Sequence[Any]) -> dict[int, KernelSpec]:
    """Return the kernel specs of the ranges with rows that can lag, by number."""
    parts: Iterator[tuple[int, Any]] = enumerate(ranges if LAST in slots else ())
    return {number: part.rule.spec for number, part in parts if part.rule.spec.lags}


def _checked_rows(name: str, indices: Any, rows: int) -> NDArray:
    """Return row numbers (N,) of a table, from an integer array of any shape.

    Ids on a device are not read; their plan reports ids outside the table.
    """
    if isinstance(indices, runtime.NDArray) and backend_at(indices) is not host():
        if indices.dtype not in ("int32", "int64"):
            raise DataError(f"catch_up: rows of {name!r} are {indices.dtype}, not int32 or int64")
        return reshape_view(indices, (prod(indices.shape),))
    array = np.ravel(runtime.as_numpy(indices) if isinstance(indices, runtime.NDArray) else indices)
    if array.size and (array.min() < 0 or array.max() >= rows):
        bad = int(array[(array < 0) | (array >= rows)][0])
        raise DataError(f"catch_up: row {bad} is outside the {rows} rows of {name!r}")
    return runtime.as_tensor(array, "int32" if array.dtype == np.int32 else "int64")


_catch_up_kernel = backend_kernel("catching up rows", replay.catch_up_kernel)
