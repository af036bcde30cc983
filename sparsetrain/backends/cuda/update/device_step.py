# SPDX-License-Identifier: Apache-2.0
"""A step on a GPU: update kernels launched one by one, after everything that may fail.

The host waits for the device once, to read the loss, the check for NaN and infinity, and the number
of touched rows. It does not wait for the updates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

from sparsetrain import runtime
from sparsetrain.backends.cuda.sparse.coalesce import DeviceSort
from sparsetrain.backends.cuda.update.launch import (
    Foreach,
    RowUpdate,
    count_up_,
    densified,
    update_dense_,
)
from sparsetrain.compiler.precision.loss_scale import Scale
from sparsetrain.optim.gradients import Gradient, nonfinite
from sparsetrain.optim.result import StepResult, skip_step
from sparsetrain.optim.state import State
from sparsetrain.optim.update.apply import check_arguments
from sparsetrain.optim.update_rule import UpdateRule
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.pool import scratch_tensor
from sparsetrain.runtime.tensors import leading_rows, on_host
from sparsetrain.sparse_tensor import CoalescePlan, RowSparse
from sparsetrain.tables.slots import Target
from sparsetrain.tables.table import segment_spans


class DeviceStep:
    """The steps of one optimizer state, for gradients of fixed names and kinds (dense or sparse).

    Parameters
    ----------
    params, gradients : mapping
        Parameters and gradients, already checked against each other and the state.
    state : State
        The state that `run_` will write.
    """

    machines: Sequence[Any] = ()  # none: kernels are launched one by one

    def __init__(
        self, params: Mapping[str, NDArray], gradients: Mapping[str, Gradient], state: State
    ) -> None:
        self._lay_out(params, gradients, state)

    def _lay_out(
        self, params: Mapping[str, NDArray], gradients: Mapping[str, Gradient], state: State
    ) -> None:
        self._targets = {name: Target(params[name], state[name]) for name in gradients}
        self._tensors = [*params.values(), *state.tables.slots()]
        self._tables = [n for n, g in gradients.items() if isinstance(g, RowSparse)]
        self._dense = {
            n: tuple(g.shape) for n, g in gradients.items() if not isinstance(g, RowSparse)
        }
        for name in self._tables:
            state.tables.table(name).require_last()
        self._rules = state.rules(gradients)
        self._sorts: dict[str, DeviceSort] = {}  # sorts from the last step, reused in the next
        self._updates: dict[tuple[str, int], RowUpdate] = {}
        self._foreach = self._grouped(state)
        done = {name for group in self._foreach for name in group.names}
        self._others = [name for name in gradients if name not in done]

    def _fits(
        self, params: Mapping[str, NDArray], gradients: Mapping[str, Gradient], state: State
    ) -> bool:
        """Return whether tensors are the same objects as before and dense gradients keep shapes."""
        tensors = [*params.values(), *state.tables.slots()]
        return (
            len(tensors) == len(self._tensors)
            and all(map(is_, tensors, self._tensors))
            and all(tuple(gradients[name].shape) == shape for name, shape in self._dense.items())
        )

    def _grouped(self, state: State) -> list[Foreach]:
        """Group dense parameters, except scalars, by rule and dtype."""
        alike: defaultdict[tuple[UpdateRule, str], list[str]] = defaultdict(list)
        for name in self._dense:
            parts, param = state.tables.table(name).ranges, self._targets[name].param
            if param.shape and len(parts) == 1:
                alike[parts[0].rule, str(param.dtype)].append(name)
        return [
            Foreach(rule, {name: self._targets[name] for name in names})
            for (rule, _), names in alike.items()
        ]

    def run_(
        self,
        params: Mapping[str, NDArray],
        gradients: Mapping[str, Gradient],
        state: State,
        loss: NDArray | None,
        scale: Scale,
    ) -> tuple[NDArray | None, StepResult]:
        """See `Step`."""
        if not self._fits(params, gradients, state):
            check_arguments(state.owner.full_formula, params, gradients, state)
            self._lay_out(params, gradients, state)
        sorts = {} if scale.norm is not None else self._begin_sorts(gradients, state)
        problem = nonfinite(loss, gradients)
        if loss is not None and not on_host(loss):
            loss = runtime.as_tensor(runtime.as_numpy(loss))
        if problem is not None:
            return loss, skip_step(state, problem, scale, loss)
        numbers = {rule: rule.numbers(state.step + 1, state.lr_scale) for rule in self._rules}
        scalars = {rule: rule.scalars(own, scale.factor) for rule, own in numbers.items()}
        plans = {name: self._plan(name, gradients[name], state, sorts) for name in self._tables}
        state.tables.hold(params, self._dense)
        for name, plan in plans.items():
            state.tables.table(name).require_current(plan)
        for group in self._foreach:
            group.update_(gradients, scalars[group.rule])
        for name in self._others:
            if name in plans:
                self._update_rows_(name, gradients[name], plans[name], state, scalars)
            else:
                self._update_dense_(name, gradients[name], state, scalars)
        is_dense = {name: name in self._dense for name in self._targets}
        taken = numbers.keys(), numbers.values()
        state.tables.note_step(state.step + 1, state.seed, *taken, is_dense)
        self._sorts.update(sorts)
        return loss, StepResult(state.step, scale.norm)

    def _begin_sorts(
        self, gradients: Mapping[str, Gradient], state: State
    ) -> dict[str, DeviceSort]:
        """Start sorting the ids of gradients without a plan, while the host continues."""
        begun = {}
        for name in self._tables:
            gradient = gradients[name]
            if gradient.coalesced or name in state.plans or state.tables.table(name).read:
                continue
            indices, num_rows = gradient.indices, gradient.num_rows
            sort = self._sorts.pop(name, None)
            if sort is None or not sort.fits(indices, num_rows):
                sort = DeviceSort(indices, num_rows)
            sort.begin(indices)
            begun[name] = sort
        return begun

    def _plan(
        self, name: str, gradient: RowSparse, state: State, sorts: Mapping[str, DeviceSort]
    ) -> CoalescePlan:
        """Return the plan of a gradient: an existing one, or the result of its sort."""
        if name in sorts:
            return CoalescePlan(*sorts[name].wait())
        planned, plan = state.plans.get(name, (None, None))
        if plan is not None and planned is gradient:
            return plan
        if gradient.coalesced:
            return trivial_plan(gradient)
        return state.tables.table(name).plan_of(gradient)

    def _update_rows_(
        self,
        name: str,
        gradient: RowSparse,
        plan: CoalescePlan,
        state: State,
        scalars: Mapping[UpdateRule, tuple[float, ...]],
    ) -> None:
        """Update one table, range by range."""
        table = state.tables.table(name)
        spans = segment_spans(plan, table.ranges)
        for number, (part, span) in enumerate(zip(table.ranges, spans, strict=True)):
            own = scalars[part.rule] + table.marks(number, state.seed, state.step + 1)
            if part.rule.dense:
                dense = densified(gradient, plan, part, span)
                rows = part.first, part.end
                update_dense_(self._targets[name], dense, part.rule, own, rows)
                continue
            key = name, number
            if key not in self._updates:
                self._updates[key] = RowUpdate(self._targets[name], part.rule)
            self._updates[key](gradient, plan, own, span)

    def _update_dense_(
        self,
        name: str,
        whole: NDArray,
        state: State,
        scalars: Mapping[UpdateRule, tuple[float, ...]],
    ) -> None:
        """Update one parameter by a dense gradient."""
        for part in state.tables.table(name).ranges:
            rows = part.first, part.end
            update_dense_(
                self._targets[name], whole, part.rule, scalars[part.rule], rows, part.first
            )


def trivial_plan(gradient: RowSparse) -> CoalescePlan:
    """Return the plan of a coalesced tensor: every entry is its own segment."""
    indices = gradient.indices
    numbers = scratch_tensor((gradient.nse + 1,), "int32", indices)
    count_up_(numbers)
    return CoalescePlan(indices, leading_rows(numbers, gradient.nse), numbers)
