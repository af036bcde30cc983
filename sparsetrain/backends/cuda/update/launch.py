# SPDX-License-Identifier: Apache-2.0
"""Launches of update kernels on a GPU, with their arguments in order.

Callers have checked shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from sparsetrain import runtime
from sparsetrain.backends.cuda.sparse.coalesce import chunk_sums
from sparsetrain.backends.cuda.sparse.row_kernels import count_up_kernel, fill_kernel, spread_kernel
from sparsetrain.backends.cuda.update import update_kernels
from sparsetrain.backends.cuda.update.arrays import foreach_kernel, total_kernel
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.optim.param_groups import RowRange
from sparsetrain.optim.update.dense_kernel import MOST
from sparsetrain.optim.update_rule import UpdateRule
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.compiling import target_kernel
from sparsetrain.runtime.pool import scratch_tensor
from sparsetrain.runtime.tensors import target_of
from sparsetrain.sparse_tensor import CoalescePlan, RowSparse
from sparsetrain.tables.formula import KernelSpec
from sparsetrain.tables.kernel_parts import is_flat
from sparsetrain.tables.slots import Target, matrix_shape


class RowUpdate:
    """The update of touched rows of one parameter by one rule.

    Parameters
    ----------
    target : Target
        The parameter (V, D) and its slots, which are written.
    rule : UpdateRule
        Its `spec` defines the arithmetic of the kernels.
    """

    def __init__(self, target: Target, rule: UpdateRule) -> None:
        self._spec, self._target = rule.spec, target
        self._views = target.views(rule.spec, *matrix_shape(target.param.shape))
        self._kernels: dict[Any, Any] = {}

    def __call__(
        self,
        gradient: RowSparse,
        plan: CoalescePlan,
        scalars: Sequence[float],
        span: tuple[int, int],
    ) -> None:
        """Update the rows of the plan's segments [first, end), given as `span`."""
        if span[0] == span[1]:
            return
        source, values = gradient.source, gradient.values
        rows, order, offsets = plan.arrays
        variant = plan.index_dtype, source is not None
        if variant not in self._kernels:
            self._kernels[variant] = self._kernel(*variant)
        self._kernels[variant](
            rows,
            order,
            offsets,
            order if source is None else source,
            values,
            *chunk_sums(plan, values, source),
            *self._views,
            *scalars,
            *span,
        )

    def _kernel(self, index_dtype: str, pooled: bool) -> Any:
        param = self._target.param
        kind = matrix_shape(param.shape)[1], str(param.dtype), index_dtype
        return _row_kernel(target_of(param), self._spec, *kind, pooled)


class Foreach:
    """One rule's update of dense parameters that share a dtype and have at least one axis.

    Parameters
    ----------
    rule : UpdateRule
        Its `spec` defines the arithmetic of the kernels.
    targets : mapping of str to Target
        The parameters and their slots, by name.
    """

    def __init__(self, rule: UpdateRule, targets: Mapping[str, Target]) -> None:
        self.rule, self.names = rule, [*targets]
        spec = rule.spec.of_all_rows
        arrays = {
            name: (target.param, *(target.slots[slot.name] for slot in spec.formula.slots))
            for name, target in targets.items()
        }
        items = [*arrays.items()]
        self._launches = [
            (_kernel_for(spec, part), part)
            for part in (items[start : start + MOST] for start in range(0, len(items), MOST))
        ]

    def update_(self, gradients: Mapping[str, Any], numbers: Sequence[float]) -> None:
        """Update all parameters and their slots; `numbers` are the scalars of the step."""
        for run, part in self._launches:
            arrays = [array for name, own in part for array in (gradients[name], *own)]
            run(*arrays, *numbers)


def _kernel_for(spec: KernelSpec, part: Sequence[tuple[str, tuple[NDArray, ...]]]) -> Any:
    params = [own[0] for _, own in part]
    ranks = tuple(len(param.shape) for param in params)
    return _foreach(target_of(params[0]), spec, str(params[0].dtype), ranks)


def update_dense_(
    target: Target,
    gradient: NDArray,
    rule: UpdateRule,
    scalars: Sequence[float],
    rows: tuple[int, int],
    begin: int = 0,
) -> None:
    """Update the rows `rows`, [first, end), with a gradient's rows from `begin` on."""
    spec = rule.spec.of_all_rows
    height, width = matrix_shape(target.param.shape)
    numbers, size = [*rows, begin], prod(map(int, gradient.shape))
    shape = size // width, width
    if is_flat(spec, format_of(str(target.param.dtype))):  # view all elements as one row
        numbers = [number * width for number in numbers]
        height, width, shape = 1, height * width, (1, size)
    _dense_kernel(target_of(target.param), spec, str(target.param.dtype))(
        gradient._create_view(shape), *target.views(spec, height, width), *scalars, *numbers
    )


def densified(
    gradient: RowSparse, plan: CoalescePlan, part: RowRange, span: tuple[int, int]
) -> NDArray:
    """Return one range's gradient as a dense tensor (rows, D), for rules in dense mode."""
    values = gradient.coalesce(plan).values
    shape, what = (part.end - part.first, gradient.width), f"the dense gradient of {part.label}"
    dense = runtime.empty(shape, str(values.dtype), what, values.device)  # as large as the table
    spread = _spread(target_of(values), gradient.width, str(values.dtype), plan.index_dtype)
    spread(plan.arrays[0], values, dense, part.first, *span)
    return dense


def fill_(numbers: NDArray, value: int, first: int, end: int) -> None:
    """Write a number to the elements [first, end) of (N,)."""
    _fill(target_of(numbers), str(numbers.dtype))(numbers, value, first, end)


def count_up_(numbers: NDArray) -> None:
    """Write 0, 1, 2, ... to (N,) int32."""
    _count_up(target_of(numbers))(numbers)


def totals(arrays: Sequence[NDArray]) -> list[float]:
    """Return the sums of arrays (n,) of one dtype, copied to the host together."""
    dtype = str(arrays[0].dtype)
    sums = scratch_tensor((len(arrays),), dtype, arrays[0])
    for place, array in enumerate(arrays):
        _total(target_of(array), dtype)(array, sums, place)
    return runtime.as_numpy(sums).tolist()


_total = target_kernel("sum of numbers", total_kernel)
_count_up = target_kernel("numbers of rows", count_up_kernel)
_spread = target_kernel("gradient of all rows", spread_kernel)
_fill = target_kernel("a number for many rows", fill_kernel)
_row_kernel = target_kernel("update of touched rows", update_kernels.row_update_kernel)
_dense_kernel = target_kernel("dense update", update_kernels.dense_update_kernel)
_foreach = target_kernel("dense updates", foreach_kernel)
