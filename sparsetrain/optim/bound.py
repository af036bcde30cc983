# SPDX-License-Identifier: Apache-2.0
"""What steps have in common, found once: tensors known to fit, kernels, arguments in their order.

Between two kernels Python runs on cold caches, several times slower than by itself. So a step asks
as little as it can: whether it is given the same tensors as the last one, by identity. The shapes
of gradients, which are new in every step, and the dtypes of all their values are compared by the
kernels that read them first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import chain
from operator import is_

from sparsetrain.optim.finite import Search
from sparsetrain.optim.gradients import Gradient
from sparsetrain.optim.range_update import RowUpdate, Target
from sparsetrain.optim.repeated import Repeated
from sparsetrain.optim.rule import Rule
from sparsetrain.optim.state import State
from sparsetrain.optim.together import Together
from sparsetrain.runtime import NDArray
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.sparse_tensor.cuda.coalesce import DeviceSort


class Bound:
    """Parameters and slots, as steps with gradients of these names and kinds use them.

    Attributes
    ----------
    tables : list of str
        Parameters whose gradients are row-sparse.
    rules : tuple of Rule
        All that a step asks for numbers.
    """

    def __init__(
        self, params: Mapping[str, NDArray], gradients: Mapping[str, Gradient], state: State
    ) -> None:
        # Not the state itself, which holds this: a ring would keep the tables until it is found.
        self._ranges, self._tracked = state.ranges, frozenset(state.histories)
        self._targets = {name: Target(params[name], state[name]) for name in gradients}
        self._names, self._kinds = [*gradients], [*map(type, gradients.values())]
        self._params = [*params]
        self._tensors = [*params.values(), *state.tensors()]
        sparse = {n: g for n, g in gradients.items() if isinstance(g, RowSparse)}
        self.tables = [*sparse]
        self._shapes = [gradient.shape for gradient in sparse.values()]
        self.rules = state.rules(gradients)
        self._searches: dict[tuple[str, int] | None, Search] = {}
        self._updates: dict[tuple[str, int], RowUpdate] = {}
        self._repeated: dict[str, Repeated] = {}
        self.sorts: dict[str, DeviceSort] = {}  # of the last step, for the next one

    def holds(
        self, params: Mapping[str, NDArray], gradients: Mapping[str, Gradient], state: State
    ) -> bool:
        """Whether these are the same tensors by the same names, and gradients of the same kinds.

        Shapes of dense gradients, and dtypes, are left to `nonfinite`.
        """
        return (
            [*gradients] == self._names
            and [*params] == self._params
            and [*map(type, gradients.values())] == self._kinds
            and [gradients[name].shape for name in self.tables] == self._shapes
            and all(map(is_, [*params.values(), *state.tensors()], self._tensors))
        )

    def search(self, loss: NDArray | None) -> Callable[[list[NDArray]], list[int]]:
        """What finds NaN and infinity in the loss, if there is one, and the gradients' values.

        It raises an error of TVM's if a dense gradient has another shape or dtype than its
        parameter.
        """
        kind = None if loss is None else (str(loss.dtype), len(loss.shape))
        if kind not in self._searches:
            like = [
                None if name in self.tables else target.param
                for name, target in self._targets.items()
            ]
            self._searches[kind] = Search(like if loss is None else [None, *like])
        return self._searches[kind]

    @cached_property
    def parted(self) -> tuple[list[Together], list[str]]:
        """Groups of dense parameters that are updated together, and the names of all others."""
        together = self._together()
        done = {*chain.from_iterable(group.names for group in together)}
        return together, [name for name in self._names if name not in done]

    def _together(self) -> list[Together]:
        """Of dense parameters that are no scalars, those of one rule and dtype."""
        alike: defaultdict[tuple[Rule, str], list[str]] = defaultdict(list)
        for name in self._names:
            parts, param = self._ranges[name], self._targets[name].param
            if name in self.tables or not param.shape:
                continue
            if len(parts) == 1 and (name, 0) not in self._tracked:
                alike[parts[0].rule, str(param.dtype)].append(name)
        return [
            Together(rule, {name: self._targets[name] for name in names})
            for (rule, _), names in alike.items()
        ]

    def row_update(self, name: str, number: int) -> RowUpdate:
        """The update of the touched rows of one range of a parameter."""
        key = name, number
        if key not in self._updates:
            rule = self._ranges[name][number].rule
            self._updates[key] = RowUpdate(self._targets[name], rule)
        return self._updates[key]

    def repeated(self, name: str, gradient: RowSparse) -> Repeated | None:
        """The update of the last step, if that of this gradient is alike; nobody else has it then.

        Two steps may be prepared before one is finished: the second finds its own way.
        """
        known = self._repeated.pop(name, None)
        return known if known is not None and known.takes(gradient) else None

    def repeat(self, name: str, update: Repeated) -> None:
        """Keep the update of a step that is finished for the next one."""
        self._repeated[name] = update


def bound_to(
    params: Mapping[str, NDArray], gradients: Mapping[str, Gradient], state: State
) -> Bound:
    """What the state keeps for such steps, made anew if they are others than the last ones."""
    if state.bound is None or not state.bound.holds(params, gradients, state):
        state.bound = Bound(params, gradients, state)
    bound: Bound = state.bound
    return bound
