# SPDX-License-Identifier: Apache-2.0
"""Symbolic numbers of table rows, so that one compiled program fits tables of any size.

Table sizes differ with each day, fold and data set. Kernels that look up and update a table do not
depend on its size. So if nothing else uses a table, its number of rows becomes a symbol, also in
the optimizer arrays that have a row per table row. If a dense operator reads the table too, the
number stays static. Arguments are checked against the function as it was before this pass. Cost:
one walk through the bindings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from operator import mul
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import PrimType

from sparsetrain.kernels.relax_op import define_op
from sparsetrain.kernels.rewrite import is_call
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.system.locks import with_builder_lock


def _rows(shape: Sequence[Any]) -> Any:
    return reduce(mul, shape[1:-1], shape[0])


# Operator (V, D) -> V: the product of all axes but the last, as a scalar argument for a kernel.
rows_of = define_op(
    "rows_of",
    ("table",),
    lambda call: PrimType("int64"),
    lambda builder, call: relax.prim_value(_rows([*call.args[0].ty.shape])),
)

# Operators that accept a table with any number of rows; the table is their first operand.
READS = frozenset(
    f"relax.sparsetrain.{name}" for name in ("lookup", "embedding_bag", "weight_cotangent")
)
_OF_UPDATES = ("relax.memory.view", "relax.sparsetrain.rows_of")
_BESIDE = "arrays_beside_tables"


def note_updates(function: relax.Function, beside: Mapping[str, Sequence[str]]) -> relax.Function:
    """Record in an attribute which tables are updated in place (the keys of `beside`).

    The values of `beside` name the arguments with a row per table row. Only kernels that accept
    any number of rows may read these tables and arguments.
    """
    return function.with_attr(_BESIDE, {table: [*names] for table, names in beside.items()})


def reads_of(
    function: relax.Function, tables: Collection[str]
) -> Iterator[tuple[str, str, str | None]]:
    """Yield each read of the given tables: the table, the operator, and the argument with the ids.

    The last is None unless the read is a lookup and an argument of the function holds its ids.
    """
    names = {param: param.name for param in function.params}
    for call in values_of(function):
        operator = getattr(getattr(call, "op", None), "name", "")
        for table in relax.analysis.free_vars(call):
            if names.get(table) in tables:
                looks_up = operator in (*READS, "relax.take") and call.args[0] == table
                yield names[table], operator, names.get(call.args[1]) if looks_up else None


def values_of(function: relax.Function) -> Iterator[relax.Expr]:
    """Yield the right-hand sides of a function's bindings."""
    for block in function.body.blocks:
        yield from (binding.value for binding in block.bindings)


@with_builder_lock
def with_free_rows(module: tvm.IRModule, name: str) -> tvm.IRModule:
    """Make the number of rows symbolic for each table that is only looked up and updated."""
    function = module[name]
    updated = dict((function.attrs or {}).get(_BESIDE, {}))
    known = {param.name: param for param in function.params}
    letters: dict[relax.Var, tirx.Var] = {}
    for number, table in enumerate(_tables(function, updated)):
        alike = table, *(known[beside] for beside in updated.get(table.name, ()))
        letters |= dict.fromkeys(alike, tirx.Var(f"rows{number}", "int64"))
    if letters:
        module = module.clone()
        module[name] = with_rows(function, letters).without_attr(_BESIDE)
    return module


def with_rows(
    function: relax.Function, rows: Mapping[relax.Var, tirx.Var], as_computed: bool = False
) -> relax.Function:
    """Return the function with symbols as the numbers of rows of the arguments in `rows`.

    With `as_computed`, these arguments (tables) have the width and dtype that kernels compute
    with, in place of the stored width and dtype.
    """
    given = {
        param: relax.Var(param.name, _type(param, letter, as_computed))
        for param, letter in rows.items()
    }
    bound = function.bind_params(given)
    rest = iter(bound.params)
    params = [given[param] if param in given else next(rest) for param in function.params]
    result = bound.body.body.ty
    return relax.Function(params, bound.body, result, function.is_pure, function.attrs)


def _type(param: relax.Var, letter: tirx.Var, as_computed: bool) -> relax.TensorType:
    (_, *shape), dtype = param.ty.shape, str(param.ty.dtype)
    if not as_computed:
        return relax.TensorType([letter, *shape], dtype)
    stored = format_of(dtype)
    return relax.TensorType([letter, stored.width(int(shape[0]))], stored.computed)


def _tables(function: relax.Function, updated: Mapping[str, Any]) -> list[relax.Var]:
    """Return the arguments (V, D) that are only looked up and updated, or unused."""
    updates = {param for param in function.params if param.name in updated}
    result = function.body.body
    others = {*relax.analysis.free_vars(result)}
    for block in function.body.blocks:
        for binding in block.bindings:
            returned = result.same_as(binding.var) and isinstance(binding.value, relax.Var)
            if not (returned and isinstance(binding, relax.VarBinding)):
                read = _read_in(binding.value, updates)
                others |= {*relax.analysis.free_vars(binding.value)} - read
    return [p for p in function.params if _has_fixed_rows(p) and p not in others]


def _read_in(value: Any, updates: set[relax.Var]) -> set[relax.Var]:
    """Return the tables that the right-hand side of a binding looks up or updates."""
    if not isinstance(value, relax.Call):
        return set()
    if isinstance(value.op, tvm.ir.GlobalVar) or any(is_call(value, each) for each in _OF_UPDATES):
        return updates.intersection(value.args)
    return {value.args[0]} if getattr(value.op, "name", "") in READS else set()


def _has_fixed_rows(param: relax.Var) -> bool:
    shape = getattr(param.ty, "shape", None)
    return shape is not None and len(shape) == 2 and isinstance(shape[0], tirx.IntImm)
