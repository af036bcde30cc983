# SPDX-License-Identifier: Apache-2.0
"""The kernels of `fused`: the optimizer's bodies, behind a verdict, their numbers in an array."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.kernels.table_formats import computed_in, is_half
from sparsetrain.optim.finite import STRIPS
from sparsetrain.optim.kernel_parts import Parameter
from sparsetrain.optim.kernel_spec import KernelSpec
from sparsetrain.optim.kernels import Runs, update_rows
from sparsetrain.optim.together import arguments, in_strips, seen


def verdict_kernel(arrays: int, tables: int) -> PrimFunc:
    """What was found, in one place.

    Arguments: found (K, STRIPS), as the search for NaN left it; counts (2,) of each plan; report
    (1 + K + tables,) int64: whether anything is wrong, whether array k is not finite, how many ids
    of a table are no rows of it.
    """
    with kernel() as built:
        found = buffer("found", (arrays, STRIPS), "int32")
        counts = [buffer(f"counts{n}", (2,), "int32") for n in range(tables)]
        report = buffer("report", (1 + arrays + tables,), "int64")
        wrong = T.alloc_local((1,), "int64")
        T.buffer_store(wrong, const(0, "int64"), [0])
        with T.serial(0, arrays) as k:
            T.buffer_store(report, const(0, "int64"), [1 + k])
            with T.serial(0, STRIPS) as strip:
                here = report[1 + k] | tirx.Cast("int64", found[k, strip])
                T.buffer_store(report, here, [1 + k])
            T.buffer_store(wrong, wrong[0] | report[1 + k], [0])
        for n, count in enumerate(counts):
            T.buffer_store(report, tirx.Cast("int64", count[1]), [1 + arrays + n])
            T.buffer_store(wrong, wrong[0] | report[1 + arrays + n], [0])
        T.buffer_store(report, wrong[0], [0])
    return built.get()


def dense_kernel(spec: KernelSpec, dtype: str, ranks: Sequence[int], rule: int) -> PrimFunc:
    """`together.together_kernel`, but after the parameters come report and numbers (R, K)."""
    with kernel() as built:
        arrays = [arguments(spec, dtype, rank) for rank in ranks]
        report, numbers = _report(), buffer("numbers", extents(2), "float64")
        with T.If(report[0] == 0), T.Then():
            h = _scalars(spec, dtype, numbers, rule)
            in_strips([seen(spec, *each) for each in arrays], h)
    return built.get()


class RowsKind(NamedTuple):
    """Columns and dtype of a table, dtype of its ids, whether entries say what they draw from."""

    width: int
    dtype: str
    index_dtype: str
    pooled: bool


def rows_kernel(
    spec: KernelSpec, kind: RowsKind, places: tuple[int, int], span: tuple[int, int] | None
) -> PrimFunc:
    """`kernels.row_update_kernel` for the rows of a plan whose size is not known outside.

    Arguments: rows (N,), order (2, N), offsets (N + 1,), source (N,) if pooled, values (M, D),
    weight (V, D), one array per slot, counts (2,), report, numbers (R, K), keys (tables, 2).
    `places` are the rule's and the table's among the last two. Of the rows only those in `span` are
    updated.
    """
    width, dtype, index_dtype, pooled = kind
    with kernel() as built:
        entries, stored, table = extents(3)
        rows = buffer("rows", (entries,), index_dtype)
        order = buffer("order", (2, entries), "int32")
        offsets = buffer("offsets", (entries + 1,), "int32")
        source = buffer("source", (entries,), "int32") if pooled else None
        values = buffer("values", (stored, width), computed_in(dtype))
        parameter = Parameter.declare(spec, table, width, dtype)
        counts, report = buffer("counts", (2,), "int32"), _report()
        numbers, keys = (
            buffer("numbers", extents(2), "float64"),
            buffer("keys", extents(2), "int64"),
        )
        runs = Runs(rows, lambda n: order[0, n], offsets, source, values)
        with T.If(report[0] == 0), T.Then():
            h = _scalars(spec, computed_in(dtype), numbers, places[0])
            if is_half(dtype):
                h.keys = keys[places[1], 0], keys[places[1], 1]
            used = T.Bind(tirx.Cast("int64", counts[0]))
            within = (const(0, "int64"), used)
            if span is not None:
                within = _first_from(rows, used, span[0]), _first_from(rows, used, span[1])
            update_rows(parameter, runs, within, h)
    return built.get()


def _report() -> Any:
    return buffer("report", extents(1), "int64")


def _scalars(spec: KernelSpec, dtype: str, numbers: Any, rule: int) -> SimpleNamespace:
    """The scalars of a spec from the row of an array that belongs to a rule."""
    return SimpleNamespace(
        **{
            name: T.Bind(tirx.Cast(dtype, numbers[rule, column]))
            for column, name in enumerate(spec.scalars)
        }
    )


def _first_from(rows: Any, used: Any, row: int) -> Any:
    """The place of the first of some rising rows that is `row` or more."""
    low, high = T.alloc_local((1,), "int64"), T.alloc_local((1,), "int64")
    T.buffer_store(low, const(0, "int64"), [0])
    T.buffer_store(high, used, [0])
    with T.While(low[0] < high[0]):
        middle = T.Bind((low[0] + high[0]) // 2)
        below = T.Bind(tirx.Cast("int64", rows[middle]) < row)
        T.buffer_store(low, tirx.Select(below, middle + 1, low[0]), [0])
        T.buffer_store(high, tirx.Select(below, high[0], middle), [0])
    return T.Bind(low[0])
