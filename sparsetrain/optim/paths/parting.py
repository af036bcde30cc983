# SPDX-License-Identifier: Apache-2.0
"""Which entries of a row-sparse gradient go which way: to dense rows, or by a plan.

Decided before anything is written. A plan that is known already, from the catch-up, from whoever
sent the batch ahead, or because the gradient is coalesced, makes the sparse path the cheaper one:
it has the sort behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sparsetrain import runtime
from sparsetrain.optim.exact.rows import require_current_
from sparsetrain.optim.param_groups import RowRange, merge
from sparsetrain.optim.paths.dense import DensePath, Near
from sparsetrain.optim.range_update import trivial_plan
from sparsetrain.optim.state import State
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.tensors import on_gpu
from sparsetrain.sparse_tensor import CoalescePlan, RowSparse
from sparsetrain.sparse_tensor.coalesce import Sort
from sparsetrain.sparse_tensor.cuda.coalesce import DeviceSort


class Paths(NamedTuple):
    """The entries of one gradient.

    Parameters
    ----------
    dense : tuple of DensePath and Near, optional
        Those of rows that are updated densely.
    sparse : tuple of RowSparse and CoalescePlan, optional
        All others, or all where a plan of all was known.
    sort : Sort, optional
        What made that plan in this step, if the next one may use it.
    """

    dense: tuple[DensePath, Near] | None
    sparse: tuple[RowSparse, CoalescePlan] | None
    sort: Sort | None = None


def begin_sorts(
    gradients: Mapping[str, Any], state: State, kept: dict[str, DeviceSort]
) -> dict[str, DeviceSort]:
    """Begin to sort what lies on a device and may have no plan; by name, to be waited for.

    A step waits for the device anyway, to hear whether gradients are finite. What was `kept` of the
    last step is taken from there if it fits: two steps may be prepared before one is finished.
    """
    begun = {}
    for name, gradient in gradients.items():
        if (
            not isinstance(gradient, RowSparse)
            or not on_gpu(gradient.values)
            or gradient.coalesced
            or name in state.plans
            or name in state.caught
        ):
            continue
        indices, num_rows = gradient.indices, gradient.num_rows
        sort = kept.pop(name, None)
        if sort is None or not sort.fits(indices, num_rows):
            sort = DeviceSort(indices, num_rows)
        sort.begin(indices)
        begun[name] = sort
    return begun


def paths_of(
    params: Mapping[str, NDArray],
    state: State,
    name: str,
    gradient: RowSparse,
    plan: CoalescePlan | None = None,
) -> Paths:
    """Part the gradient of one parameter, and find the rows of its plan current.

    `plan` is the plan of all of it, if it was made already.

    Raises
    ------
    ConfigError
        If rows were read while they were behind.
    """
    plan = plan or _known_plan(state, name, gradient)
    near, rest = _parted(state, name, gradient)
    if rest is None:
        return Paths(near, None)
    sort = None
    if plan is None:
        plan, sort = _sorted(rest)
    else:
        rest = gradient
    require_current_(params, state, name, plan)
    return Paths(near, (rest, plan), sort)


def _sorted(gradient: RowSparse) -> tuple[CoalescePlan, Sort | None]:
    """A plan of a gradient that has none."""
    if on_gpu(gradient.indices):
        return gradient.plan(), None
    sort = Sort(gradient.indices, gradient.num_rows)
    return sort(gradient.indices), sort if sort.is_small else None


def _parted(
    state: State, name: str, gradient: RowSparse
) -> tuple[tuple[DensePath, Near] | None, RowSparse | None]:
    """The entries of rows that are updated densely, and all others."""
    if on_gpu(gradient.values):  # there a dense gradient is made of the plan
        return None, gradient
    parts = merge([part for part in state.ranges[name] if part.rule.dense])
    if not parts:
        return None, gradient
    path = _dense_path(state, name, parts, gradient)
    near, rest = path.split(gradient)
    return (path, near), rest


def _dense_path(
    state: State, name: str, parts: tuple[RowRange, ...], gradient: RowSparse
) -> DensePath:
    """The path of these ranges; its buffer is kept as long as they and the width are the same."""
    path: DensePath | None = state.paths.get(name)
    if path is None or path.parts != parts or path.width != gradient.width:
        state.paths.pop(name, None)  # the old buffer goes before the new one comes
        path = state.paths[name] = DensePath(parts, gradient.width, state.dtypes[name])
    return path


def _known_plan(state: State, name: str, gradient: RowSparse) -> CoalescePlan | None:
    """A plan that costs nothing: the one of the catch-up if that was for the same rows."""
    made = state.plans.get(name)
    if made is not None and made[0] is gradient:
        return made[1]
    known = state.caught.get(name)
    if known is not None and np.array_equal(known[0], runtime.as_numpy(gradient.indices)):
        return known[1]
    return trivial_plan(gradient) if gradient.coalesced else None
