# SPDX-License-Identifier: Apache-2.0
"""A gradient program that also updates the dense parameters: what `dense_update="inlined"` runs.

It does what the optimizer does after a program of its own, to the same bits, in the same order: all
gradients, all checks, all writes. `sparsetrain.optim.inlined` says how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.ad import GradientModule
from sparsetrain.arguments import Arguments
from sparsetrain.build import Program
from sparsetrain.optim import Applied, Optimizer, State, accumulate_
from sparsetrain.optim.inlined import Update, inline_updates, width
from sparsetrain.optim.step import Step
from sparsetrain.precision import Policy, to_half

# (loss, gradients) -> the step whose dense updates the program makes, or None for no update.
Begin = Callable[[runtime.NDArray, dict[str, Any]], Step | None]


class InlinedProgram(Program):
    """Loss, gradients and dense updates in one program.

    Parameters
    ----------
    gradient : GradientModule
        From `sparsetrain.ad.gradient`.
    state : State
        Its rules decide the updates.
    target : str or tvm.target.Target
        See `sparsetrain.runtime.resolve_target`.
    precision : Policy, optional
        See `sparsetrain.build.Program`.
    """

    def __init__(
        self,
        gradient: GradientModule,
        state: State,
        target: Any = "auto",
        precision: Policy | None = None,
    ) -> None:
        self.gradient, self.ranges = gradient, state.ranges
        self.updates = list(_updates(gradient, state))
        module = gradient.module
        if precision is not None:  # before the updates, which stay float32
            module = to_half(module, gradient.function, precision)
        module = inline_updates(module, gradient.function, self.updates)
        super().__init__(module, gradient.function, target)
        # Slots and gate are ours; the arguments of the gradient function need the check.
        self.arguments = Arguments(gradient.module[gradient.function], gradient.function)
        shapes = [self.arguments.by_name[update.name].shape or () for update in self.updates]
        self._heights = [
            update.height(tuple(map(int, shape)))
            for update, shape in zip(self.updates, shapes, strict=True)
        ]
        self._rules = [state.ranges[update.name][0].rule for update in self.updates]
        self._numbers = runtime.zeros((len(self.updates), width(self.updates)), "float64")

    def run_(
        self, params: Mapping[str, Any], inputs: Mapping[str, Any], state: State, begin: Begin
    ) -> None:
        """Run the program; writes the dense parameters and their slots.

        `begin` is called before the first write. What it raises comes out here.
        """
        failed: list[BaseException] = []

        def gate(loss: Any, *leaves: Any) -> Any:
            numbers = runtime.as_numpy(self._numbers, writable=True)
            numbers[...] = 0
            try:
                step = begin(loss, self.gradient.unflatten(leaves))
                if step is not None:
                    self._fill_(numbers, step)
            except BaseException as error:  # the virtual machine would change its type
                failed.append(error)
                numbers[...] = 0  # an interrupt may have come between the rows and their numbers
            return self._numbers

        bound = self.arguments.bind(params, inputs)
        runtime.bound_pool(bound[: self.arguments.num_inputs])
        slots = [
            state[update.name][slot.name]
            for update in self.updates
            for slot in update.recipe.formula.slots
        ]
        self._compiled(*bound, *slots, gate)
        if failed:
            raise failed[0]

    def _fill_(self, numbers: np.ndarray, step: Step) -> None:
        numbers[:, 0] = self._heights
        for row, rule in zip(numbers, self._rules, strict=True):
            scalars = step.scalars(rule)
            row[1 : 1 + len(scalars)] = scalars


def _updates(gradient: GradientModule, state: State) -> Iterator[Update]:
    """The dense gradients that are one range and keep no book of rows; others are updated apart."""
    result = 1
    for name, template in gradient.structure.items():
        parts = state.ranges[name]
        if template is None and len(parts) == 1 and (name, 0) not in state.histories:
            yield Update(name, result, parts[0].rule.recipe)
        result += 1 if template is None else len(template.leaves)


class InlinedStep:
    """One step of an optimizer through an `InlinedProgram`, of a batch in one part or several.

    Parameters
    ----------
    program : InlinedProgram
        Runs once for each part; that of the last part updates.
    params : mapping of str to Tensor
        Written.
    optimizer : Optimizer
        Whose step it is.
    state : State
        Written.
    parts : int
        How often `run_` will be called.
    scale : dict, optional
        Of the gradients: `scale` and `may_overflow` as of `Optimizer.prepare`.

    Attributes
    ----------
    loss : Tensor
        Of the whole batch, when all parts are run.
    applied : Applied
        What became of the step.
    """

    loss: runtime.NDArray
    applied: Applied

    def __init__(
        self,
        program: InlinedProgram,
        params: Mapping[str, Any],
        optimizer: Optimizer,
        state: State,
        parts: int = 1,
        scale: Mapping[str, Any] | None = None,
    ) -> None:
        self.program, self.params = program, params
        self.optimizer, self.state = optimizer, state
        self.parts = self.left = parts
        self._scale = scale or {}
        self._total, self._acc = np.float64(0), dict[str, Any]()
        self._step: Step | None = None

    def run_(self, inputs: Mapping[str, Any], share: float = 1.0) -> None:
        """Run one part, which has this share of the rows.

        Raises
        ------
        NumericalError
            As `Optimizer.apply_`; nothing is written then.
        """
        self.left -= 1
        self.program.run_(
            self.params, inputs, self.state, lambda loss, found: self._begin(loss, found, share)
        )
        if self._step is not None:
            written = {update.name for update in self.program.updates}
            self.applied = self._step.finish_(without=written)

    def _begin(self, loss: runtime.NDArray, gradients: dict[str, Any], share: float) -> Step | None:
        if self.parts > 1:
            self._total += share * float(runtime.as_numpy(loss))
            accumulate_(gradients, self._acc, share)
            if self.left:
                return None
            loss, gradients = runtime.as_tensor(np.float32(self._total)), self._sums_(gradients)
        self.loss = loss
        prepared = self.optimizer.prepare(
            self.params, gradients, self.state, loss=loss, **self._scale
        )
        if isinstance(prepared, Applied):
            self.applied = prepared
            return None
        self._step = prepared
        return prepared

    def _sums_(self, gradients: dict[str, Any]) -> dict[str, Any]:
        """The sums of all parts; dense ones where the program will read them."""
        for update in self.program.updates:
            into = runtime.as_numpy(gradients[update.name], writable=True)
            into[...] = runtime.as_numpy(self._acc[update.name])
        return self._acc
