# SPDX-License-Identifier: Apache-2.0
"""One rule applied to one range of rows: which kernel, compiled once, with which arguments.

Shapes and dtypes were checked by `Optimizer`; here they are trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsetrain import runtime
from sparsetrain.kernels.table_formats import seen_as
from sparsetrain.optim.cuda import kernels as cuda_kernels
from sparsetrain.optim.exact import catch_up
from sparsetrain.optim.exact.history import History
from sparsetrain.optim.kernel_spec import KernelSpec
from sparsetrain.optim.kernels import dense_update_kernel, row_update_kernel
from sparsetrain.optim.param_groups import RowRange
from sparsetrain.optim.rule import Rule
from sparsetrain.optim.state import LAST, rows_of
from sparsetrain.runtime import NDArray, tensors
from sparsetrain.runtime.compiling import target_kernel
from sparsetrain.runtime.device_pool import scratch_tensor
from sparsetrain.runtime.tensors import target_of, to_device
from sparsetrain.sparse_tensor import CoalescePlan, RowSparse
from sparsetrain.sparse_tensor.cuda.coalesce import chunk_sums
from sparsetrain.sparse_tensor.cuda.parts import THREADS

ROW_UPDATE = "update of touched rows"  # the kernel, in profiles and comparisons
ROW_UPDATE_WEIGHT = 5  # which of its arguments is the table, on the host
FOREVER = 2**31 - 1  # a cap that never matters


class Target(NamedTuple):
    """A parameter and its slots, which are written."""

    param: NDArray
    slots: Mapping[str, NDArray]

    def views(self, spec: KernelSpec, rows: int, columns: int) -> list[NDArray]:
        """Weight and slots as the kernels see them."""
        shapes = {"element": (rows, columns), "row": (rows,)}
        slots = spec.formula.slots
        weight = self.param._create_view((rows, columns), seen_as(self.param.dtype))
        return [weight, *(self.slots[s.name]._create_view(shapes[s.per]) for s in slots)]


class RowUpdate:
    """The update of touched rows of one parameter by one rule.

    Parameters
    ----------
    target : Target
        The parameter (V, D) and its slots; written.
    rule : Rule
        Its spec is what the kernels compute.
    """

    def __init__(self, target: Target, rule: Rule) -> None:
        self._recipe, self._target = rule.spec, target
        self._views = target.views(rule.spec, *matrix_shape(target.param))
        self._on_gpu = tensors.on_gpu(target.param)
        self._kernels: dict[Any, Any] = {}

    def __call__(
        self,
        gradient: RowSparse,
        plan: CoalescePlan,
        scalars: Sequence[float],
        span: tuple[int, int],
        now: int | None = None,
    ) -> None:
        """Update the rows of segments `span`; with `now`, note that they are current."""
        if span[0] == span[1]:
            return
        source, values = gradient.source, gradient.values
        rows, order, offsets = plan.arrays
        variant = plan.index_dtype, source is not None, now is not None
        if variant not in self._kernels:
            self._kernels[variant] = self._kernel(*variant)
        self._kernels[variant](
            rows,
            order,
            offsets,
            order if source is None else source,
            values,
            *(chunk_sums(plan, values, source) if self._on_gpu else ()),
            *self._views,
            *(() if now is None else (self._target.slots[LAST],)),
            *scalars,
            *span,
            *(() if now is None else (now,)),
        )

    def _kernel(self, index_dtype: str, pooled: bool, stamped: bool) -> Any:
        param = self._target.param
        kind = matrix_shape(param)[1], str(param.dtype), index_dtype
        return _row_kernel(target_of(param), self._recipe, *kind, pooled, stamped)


def update_dense_(
    target: Target, gradient: NDArray, rule: Rule, scalars: Sequence[float], rows: tuple[int, int]
) -> None:
    """Update rows [first, end) by a gradient (end - first, D) of any shape."""
    spec = rule.spec
    height, width = matrix_shape(target.param)
    first, end = rows
    given = (end - first, width)
    if not spec.formula.by_row:  # one row of all elements
        first, end, height, width = first * width, end * width, 1, height * width
        given = (1, end - first)
    _dense_kernel(target_of(target.param), spec, str(target.param.dtype))(
        gradient._create_view(given), *target.views(spec, height, width), *scalars, first, end
    )


def densified(
    gradient: RowSparse, plan: CoalescePlan, part: RowRange, span: tuple[int, int]
) -> NDArray:
    """The rows of one range as a dense tensor (rows, D); only where dense mode was asked for."""
    shape = (part.end - part.first, gradient.width)
    dense = runtime.zeros(shape, gradient.dtype, f"the dense gradient of {part.label}")
    unique = gradient.coalesce(plan)
    chosen = slice(*span)
    rows = runtime.as_numpy(unique.indices)[chosen] - part.first
    runtime.as_numpy(dense, writable=True)[rows] = runtime.as_numpy(unique.values)[chosen]
    return to_device(dense, gradient.values.device)


def replay_(
    target: Target,
    rule: Rule,
    history: History,
    plan: CoalescePlan | None,
    span: tuple[int, int],
) -> int:
    """Bring rows `span` of a plan, or of the table, up to now; return the steps replayed."""
    rows, width = matrix_shape(target.param)
    spec = history.spec
    dtype = str(target.param.dtype)
    on_gpu = tensors.on_gpu(target.param)
    kernel = _catch_up_kernel(
        target_of(target.param),
        spec._replace(scaled=False, clipped=False),
        width,
        dtype,
        None if plan is None else str(plan.rows.dtype),
        rule.max_replayed_steps is not None,
    )
    tasks = max(1, -(-(span[1] - span[0]) // THREADS)) if on_gpu else catch_up.STRIPS
    replayed = scratch_tensor((tasks,), "int64", target.param)
    kernel(
        *([] if plan is None else [plan.rows]),
        *target.views(spec, rows, width),
        target.slots[LAST],
        to_device(history.tensor, target.param.device),
        replayed,
        0.0,
        *span,
        history.base,
        history.now,
        rule.max_replayed_steps or FOREVER,
    )
    return int(np.sum(runtime.as_numpy(replayed)))


def segment_spans(plan: CoalescePlan, parts: Sequence[RowRange]) -> list[tuple[int, int]]:
    """For each range, the segments of the plan that lie in it; rows of a plan rise."""
    if len(parts) == 1:
        return [(0, plan.num_unique)]
    rows = runtime.as_numpy(plan.rows)
    edges = np.searchsorted(rows, [edge for part in parts for edge in (part.first, part.end)])
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def trivial_plan(gradient: RowSparse) -> CoalescePlan:
    """The plan of a coalesced tensor: every entry is its own segment."""
    numbers = np.arange(gradient.nse + 1, dtype=np.int32)
    order, offsets = (
        to_device(runtime.as_tensor(array), gradient.indices.device)
        for array in (numbers[:-1], numbers)
    )
    return CoalescePlan(gradient.indices, order, offsets)


def matrix_shape(param: NDArray) -> tuple[int, int]:
    """Rows and columns of a parameter; a vector has rows of one element."""
    shape = tuple(map(int, param.shape))
    return rows_of(shape), shape[-1] if len(shape) > 1 else 1


_row_kernel = target_kernel(ROW_UPDATE, llvm=row_update_kernel, cuda=cuda_kernels.row_update_kernel)
_dense_kernel = target_kernel(
    "dense update", llvm=dense_update_kernel, cuda=cuda_kernels.dense_update_kernel
)
_catch_up_kernel = target_kernel(
    "catching up rows", llvm=catch_up.catch_up_kernel, cuda=cuda_kernels.catch_up_kernel
)
