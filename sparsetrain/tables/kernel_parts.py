# SPDX-License-Identifier: Apache-2.0
"""Building blocks of optimizer kernels: a parameter's arguments, and the formula on one element.

All kernels apply a spec through `Row.update`, so they perform the same arithmetic: a row has the
same bits whether it is updated alone, updated densely, or caught up later.

Tables in narrower dtypes are converted to float32 when read, and rounded when written: see
`sparsetrain.kernels.table_formats`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from types import SimpleNamespace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.builder import buffer, extents, line_starts, scalar
from sparsetrain.kernels.loops import column_tiles
from sparsetrain.kernels.table_formats import TableFormat, format_of
from sparsetrain.kernels.table_formats.rows import PlainRow
from sparsetrain.tables.formula import KernelSpec
from sparsetrain.tables.multiply_add import fuse_multiply_adds
from sparsetrain.tables.slots import slots_of


def flat(array: Any) -> Any:
    """An array argument, viewed as (1, n)."""
    return T.decl_buffer((1, _size(array.shape)), array.dtype, data=array.data)


def matrix(array: Any) -> Any:
    """An array argument, viewed as (rows, columns); a vector has rows of one element."""
    *rows, columns = array.shape if len(array.shape) > 1 else (*array.shape, 1)
    return T.decl_buffer((_size(rows), columns), array.dtype, data=array.data)


def _size(extents: Sequence[Any]) -> Any:
    return reduce(operator.mul, extents) if extents else 1


def scalars(spec: KernelSpec, dtype: str) -> SimpleNamespace:
    """Declare the scalars of a spec as arguments, then those of `Table.marks`."""
    stored = format_of(dtype)
    h = SimpleNamespace(**{name: scalar(name, stored.computed) for name in spec.scalars})
    if stored.rounded:
        h.keys = scalar("first_key", "int64"), scalar("second_key", "int64")
    if spec.lags:
        h.now = scalar("now", "int32")
    return h


def declare_report() -> Any:
    """Declare the report (n,) int64: element 0 is 0 if the step may be written."""
    return buffer("report", extents(1), "int64")


def declare_numbers() -> Any:
    """Declare the numbers (R, K) float64: a row of scalars for each rule."""
    return buffer("numbers", extents(2), "float64")


def bind_scalars(spec: KernelSpec, dtype: str, numbers: Any, rule: int) -> SimpleNamespace:
    """Read the scalars of a spec, by name, from the rule's row of `numbers`."""
    return SimpleNamespace(
        **{
            name: T.Bind(tirx.Cast(dtype, numbers[rule, column]))
            for column, name in enumerate(spec.scalars)
        }
    )


def bind_marks(spec: KernelSpec, stored: TableFormat, h: SimpleNamespace, marks: Any) -> None:
    """Add the numbers of `Table.marks` to `h`; ``marks(column)`` reads one of them."""
    if stored.rounded:
        h.keys = marks(0), marks(1)
    if spec.lags:
        h.now = tirx.Cast("int32", marks(2 * stored.rounded))


def is_flat(spec: KernelSpec, stored: TableFormat) -> bool:
    """Whether an update may ignore row boundaries: neither formula nor rounding uses the row."""
    return not (spec.formula.by_row or stored.rounded)


