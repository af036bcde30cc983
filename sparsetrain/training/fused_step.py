# SPDX-License-Identifier: Apache-2.0
"""A gradient program that also updates the parameters, and the steps that it takes.

Between two kernels Python runs on cold caches, several times slower than by itself; of a step on
Criteo Kaggle it took half a millisecond of fifteen. Here it runs before the first kernel and after
the last one. `sparsetrain.optim.fused` says what the program does; the bits are those of an
optimizer after a program of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.ad import GradientModule
from sparsetrain.compiler.precision import Policy, to_half
from sparsetrain.compiler.program import Program
from sparsetrain.errors import DataError
from sparsetrain.optim import Applied, Optimizer, State
from sparsetrain.optim.fused.layout import (
    KEYS,
    NUMBERS,
    REPORT,
    WORK,
    Layout,
    numbers_shape,
    report_size,
    slot_name,
    strips_of,
    tables_of,
)
from sparsetrain.optim.fused.updates import fuse_updates
from sparsetrain.optim.gradients import is_finite, problem_of
from sparsetrain.optim.preparing import left_out
from sparsetrain.sparse_tensor.coalesce import strips_for
from sparsetrain.sparse_tensor.strips import NOTES


class FusedProgram(Program):
    """Loss, gradients and updates in one program, which returns the loss.

    Parameters
    ----------
    gradient : GradientModule
        From `sparsetrain.ad.gradient`.
    layout : Layout
        The updates.
    target : str or tvm.target.Target
        A CPU.
    precision : Policy, optional
        See `sparsetrain.compiler.program.Program`.
    """

    def __init__(
        self,
        gradient: GradientModule,
        layout: Layout,
        target: Any = "auto",
        precision: Policy | None = None,
    ) -> None:
        self.structure, self.layout = gradient.structure, layout
        module = gradient.module
        if precision is not None:  # before the updates, which stay float32
            module = to_half(module, gradient.function, precision)
        module = fuse_updates(module, gradient.function, self.structure, layout)
        super().__init__(module, gradient.function, target)


class FusedSteps:
    """Steps on one state through a `FusedProgram`, by one set of rules.

    Parameters
    ----------
    program : FusedProgram
        Laid out for the rules of the state.
    state : State
        Whose rules they are; written.
    """

    def __init__(self, program: FusedProgram, state: State) -> None:
        self.program = program
        structure = program.structure
        self._rules = state.rules(structure)
        self._tables = tables_of(structure)
        self._numbers = runtime.zeros(numbers_shape(program.layout), "float64")
        self._keys = runtime.zeros((len(self._tables), 2), "int64")
        self._report = runtime.zeros((report_size(structure),), "int64")
        self._found = runtime.as_numpy(self._report)
        self._set: tuple[list[Any], list[Any]] = [], []
        self._work: dict[int, runtime.NDArray] = {}
        self._given: tuple[list[str], list[runtime.NDArray]] = [], []
        self._arguments: dict[str, runtime.NDArray] = {}

    def take_(
        self,
        params: Mapping[str, Any],
        inputs: Mapping[str, Any],
        optimizer: Optimizer,
        state: State,
        *,
        lookups: int,
        scale: float = 1.0,
        may_overflow: bool = False,
    ) -> tuple[runtime.NDArray, Applied]:
        """Take a step of `optimizer`, which owns the state: loss, and what became of the step.

        Parameters
        ----------
        params, inputs : mapping of str to array
            As of `Program`, ids checked; parameters are written.
        lookups : int
            Ids of the largest gradient.
        scale, may_overflow
            As of `Optimizer.apply_`.

        Raises
        ------
        DataError
            If an argument does not fit; nothing is written then.
        NumericalError
            If a gradient or the loss is not finite; nothing is written then.
        """
        number = state.step + 1
        self._set_numbers_(state, number, scale)
        arguments = self._arguments_of(params, state)
        work = self._work_for(lookups)
        loss = self.program(arguments, {**inputs, WORK: work}, checked=True)
        if self._found[0]:
            problem = self._problem(loss)
            overflowed = may_overflow and is_finite(loss)
            return loss, left_out(optimizer, problem, state, scale, overflowed)
        state.step = number
        return loss, Applied(number)

    def _set_numbers_(self, state: State, step: int, scale: float) -> None:
        """Write what kernels get in a step, unless it is there."""
        scalars = [rule.scalars(rule.numbers(step), 1 / scale) for rule in self._rules]
        keys = [state.noise_keys(name, step) for name in self._tables]
        if (scalars, keys) == self._set:
            return
        for tensor, rows in ((self._numbers, scalars), (self._keys, keys)):
            for row, values in zip(runtime.as_numpy(tensor, writable=True), rows, strict=True):
                row[: len(values)] = values
        self._set = scalars, keys

    def _arguments_of(self, params: Mapping[str, Any], state: State) -> dict[str, runtime.NDArray]:
        """Parameters, slots and what is ours by name; found once for the same tensors."""
        names = [*params]
        tensors = [*params.values(), *state.tensors()]
        if names != self._given[0] or not all(map(is_, tensors, self._given[1])):
            slots = {
                slot_name(name, slot): tensor
                for name, own in state.items()
                for slot, tensor in own.items()
            }
            ours = {
                NUMBERS: self._numbers,
                KEYS: self._keys,
                REPORT: self._report,
            }
            self._given, self._arguments = (names, tensors), {**params, **slots, **ours}
        return self._arguments

    def _work_for(self, lookups: int) -> runtime.NDArray:
        strips = max(strips_for(lookups), strips_of(self.program.layout))
        if strips not in self._work:
            self._work[strips] = runtime.empty((strips, NOTES), "int32")
        return self._work[strips]

    def _problem(self, loss: runtime.NDArray) -> str:
        """What is not finite, in words.

        Raises
        ------
        DataError
            If everything is, so that rows must be outside their table.
        """
        structure = self.program.structure
        arrays = 1 + len(structure)
        places = np.flatnonzero(self._found[1 : 1 + arrays])
        if places.size:
            return problem_of(int(places[0]), loss, structure)
        table = int(np.flatnonzero(self._found[1 + arrays :])[0])
        outside, name = self._found[1 + arrays + table], self._tables[table]
        rows = getattr(structure[name], "num_rows", 0)
        raise DataError(f"{outside} row indices lie outside the {rows} rows of {name!r}")
