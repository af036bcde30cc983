# SPDX-License-Identifier: Apache-2.0
"""Dense update kernel: all parameters with dense gradients that follow one rule, in one launch.

A model has a weight and a bias per layer, most of them small: with one launch each, calling the
kernels would take longer than running them (hence ``foreach`` in PyTorch). The arithmetic and its
order are the same as for a single parameter.

What is parallel: chunks of every parameter. What is vectorized: the elements of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.kernels.array_table import ArrayTable
from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.tables.formula import KernelSpec
from sparsetrain.tables.kernel_parts import (
    Parameter,
    bind_scalars,
    declare_numbers,
    declare_report,
    flat,
    matrix,
)

BLOCK = 1024  # elements of a parameter that one task updates
CHUNKS = 32  # parts of the work; more than threads, to balance them
MOST = 32  # most parameters per kernel: it selects among them at run time


def dense_kernel(
    spec: KernelSpec,
    dtype: str,
    ranks: Sequence[int],
    rule: int,
    span: tuple[int, int] | None = None,
) -> PrimFunc:
    """Build the in-place update of parameters of one dtype.

    Arguments: for each parameter its gradient, weight and slots, with their own shapes; then report
    and numbers (R, K), with the scalars in row `rule`. With a `span`, only the rows [first, end) of
    a single parameter are updated, or elements if the formula has no per-row part.
    """
    with kernel() as built:
        arrays = [declare_arguments(spec, dtype, rank) for rank in ranks]
        report, numbers = declare_report(), declare_numbers()
        with T.If(report[0] == 0), T.Then():
            h = bind_scalars(spec, dtype, numbers, rule)
            update_in_chunks([as_rows(spec, *each) for each in arrays], h, span)
    return built.get()


def declare_arguments(spec: KernelSpec, dtype: str, rank: int) -> tuple[Any, Any, list[Any]]:
    """Declare gradient, weight and slots of one parameter as the next arguments of a kernel."""
    shape = extents(rank)
    rows = shape if rank == 1 else extents(1)
    shapes = {"element": shape, "row": rows}
    gradient, weight = (buffer(name, shape, dtype) for name in ("gradient", "weight"))
    slots = spec.formula.slots
    return gradient, weight, [buffer(slot.name, shapes[slot.per], dtype) for slot in slots]


def as_rows(
    spec: KernelSpec, gradient: Any, weight: Any, slots: Sequence[Any]
) -> tuple[Parameter, Any]:
    """View a parameter and its gradient as the formula needs them: by rows, or as one row."""
    view = matrix if spec.formula.by_row else flat
    each = zip(spec.formula.slots, slots, strict=True)
    viewed = [s if slot.per == "row" else view(s) for slot, s in each]
    whole = view(weight)
    parameter = Parameter(spec, whole, viewed, whole.shape[1], format_of(str(whole.dtype)))
    return parameter, view(gradient)


def update_in_chunks(
    parameters: Sequence[tuple[Parameter, Any]],
    h: SimpleNamespace,
    span: tuple[int, int] | None = None,
) -> None:
    """Inside a kernel: update parameters, each paired with its gradient (see `as_rows`)."""
    spec = parameters[0][0].spec
    alike = zip(*((g, p.weight, *p.slots) for p, g in parameters), strict=True)
    tables = [ArrayTable(arrays) for arrays in alike]
    with T.parallel(0, CHUNKS) as chunk, T.serial(0, len(parameters)) as number:
        gradient, weight, *slots = (table[number] for table in tables)
        parameter = Parameter(spec, weight, slots, weight.shape[1], parameters[0][0].stored)
        whole = const(0, "int64"), weight.shape[0 if spec.formula.by_row else 1]
        part = whole if span is None else tuple(const(edge, "int64") for edge in span)
        tasks, update_task = split_update(parameter, gradient, h, part)
        first = T.Bind(tasks * chunk // CHUNKS)
        with T.serial(0, T.Bind(tasks * (chunk + 1) // CHUNKS) - first) as task:
            update_task(T.Bind(first + task))


def split_update(
    parameter: Parameter, gradient: Any, h: SimpleNamespace, span: tuple[Any, Any]
) -> tuple[Any, Callable[[Any], None]]:
    """Return the number of independent tasks of an update, and a function that emits one.

    `span` counts rows, or elements if the parameter is viewed as one row.
    """
    first, end = span

    def update_row(task: Any) -> None:
        here = T.Bind(first + task)
        state = parameter.begin_row(here, lambda d: gradient[here, d], h)
        with T.serial(0, parameter.width) as d:
            state.update(d, gradient[here, d])
        state.end()

    def update_block(task: Any) -> None:
        begin = T.Bind(first + task * BLOCK)
        state = parameter.begin_row(0, lambda d: gradient[0, d], h)
        with T.serial(0, tirx.min(BLOCK, end - begin)) as d:
            state.update(begin + d, gradient[0, begin + d])

    if parameter.spec.formula.by_row:
        return end - first, update_row
    return tirx.ceildiv(end - first, BLOCK), update_block
