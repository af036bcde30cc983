# SPDX-License-Identifier: Apache-2.0
"""Pass that skips the computation of rows that no result reads.

Walking backwards from the results, the pass records for each value whether all its readers read the
same rows (`Rows`), or whether it is read as a whole. An operator with a rule computes only the rows
that are read. If its operand is computed as a whole, these rows are selected from the operand. The
pass runs before differentiation, so the reverse pass has fewer rows too.

Invariant: results have the same bits, because kernels compute each row independently. Cost: one
walk through the bindings, and a second one if rows can be skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tvm
from tvm import relax
from tvm.relax.utils import copy_with_new_vars
from tvm.sym import Analyzer

from sparsetrain.ad.bindings import used_vars
from sparsetrain.ad.cotangent import bind, emit
from sparsetrain.ad.densify import densify
from sparsetrain.compiler.dead_rows.row_rules import RULES, Operand, RowRule, Rows, as_matrix
from sparsetrain.compiler.dead_rows.selection import Selection, selection_of
from sparsetrain.compiler.dead_rows.spared import Spared
from sparsetrain.kernels.relax_op import find_function
from sparsetrain.ops.operand_shapes import is_zero, name_of, shape_of, size_of
from sparsetrain.system.locks import with_builder_lock

_kept: ContextVar[bool] = ContextVar("dead rows are computed", default=False)
_ALL = "all"  # readers need all rows of a value
_LOOKUPS = frozenset({"relax.sparsetrain.lookup", "relax.take"})
_DENSIFY = "relax.sparsetrain.densify"


@contextmanager
def keep_dead_rows() -> Iterator[None]:
    """Compute all rows in programs made inside this block, like SPARSETRAIN_KEEP_DEAD_ROWS=1.

    Examples
    --------
    >>> with keep_dead_rows():
    ...     program = st.value_and_grad(module, "loss")  # doctest: +SKIP
    """
    token = _kept.set(True)
    try:
        yield
    finally:
        _kept.reset(token)


def _are_kept() -> bool:
    return _kept.get() or os.environ.get("SPARSETRAIN_KEEP_DEAD_ROWS", "") not in ("", "0")


@with_builder_lock
def eliminate_dead_rows(
    module: tvm.IRModule, name: str, *, trains: bool
) -> tuple[tvm.IRModule, tuple[Spared, ...]]:
    """Compute only the rows that the results of a function read.

    Parameters
    ----------
    module : tvm.IRModule
    name : str
        Name of the function. It stays unchanged unless it is one dataflow block.
    trains : bool
        Whether the function will be differentiated. A table's gradient must then contain all rows
        that were looked up, because optimizers count a row with a zero gradient as touched.

    Returns
    -------
    (IRModule, tuple of Spared)
        The new module, or the same object if no rows can be skipped; the operators that compute
        fewer rows.

    Raises
    ------
    ConfigError
        If the module has no such function.
    """
    function = find_function(module, name)
    if _are_kept() or not is_plain(function):
        return module, ()
    if not any(selection_of(b.value) for b in function.body.blocks[0].bindings):
        return module, ()
    function = copy_with_new_vars(function)
    plan = _Plan(function, trains)
    if not plan.begins:
        return module, ()
    made = _Rebuilt(function, plan)
    found = tvm.IRModule({v: f for v, f in module.functions.items() if v.name_hint != name})
    found[name] = made.function(name)
    return found, tuple(made.spared)


def is_plain(function: relax.Function) -> bool:
    """Whether a function is one dataflow block."""
    blocks = function.body.blocks
    return len(blocks) == 1 and isinstance(blocks[0], relax.DataflowBlock)


class _Plan:
    """Which rows of each value are read, and which values are computed for some rows only.

    Attributes
    ----------
    rows : dict
        Maps each variable that is computed for some rows only to these rows.
    begins : dict
        Maps each variable bound to an operator that selects rows to its `Selection`.
    """

    def __init__(self, function: relax.Function, trains: bool) -> None:
        block = function.body.blocks[0]
        self.made = {binding.var: binding.value for binding in block.bindings}
        self.of_params = _of_params(function) if trains else set()
        self.rows: dict[relax.Var, Rows] = {}
        self.begins: dict[relax.Var, Selection] = {}
        self._read: dict[relax.Var, Any] = {}  # Rows, or _ALL
        for var in used_vars(function.body.body):
            self._read[var] = _ALL
        for binding in reversed(block.bindings):
            self._visit(binding)
        self.begins = {
            var: of for var, of in self.begins.items() if self.made[var].args[0] in self.rows
        }

    def _visit(self, binding: Any) -> None:
        var, value = binding.var, binding.value
        if not isinstance(var, relax.DataflowVar) or isinstance(binding, relax.MatchCast):
            self._read[var] = _ALL
        read: Any = self._read.get(var)
        needs = self.needs(value, read) if isinstance(read, Rows) else None
        if needs is not None and var not in self.of_params:
            self.rows[var] = read
            for argument, axis in needs:
                self._add(argument, _ALL if axis is None else read.along(axis))
            return
        chosen = selection_of(value)
        if chosen is not None and _is_matrix_like(value.args[0], chosen[1]):
            self.begins[var] = chosen[0]
            self._add(value.args[0], Rows(chosen[1], chosen[0]))
            for argument in value.args[1:]:
                self._add(argument, _ALL)
            return
        self._add(value, _ALL)

    def _add(self, value: Any, need: Any) -> None:
        for var in used_vars(value):
            before = self._read.get(var)
            same = before is None or (isinstance(need, Rows) and need.same(before))
            self._read[var] = need if same else _ALL

    def needs(self, value: Any, rows: Rows) -> list[tuple[Any, int | None]] | None:
        """Return `needs_of`, but None for a lookup that must run for every row."""
        return None if self._is_table(value) else needs_of(value, rows)

    def _is_table(self, call: Any) -> bool:
        """Whether a call looks up rows of a table with a row-sparse gradient."""
        is_lookup = isinstance(call, relax.Call) and name_of(call) in _LOOKUPS
        return is_lookup and call.args[0] in self.of_params and not self._is_dense(call)

    def _is_dense(self, call: Any) -> bool:
        return name_of(self.made.get(call.args[0])) == _DENSIFY


def _of_params(function: relax.Function) -> set[relax.Var]:
    """Return the parameters, and the values computed from parameters only."""
    found = {*function.params[int((function.attrs or {}).get("num_input", 0)) :]}
    for binding in function.body.blocks[0].bindings:
        used = used_vars(binding.value)
        if used and found.issuperset(used):
            found.add(binding.var)
    return found


def _first(ty: Any) -> Any:
    """Return a tensor's type, or the first field's type of a tuple."""
    return ty.fields[0] if isinstance(ty, relax.TupleType) else ty


def needs_of(value: Any, rows: Rows) -> list[tuple[Any, int | None]] | None:
    """Return each argument of a right-hand side with the axis of the rows it must provide.

    The axis is None if the whole argument is needed. Return None if there is no rule.
    """
    if isinstance(value, relax.Var):
        return [(value, rows.axis)]
    if isinstance(value, relax.TupleGetItem):
        return [(value.tuple_value, rows.axis)]
    rule = rule_of(value)
    if rule is None:
        return None
    if rows.axis == _first(value.ty).ndim - 1 and not rule.any_axis:
        return None
    axes = rule.needs(value, rows)
    if axes is None:
        return None
    in_tuple = len(value.args) == 1 and isinstance(value.args[0], relax.Tuple)
    needs = list(zip(value.args[0].fields if in_tuple else value.args, axes, strict=True))
    return None if any(axis is not None and _is_empty(given) for given, axis in needs) else needs


def _is_empty(value: relax.Expr) -> bool:
    """Whether an extent is 0, which a reshape would take to mean "keep this extent"."""
    return any(map(is_zero, shape_of(value) or ()))


def rule_of(value: Any) -> RowRule | None:
    """Return the rule of a call, or None."""
    return RULES.get(name_of(value)) if isinstance(value, relax.Call) else None


def _is_matrix_like(x: relax.Expr, axis: int) -> bool:
    """Whether the function computes a value, and its rows along `axis` can form a matrix."""
    return isinstance(x, relax.DataflowVar) and axis < x.ty.ndim - 1


def renamed(value: Any, new: Callable[[relax.Var], relax.Expr]) -> Any:
    """Replace each variable in a right-hand side by `new` of this variable."""
    if isinstance(value, relax.Var):
        return new(value)
    if isinstance(value, relax.Tuple):
        return relax.Tuple([renamed(item, new) for item in value.fields])
    if isinstance(value, relax.TupleGetItem):
        return relax.TupleGetItem(renamed(value.tuple_value, new), value.index)
    if isinstance(value, relax.Call):
        arguments = [renamed(item, new) for item in value.args]
        return relax.Call(value.op, arguments, value.attrs, value.ty_args)
    return value


class _Rebuilt:
    """The function, rebuilt from a plan."""

    def __init__(self, function: relax.Function, plan: _Plan) -> None:
        self._function, self._plan = function, plan
        self._selected: dict[relax.Var, Any] = {}  # old variable -> its rows: a matrix, or a tuple
        self._renamed: dict[relax.Var, relax.Var] = {}
        self.spared: list[Spared] = []
        self._selections: dict[Any, Selection] = {}

    def function(self, name: str) -> relax.Function:
        """Return the new function."""
        old, builder = self._function, relax.BlockBuilder()
        with builder.function(name, [*old.params], attrs=dict(old.attrs or {})):
            with builder.dataflow():
                for binding in old.body.blocks[0].bindings:
                    self._emit(builder, binding)
                result = builder.emit_output(self._rename(old.body.body))
            builder.emit_func_output(result)
        (made,) = (
            builder.get().functions.values()
        )  # renamed by the builder, if a value has the same name
        return made.with_attr("global_symbol", name)

    def _emit(self, builder: relax.BlockBuilder, binding: Any) -> None:
        var, value = binding.var, binding.value
        if var in self._plan.rows:
            self._selected[var] = self._on_rows(var, value, self._known(self._plan.rows[var]))
        elif var in self._plan.begins:
            source = value.args[0]
            of = self._known(self._plan.rows[source]).of
            result = emit(of.result(self._selected[source], value))
            self._renamed[var] = result
        elif isinstance(binding, relax.MatchCast):
            made = relax.MatchCast(var, self._rename(value), binding.ty)
            builder.emit_normalized(made)
        else:
            self._renamed[var] = bind(builder, self._rename(value), var.name)

    def _known(self, rows: Rows) -> Rows:
        """Return the same rows; equal selections become one shared object."""
        return rows._replace(of=self._selections.setdefault(rows.of.key, rows.of))

    def _on_rows(self, var: relax.Var, value: Any, rows: Rows) -> Any:
        """Compute only the rows of a value that are read."""
        if isinstance(value, relax.Var):
            return self._rows_of(value, rows)
        if isinstance(value, relax.TupleGetItem):
            return self._field(value, rows)
        rule, needs = rule_of(value), self._plan.needs(value, rows)
        assert rule is not None
        assert needs is not None
        operands = [self._operand(argument, axis, rows) for argument, axis in needs]
        builder = relax.BlockBuilder.current()
        made = bind(builder, rule.rebuild(value, rows, operands), var.name)
        self._record_saving(value, rows, rule)
        return made

    def _record_saving(self, call: relax.Call, rows: Rows, rule: RowRule) -> None:
        whole = [*_first(call.ty).shape]
        read, all_rows = (Analyzer().simplify(size_of(s[:-1])) for s in (rows.shape(whole), whole))
        self.spared.append(Spared(name_of(call), read, all_rows, rule.flops(call)))

    def _operand(self, argument: relax.Expr, axis: int | None, rows: Rows) -> Operand:
        shape = list(getattr(argument.ty, "shape", None) or ())
        if axis is None:
            return Operand(self._rename(argument), None, shape)
        along = rows.along(axis)
        return Operand(argument, self._rows_of(argument, along), along.shape(shape))

    def _rows_of(self, value: relax.Expr, rows: Rows) -> Any:
        """Return rows of a variable; take them from the whole value if it is computed whole."""
        if value in self._selected:
            return self._selected[value]
        source = self._rename(value)
        if value in self._plan.of_params:  # used with an activation, so its gradient is dense
            source = emit(densify(source))
        taken = emit(rows.of.take(source, rows.axis))
        return emit(as_matrix(taken)) if taken.ty.ndim > 1 else taken

    def _field(self, value: relax.TupleGetItem, rows: Rows) -> relax.Expr:
        if value.tuple_value in self._selected:
            return emit(relax.TupleGetItem(self._selected[value.tuple_value], value.index))
        return self._rows_of(emit(self._rename(value)), rows)

    def _rename(self, value: Any) -> Any:
        return renamed(value, lambda var: self._renamed.get(var, var))
