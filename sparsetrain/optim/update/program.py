# SPDX-License-Identifier: Apache-2.0
"""Update program: a compiled function that checks gradients and updates parameters.

One call is a step. Python runs before the first kernel and after the last one, not between them,
where caches are cold and Python is several times slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_
from typing import Any

import numpy as np
import tvm

from sparsetrain import runtime
from sparsetrain.compiler.precision.loss_scale import NO_SCALE, Scale
from sparsetrain.compiler.program import Program
from sparsetrain.errors import DataError
from sparsetrain.optim.gradients import problem_of
from sparsetrain.optim.result import StepResult, skip_step
from sparsetrain.optim.state import State
from sparsetrain.optim.update.function import append_update
from sparsetrain.optim.update.layout import (
    NOISE_KEYS,
    NUMBERS,
    REPORT,
    SCRATCH,
    Layout,
    Structure,
    keys_shape,
    numbers_shape,
    report_size,
    slot_name,
    tables_of,
)
from sparsetrain.runtime import NDArray
from sparsetrain.sparse_tensor.coalesce import chunks_for
from sparsetrain.sparse_tensor.plan_kernel import CHUNK_NOTES


class UpdateProgram(Program):
    """A gradient function and an update in one program that returns the loss.

    Parameters
    ----------
    module, function
        A Relax function that returns a loss and the leaves of gradients.
    structure : mapping
        Parameter -> None for a dense gradient, or a traced `RowSparse`.
    layout : Layout
        The update.
    target : str or tvm.target.Target
        A CPU target.
    """

    _is_gradient = True

    def __init__(
        self,
        module: tvm.IRModule,
        function: str,
        structure: Structure,
        layout: Layout,
        target: Any = "cpu",
    ) -> None:
        self.structure, self.layout = structure, layout
        super().__init__(append_update(module, function, structure, layout), function, target)


class UpdateStep:
    """Steps on one state through an `UpdateProgram`, with the state's current rules.

    Parameters
    ----------
    program : UpdateProgram
        A program with the layout for these rules.
    state : State
        The state that `run_` will write.
    """

    def __init__(self, program: UpdateProgram, state: State) -> None:
        self.program = program
        structure, layout = program.structure, program.layout
        self._rules = state.rules(structure)
        self._tables = tables_of(structure)
        self._numbers = runtime.zeros(numbers_shape(layout), "float64")
        self._keys = runtime.zeros(keys_shape(layout), "int64")
        self._scalars = runtime.as_numpy(self._numbers, writable=True)
        self._report = runtime.zeros((report_size(structure),), "int64")
        self._reported = runtime.as_numpy(self._report)
        self._written: list[tuple[float, ...]] = []  # the scalars that `_numbers` now holds
        # If no rule depends on the step: the last (lr_scale, factor), and the rules' numbers for
        # it.
        self._steady: tuple[float, float] | None = None
        self._last: list[tuple[float, ...]] = []
        self._is_dense = {name: name not in self._tables for name in structure}
        self._whole = {name for name, dense in self._is_dense.items() if dense}
        updates = [
            (table, number, span)
            for table in map(state.tables.table, self._tables)
            for number in range(len(table.ranges))
            for span in table.spans(number)
        ]
        keys = runtime.as_numpy(self._keys, writable=True)
        for own, (*_, span) in zip(keys, updates, strict=False):
            own[3:] = span[: len(own) - 3]
        self._marked = [
            (own, table, number)
            for own, (table, number, _) in zip(keys, updates, strict=False)
            if table.marks(number, 0, 0)
        ]
        self._lookups = -1  # number of lookups that `SCRATCH` has room for
        self._bound: tuple[list[str], list[NDArray]] = [], []
        self._arguments: dict[str, NDArray] = {}

    def run_(
        self,
        params: Mapping[str, NDArray],
        inputs: Mapping[str, Any],
        state: State,
        lookups: int,
        scale: Scale = NO_SCALE,
    ) -> tuple[NDArray, StepResult]:
        """Take a step; return the loss, and the result of the step.

        Parameters
        ----------
        params, inputs : mapping of str to array
            The arguments of the program; ids must be inside their tables. Parameters are written.
        state : State
            Written.
        lookups : int
            Number of entries of the largest row-sparse gradient.
        scale : Scale, optional
            Scale of the gradients.

        Raises
        ------
        DataError
            If an argument does not fit; nothing is written then.
        NumericalError
            If a gradient or the loss is not finite; nothing is written then.
        """
        tables = state.tables
        tables.hold(params, self._whole)
        number = tables.step + 1
        numbers = self._write_numbers_(number, state.lr_scale, scale.factor)
        if self._marked:
            self._write_marks_(state, number)
        loss = self.program(self._bind(params, state, lookups), inputs, checked=True)
        if self._reported[0]:
            return loss, skip_step(state, self._problem(loss), scale, loss)
        tables.note_step(number, state.seed, self._rules, numbers, self._is_dense)
        return loss, StepResult(number, scale.norm)

    def _write_numbers_(self, step: int, lr_scale: float, factor: float) -> list[tuple[float, ...]]:
        """Write each rule's scalars for a step, unless unchanged; return the rules' numbers."""
        if self._steady == (lr_scale, factor):
            return self._last
        numbers, scalars = [], []
        for rule in self._rules:
            numbers.append(rule.numbers(step, lr_scale))
            scalars.append(rule.scalars(numbers[-1], factor))
        if scalars != self._written:
            for row, values in zip(self._scalars, scalars, strict=True):
                row[: len(values)] = values
            self._written = scalars
        if not any(rule.changes for rule in self._rules):
            self._steady, self._last = (lr_scale, factor), numbers
        return numbers

    def _write_marks_(self, state: State, step: int) -> None:
        """Write the numbers of `Table.marks` for tables that need them."""
        for own, table, number in self._marked:
            marks = table.marks(number, state.seed, step)
            own[: len(marks)] = marks

    def _bind(
        self, params: Mapping[str, NDArray], state: State, lookups: int
    ) -> dict[str, NDArray]:
        """Return all arguments except inputs; reuse the last dictionary for the same tensors."""
        names = [*params]
        tensors = [*params.values(), *state.tables.slots()]
        if names != self._bound[0] or not all(map(is_, tensors, self._bound[1])):
            slots = {
                slot_name(name, slot): tensor
                for name, own in state.items()
                for slot, tensor in own.items()
            }
            own = {NUMBERS: self._numbers, NOISE_KEYS: self._keys, REPORT: self._report}
            self._bound, self._arguments = (names, tensors), {**params, **slots, **own}
            self._lookups = -1
        if lookups != self._lookups:
            work = runtime.empty((chunks_for(lookups), CHUNK_NOTES), "int32")
            self._arguments = {**self._arguments, SCRATCH: work}
            self._lookups = lookups
        return self._arguments

    def _problem(self, loss: NDArray) -> str:
        """Describe the values that are not finite.

        Raises
        ------
        DataError
            If all values are finite: then the step failed since row indices are outside a table.
        """
        structure = self.program.structure
        arrays = 1 + len(structure)
        places = np.flatnonzero(self._reported[1 : 1 + arrays])
        if places.size:
            return problem_of(int(places[0]), loss, structure)
        table = int(np.flatnonzero(self._reported[1 + arrays :])[0])
        outside, name = self._reported[1 + arrays + table], self._tables[table]
        rows = getattr(structure[name], "num_rows", 0)
        raise DataError(f"{outside} row indices lie outside the {rows} rows of {name!r}")
