# SPDX-License-Identifier: Apache-2.0
"""From a formula to its kernels: in place on touched rows, or dense.

The row kernel coalesces and updates in one pass: it sums a row's duplicates in registers, first to
last, applies the formula once and writes the row once. Rows that are not in the plan are not read
or written. The update is not linear in the gradient, so summing first is no optimisation.

What is parallel: touched rows (one writer each) and blocks of a dense parameter; the bits do not
depend on the number of threads. What is vectorised: the columns of a row, the elements of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.optim.formula import Formula
from sparsetrain.relax_op import SCHEDULED
from sparsetrain.sparse_tensor.kernels import column_tiles

BLOCK = 1024  # elements of a dense parameter that one task updates


def row_update_kernel(
    formula: Formula, hyper: tuple[str, ...], width: int, dtype: str, index_dtype: str, pooled: bool
) -> PrimFunc:
    """In-place update of the rows of a plan.

    Arguments: rows (U,), order (N,), offsets (U + 1,), source (S,), values (M, D), weight (V, D),
    one array per slot, (V, D) or (V,), then the hyper-parameters as scalars.
    """
    tiles, lanes = column_tiles(width)
    with _kernel() as built:
        entries, segments, sources, stored, table = (T.int64() for _ in range(5))
        rows = _buffer("rows", (segments,), index_dtype)
        order = _buffer("order", (entries,), "int32")
        offsets = _buffer("offsets", (segments + 1,), "int32")
        source = _buffer("source", (sources,), "int32")
        values = _buffer("values", (stored, width), dtype)
        weight = _buffer("weight", (table, width), dtype)
        slots = _slot_buffers(formula, table, width, dtype)
        h = _hyper(hyper, dtype)
        with T.parallel(0, segments) as segment:
            gradient = T.alloc_local((width,), dtype)
            row = T.Bind(tirx.Cast("int64", rows[segment]))
            with T.serial(0, tiles) as tile:
                column = tile * lanes
                with T.vectorized(0, lanes) as lane:
                    T.buffer_store(gradient, _zero(dtype), [column + lane])
                with T.serial(0, offsets[segment + 1] - offsets[segment]) as entry:
                    place = T.Bind(order[offsets[segment] + entry])
                    stored_row = T.Bind(tirx.Cast("int64", source[place] if pooled else place))
                    with T.vectorized(0, lanes) as lane:
                        total = gradient[column + lane] + values[stored_row, column + lane]
                        T.buffer_store(gradient, total, [column + lane])
            shared = _row_mean(formula, lambda d: gradient[d], width, dtype)
            old = _row_slots(formula, slots, row)
            with T.serial(0, tiles) as tile, T.vectorized(0, lanes) as lane:
                index = tile * lanes + lane
                _update(formula, weight, gradient[index], slots, [row, index], old, h, shared)
            _store_row_slots(formula, slots, row, old, h, shared)
    return built.get()


def dense_update_kernel(formula: Formula, hyper: tuple[str, ...], dtype: str) -> PrimFunc:
    """In-place update of a whole parameter seen as (rows, columns); any shape, one compile.

    Arguments: weight (R, C), gradient (R, C), one array per slot, then the hyper-parameters.
    Formulas without a per-row part see it as (1, R * C).
    """
    by_row = formula.row_mean is not None or any(slot.per == "row" for slot in formula.slots)
    with _kernel() as built:
        height, width = T.int64(), T.int64()
        weight = _buffer("weight", (height, width), dtype)
        gradient = _buffer("gradient", (height, width), dtype)
        slots = _slot_buffers(formula, height, width, dtype)
        h = _hyper(hyper, dtype)
        if by_row:
            with T.parallel(0, height) as row:
                shared = _row_mean(formula, lambda d: gradient[row, d], width, dtype)
                old = _row_slots(formula, slots, row)
                with T.serial(0, width) as d:
                    _update(formula, weight, gradient[row, d], slots, [row, d], old, h, shared)
                _store_row_slots(formula, slots, row, old, h, shared)
        else:
            with (
                T.parallel(0, tirx.ceildiv(width, BLOCK)) as block,
                T.serial(0, tirx.min(BLOCK, width - block * BLOCK)) as d,
            ):
                index = [0, block * BLOCK + d]
                _update(formula, weight, gradient[tuple(index)], slots, index, (), h, None)
    return built.get()


class _Built:
    def __init__(self, builder: IRBuilder) -> None:
        self.builder = builder

    def get(self) -> PrimFunc:
        return self.builder.get()


@contextmanager
def _kernel() -> Iterator[_Built]:
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_name("update")
        T.func_attr(SCHEDULED)
        yield _Built(builder)


def _buffer(name: str, shape: tuple[Any, ...], dtype: str) -> Any:
    return T.match_buffer(T.arg(name, T.handle()), shape, dtype)


def _slot_buffers(formula: Formula, rows: Any, width: Any, dtype: str) -> list[Any]:
    shapes = {"element": (rows, width), "row": (rows,)}
    return [_buffer(slot.name, shapes[slot.per], dtype) for slot in formula.slots]


def _hyper(names: tuple[str, ...], dtype: str) -> SimpleNamespace:
    scalar = {"float32": T.float32, "float64": T.float64}[dtype]
    return SimpleNamespace(**{name: T.arg(name, scalar()) for name in names})


def _zero(dtype: str) -> Any:
    return tirx.const(0, dtype)


def _row_mean(formula: Formula, element: Any, width: Any, dtype: str) -> Any:
    """Average `formula.row_mean` over a row, column after column."""
    if formula.row_mean is None:
        return None
    total = T.alloc_local((1,), dtype)
    T.buffer_store(total, _zero(dtype), [0])
    with T.serial(0, width) as d:
        T.buffer_store(total, total[0] + formula.row_mean(element(d)), [0])
    return T.Bind(total[0] / tirx.Cast(dtype, width))


def _row_slots(formula: Formula, slots: list[Any], row: Any) -> tuple[Any, ...]:
    """Per-row slots before the step; None in the place of per-element ones."""
    return tuple(
        T.Bind(buffer[row]) if slot.per == "row" else None
        for slot, buffer in zip(formula.slots, slots, strict=True)
    )


def _apply(
    formula: Formula, w: Any, g: Any, old: tuple[Any, ...], h: SimpleNamespace, shared: Any
) -> tuple[Any, tuple[Any, ...]]:
    if shared is not None:
        h = SimpleNamespace(**vars(h), row_mean=shared)
    return formula.step(w, g, old, h)


def _update(
    formula: Formula,
    weight: Any,
    gradient: Any,
    slots: list[Any],
    index: list[Any],
    row_slots: tuple[Any, ...],
    h: SimpleNamespace,
    shared: Any,
) -> None:
    """Apply the formula to one element; all results are bound before the first is stored."""
    place = tuple(index)
    row_slots = row_slots or (None,) * len(slots)
    old = tuple(
        T.Bind(buffer[place]) if kept is None else kept
        for buffer, kept in zip(slots, row_slots, strict=True)
    )
    new_weight, new_slots = _apply(formula, weight[place], gradient, old, h, shared)
    results = [T.Bind(new_weight), *(T.Bind(value) for value in new_slots)]
    T.buffer_store(weight, results[0], index)
    for slot, buffer, value in zip(formula.slots, slots, results[1:], strict=True):
        if slot.per == "element":
            T.buffer_store(buffer, value, index)


def _store_row_slots(
    formula: Formula,
    slots: list[Any],
    row: Any,
    old: tuple[Any, ...],
    h: SimpleNamespace,
    shared: Any,
) -> None:
    """Write each per-row slot once; `check_formula` made sure that no element decides its value."""
    if not any(slot.per == "row" for slot in formula.slots):
        return
    unused = _zero(str(slots[0].dtype))  # stands for what belongs to one element
    old = tuple(unused if value is None else value for value in old)
    _, new = _apply(formula, unused, unused, old, h, shared)
    for slot, buffer, value in zip(formula.slots, slots, new, strict=True):
        if slot.per == "row":
            T.buffer_store(buffer, value, [row])
