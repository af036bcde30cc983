# SPDX-License-Identifier: Apache-2.0
"""One step in progress: every gradient to its parameter, range by range, by the path of its rule.

Nothing is written before all plans are made and found current.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from sparsetrain import runtime
from sparsetrain.optim.bound import Bound, bound_to
from sparsetrain.optim.exact.rows import replay_range_
from sparsetrain.optim.gradients import Gradient
from sparsetrain.optim.param_groups import RowRange
from sparsetrain.optim.paths.parting import Paths, paths_of
from sparsetrain.optim.range_update import (
    Target,
    densified,
    matrix_shape,
    segment_spans,
    update_dense_,
)
from sparsetrain.optim.repeated import Repeated, RepeatedDense, RepeatedRows
from sparsetrain.optim.rule import Rule
from sparsetrain.optim.state import State, set_last_
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.tensors import on_gpu, to_device
from sparsetrain.sparse_tensor import CoalescePlan, RowSparse
from sparsetrain.sparse_tensor.cuda.coalesce import DeviceSort


class Applied(NamedTuple):
    """What a step did.

    Parameters
    ----------
    step : int
        Its number, from 1; of a skipped step, that of the one before.
    norm : float or None
        Global norm of the gradients before clipping, if `clip_norm` is set.
    skipped : str or None
        What was not finite, so that nothing was updated.
    overflowed : bool
        Whether a scale may have made it so.
    """

    step: int
    norm: float | None = None
    skipped: str | None = None
    overflowed: bool = False


class Step:
    """The step after `state.step`, in two halves: everything that may fail, then the writes.

    Making one asks every schedule and parts every row-sparse gradient (`parting`). Gradients are
    multiplied by `scale` where a rule wants it; `norm` is what they had before. `bound` is what is
    known of these arguments, if it is; `sorts` are on their way on a device, and are waited for.
    """

    def __init__(
        self,
        params: Mapping[str, NDArray],
        gradients: Mapping[str, Gradient],
        state: State,
        scale: float,
        norm: float | None,
        bound: Bound | None = None,
        sorts: Mapping[str, DeviceSort] = MappingProxyType({}),
    ) -> None:
        self.params, self.gradients, self.state = params, gradients, state
        self.scale, self.norm = scale, norm
        self.number = state.step + 1
        self._bound = bound or bound_to(params, gradients, state)
        self._numbers = {rule: rule.numbers(self.number) for rule in self._bound.rules}
        self._sorts = sorts
        self._repeated: dict[str, Repeated] = {}
        self._paths: dict[str, Paths] = {}
        for name in self._bound.tables:
            gradient: Any = gradients[name]
            again = None if state.plans else self._bound.repeated(name, gradient)
            if again is not None:
                self._repeated[name] = again
            else:
                plan = CoalescePlan(*sorts[name].wait()) if name in sorts else None
                self._paths[name] = paths_of(params, state, name, gradient, plan)

    def finish_(self) -> Applied:
        """Write: update every parameter."""
        together, others = self._bound.parted
        for group in together:
            group.update_(self.gradients, self.scalars(group.rule))
        for name in others:
            if name in self._repeated:
                self._repeated_(name)
            elif name in self._paths:
                self._row_sparse_(name)
            else:
                self._dense_(name)
        self._bound.sorts.update(self._sorts)
        self.state.caught.clear()
        self.state.step += 1
        return Applied(self.number, self.norm)

    def scalars(self, rule: Rule) -> tuple[float, ...]:
        """What kernels get."""
        return rule.scalars(self._numbers[rule], self.scale)

    def _repeated_(self, name: str) -> None:
        """Update one table as in the last step."""
        update, gradient = self._repeated[name], self.gradients[name]
        keys = self.state.noise_keys(name, self.number)
        update.finish_(gradient, lambda rule: (*self.scalars(rule), *keys))
        self._bound.repeat(name, update)

    def _row_sparse_(self, name: str) -> None:
        """Update one table, the dense rows first, then range by range those of the plan."""
        target = Target(self.params[name], self.state[name])
        keys = self.state.noise_keys(name, self.number)
        dense, sparse, _ = self._paths[name]
        if dense is not None:
            path, near = dense
            path.update_(target, near, lambda rule: (*self.scalars(rule), *keys))
        if sparse is not None:
            self._planned_(name, *sparse, keys)
        for number, part in enumerate(self.state.ranges[name]):
            history = self.state.histories.get((name, number))
            if history is not None:
                history.append(self._numbers[part.rule], keys)
        if not self.state.histories:
            self._keep(name, target)

    def _planned_(
        self, name: str, gradient: RowSparse, plan: CoalescePlan, keys: tuple[int, ...]
    ) -> None:
        """Update the rows of a plan, range by range; on a host the dense ones are done."""
        parts = self.state.ranges[name]
        for number, (part, span) in enumerate(zip(parts, segment_spans(plan, parts), strict=True)):
            if not part.rule.dense:
                history = self.state.histories.get((name, number))
                now = None if history is None else history.now + 1
                update_ = self._bound.row_update(name, number)
                update_(gradient, plan, (*self.scalars(part.rule), *keys), span, now)
            elif on_gpu(self.params[name]):
                self._range_(name, densified(gradient, plan, part, span), part)

    def _keep(self, name: str, target: Target) -> None:
        """Let the next step repeat this one, if all entries took one path."""
        dense, sparse, sort = self._paths[name]
        parts = self.state.ranges[name]
        if sparse is None and dense is not None:
            count = self.gradients[name].nse
            self._bound.repeat(name, RepeatedDense(dense[0], target, count))
        elif sort is not None and dense is None and len(parts) == 1:
            update = self._bound.row_update(name, 0)
            self._bound.repeat(name, RepeatedRows(sort, update, parts[0].rule))

    def _dense_(self, name: str) -> None:
        """Update one parameter by a dense gradient: rows must be current before, and are after."""
        whole: Any = self.gradients[name]
        rows, width = matrix_shape(self.params[name])
        for number, part in enumerate(self.state.ranges[name]):
            history = self.state.histories.get((name, number))
            if history is not None:
                replay_range_(self.params, self.state, name, number, None)
            gradient = whole
            if (part.first, part.end) != (0, rows):
                view = runtime.as_numpy(whole).reshape(rows, width)[part.first : part.end]
                gradient = to_device(runtime.as_tensor(view), whole.device)
            self._range_(name, gradient, part)
            if history is not None:
                set_last_(self.state[name], part, history.now + 1)
                history.append(self._numbers[part.rule])

    def _range_(self, name: str, gradient: NDArray, part: RowRange) -> None:
        target, scalars = Target(self.params[name], self.state[name]), self.scalars(part.rule)
        update_dense_(target, gradient, part.rule, scalars, (part.first, part.end))