class Parameter:
    """Weight and slots of one parameter, viewed as (rows, columns).

    Attributes
    ----------
    stored : TableFormat
        Format of the stored weights.
    dtype : str
        Dtype of the arithmetic and of the slots.
    """

    def __init__(
        self, spec: KernelSpec, weight: Any, slots: Sequence[Any], width: Any, stored: TableFormat
    ) -> None:
        self.spec, self.weight, self.slots = spec, weight, list(slots)
        self.width, self.stored, self.dtype = width, stored, stored.computed
        self.lanes: int | None = None  # columns of a vector; by default as in `column_tiles`
        self.place: tuple[Any, Any] | None = None  # for a copied row: the row, its first column
        self.last: list[Any] = []  # the slot `last`, if an update writes it

    @classmethod
    def declare(cls, spec: KernelSpec, rows: Any, width: Any, dtype: str) -> Parameter:
        """Declare weight and slots, and `last` if rows can lag, as the kernel's next arguments."""
        shapes = {"element": (rows, width), "row": (rows,)}
        stored, own = format_of(dtype), len(spec.formula.slots)
        weight = buffer("weight", (rows, stored.extent(width)), stored.seen)
        slots = [buffer(slot.name, shapes[slot.per], of) for slot, of in slots_of(spec, dtype)]
        declared = cls(spec, weight, slots[:own], width, stored)
        declared.last = slots[own:]
        return declared

    def open(self, row: Any, h: SimpleNamespace) -> PlainRow:
        """Open a row to read and write its weights, in the step that `h` describes."""
        return self.stored.row(self, row, h)

    def tiles(self) -> tuple[int, int]:
        """Number of SIMD vectors in a row, and the columns of each."""
        if self.lanes is None:
            return column_tiles(self.width)
        return self.width // self.lanes, self.lanes

    def lines(self) -> list[tuple[Any, list[int]]]:
        """Weight and slots to prefetch for a row: arrays, and columns where cache lines begin.

        At most four lines of each, or eight if the table is rounded: rounding takes so many
        instructions that the processor does not reach the loads of later rows by itself.
        """
        most = 8 if self.stored.rounded else 4
        arrays = [self.weight, *(slot for slot in self.slots if len(slot.shape) > 1)]
        return [(array, line_starts(array, most)) for array in arrays]

    @property
    def per_row(self) -> list[Any]:
        """The arrays (V,) with one number for each row."""
        return [array for array in (*self.slots, *self.last) if len(array.shape) == 1]

    def note_step(self, row: Any, h: SimpleNamespace) -> None:
        """Mark a row as current after this step, if rows can lag."""
        for array in self.last:
            T.buffer_store(array, h.now, [row])

    def begin_row(
        self, row: Any, gradient: Callable[[Any], Any], h: SimpleNamespace, count: Any = None
    ) -> Row:
        """Read the values that a row shares; ``gradient(column)`` is the raw gradient.

        `count` is the number of summed entries, 0 by default.
        """
        formula = self.spec.formula
        old = tuple(
            T.Bind(array[row]) if slot.per == "row" else None
            for slot, array in zip(formula.slots, self.slots, strict=True)
        )
        h = SimpleNamespace(**vars(h), count=zero(self.dtype) if count is None else count)
        weights = self.open(row, h)
        if formula.row_means:
            h.width = tirx.Cast(self.dtype, self.width)
            vars(h).update(self._means(weights, gradient, h, old))
        return Row(self, weights, h, old)

    def _means(
        self,
        weights: PlainRow,
        gradient: Callable[[Any], Any],
        h: SimpleNamespace,
        old: tuple[Any, ...],
    ) -> dict[str, Any]:
        """Compute the means that a row shares, by name."""
        means = self.spec.formula.row_means
        totals = T.alloc_local((len(means),), self.dtype)
        for place in range(len(means)):
            T.buffer_store(totals, zero(self.dtype), [place])
        with T.serial(0, self.width) as d:
            w, g = self.spec.prepare(weights.read(d), gradient(d), h)
            slots = tuple(
                array[weights.row, d] if kept is None else kept
                for array, kept in zip(self.slots, old, strict=True)
            )
            for place, mean in enumerate(means):
                total = fuse_multiply_adds(totals[place] + mean.of(w, g, slots, h))
                T.buffer_store(totals, total, [place])
        return {mean.name: T.Bind(totals[place] / h.width) for place, mean in enumerate(means)}


class Row:
    """A row during a step: values shared by its elements."""

    def __init__(
        self, parameter: Parameter, weights: PlainRow, h: SimpleNamespace, old: tuple[Any, ...]
    ) -> None:
        self.parameter, self.weights, self.h, self.old = parameter, weights, h, old
        weights.begin()

    def update(self, column: Any, gradient: Any) -> None:
        """Apply the spec to one element; all results are bound before the first is stored."""
        p, place = self.parameter, (self.weights.row, column)
        formula = p.spec.formula
        old = tuple(
            T.Bind(array[place]) if kept is None else kept
            for array, kept in zip(p.slots, self.old, strict=True)
        )
        weight, gradient = p.spec.prepare(self.weights.read(column), gradient, self.h)
        new_weight, new_slots = formula.step(weight, gradient, old, self.h)
        results = [T.Bind(fuse_multiply_adds(value)) for value in (new_weight, *new_slots)]
        self.weights.write(column, results[0])
        for slot, array, value in zip(formula.slots, p.slots, results[1:], strict=True):
            if slot.per == "element":
                T.buffer_store(array, value, list(place))

    def end(self) -> None:
        """Write the per-row slots once, since they do not depend on a single element."""
        self.weights.end()
        self.parameter.note_step(self.weights.row, self.h)
        formula = self.parameter.spec.formula
        if not any(slot.per == "row" for slot in formula.slots):
            return
        unused = zero(self.parameter.dtype)  # a placeholder for an element's values
        old = tuple(unused if value is None else value for value in self.old)
        _, new = formula.step(unused, unused, old, self.h)
        for slot, array, value in zip(formula.slots, self.parameter.slots, new, strict=True):
            if slot.per == "row":
                T.buffer_store(array, fuse_multiply_adds(value), [self.weights.row])


def zero(dtype: str) -> Any:
    """The constant 0."""
    return tirx.const(0, dtype)
