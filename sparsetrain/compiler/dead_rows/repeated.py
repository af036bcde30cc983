# SPDX-License-Identifier: Apache-2.0
"""Pass that computes repeated input rows once, such as a user's features next to many items.

The inputs hold each distinct row once; an additional argument maps rows of the batch to these rows.
Operators with a rule in `row_rules` run on the distinct rows. Their results are gathered into the
rows of the batch for operators that also read other values of the batch.

Invariant: results have the same bits, because kernels compute each row independently. Cost: one
walk through the bindings; at run time one gather.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax import op
from tvm.relax.utils import copy_with_new_vars

from sparsetrain.ad.bindings import used_vars
from sparsetrain.ad.cotangent import bind, emit
from sparsetrain.compiler.arguments import Arguments
from sparsetrain.compiler.dead_rows.eliminate import is_plain, needs_of, renamed, rule_of
from sparsetrain.compiler.dead_rows.row_rules import Operand, Rows
from sparsetrain.compiler.dead_rows.selection import Selection
from sparsetrain.kernels.relax_op import find_function
from sparsetrain.system.locks import with_builder_lock

ROW_NUMBERS = "row_numbers"  # (B,) int64: the row of the inputs for each row of the batch
_ROWS = "distinct_rows"  # symbol: the number of distinct rows


@with_builder_lock
def compute_repeated_once(module: tvm.IRModule, name: str) -> tvm.IRModule:
    """Compute row-wise products of floating-point inputs (B, n) on their U distinct rows only.

    Parameters
    ----------
    module : tvm.IRModule
    name : str
        Name of the function. It stays unchanged unless it is one dataflow block.

    Returns
    -------
    IRModule
        A module with a function that takes `ROW_NUMBERS` after its inputs, or the same module if
        no product would run on fewer rows.
    """
    function = find_function(module, name)
    if not is_plain(function):
        return module
    made = _Shared(copy_with_new_vars(function))
    changed = made.function(name)
    if not made.flops:
        return module
    found = tvm.IRModule({v: f for v, f in module.functions.items() if v.name_hint != name})
    found[name] = changed
    return found


def repeated_arguments(arguments: Arguments) -> list[str]:
    """Return the names of a program's (U, n) arguments, which hold each distinct row once."""
    if ROW_NUMBERS not in arguments.by_name:
        return []
    return [name for name, each in arguments.by_name.items() if (0, _ROWS) in each.symbols]


class _Distinct(Selection):
    """The distinct rows of the inputs."""

    key = ("distinct",)

    def __init__(self, count: tirx.Var) -> None:
        self.count = count

    def take(self, x: relax.Expr, axis: int) -> relax.Expr:
        """Never called: only dropout needs it, and scoring functions have no dropout."""
        raise NotImplementedError


class _Shared:
    """The function, rebuilt to run on distinct rows and to gather results by row numbers.

    Attributes
    ----------
    flops : int
        Multiplications and additions per row in the products that run on distinct rows.
    """

    def __init__(self, function: relax.Function) -> None:
        self._old = function
        self._rows = Rows(0, _Distinct(tirx.Var(_ROWS, "int64")))
        self._once: dict[relax.Var, Any] = {}  # old variable -> distinct rows: a matrix or a tuple
        self._new: dict[relax.Var, relax.Expr] = {}  # old variable -> all rows of the batch
        self.flops = 0

    def function(self, name: str) -> relax.Function:
        """Return the new function."""
        old, builder = self._old, relax.BlockBuilder()
        inputs = int((old.attrs or {}).get("num_input", 0))
        params = [*map(self._parameter, old.params[:inputs]), *old.params[inputs:]]
        counts = [var.ty.shape[0] for var in self._once]
        if not counts or any(not count.same_as(counts[0]) for count in counts):
            return old
        self._numbers = relax.Var(ROW_NUMBERS, relax.TensorType(counts[:1], "int64"))
        params.insert(inputs, self._numbers)
        attrs = dict(old.attrs) | {"num_input": inputs + 1}
        with builder.function(name, params, attrs=attrs):
            with builder.dataflow():
                for binding in old.body.blocks[0].bindings:
                    self._emit(builder, binding)
                result = builder.emit_output(renamed(old.body.body, self._whole))
            builder.emit_func_output(result)
        (made,) = builder.get().functions.values()
        return made.with_attr("global_symbol", name)

    def _parameter(self, old: relax.Var) -> relax.Var:
        shape = list(old.ty.shape or ())
        if len(shape) != 2 or "float" not in str(old.ty.dtype) or not _is_letter(shape[0]):
            return old
        new = relax.Var(old.name, relax.TensorType(self._rows.shape(shape), old.ty.dtype))
        self._once[old] = new
        return new

    def _emit(self, builder: relax.BlockBuilder, binding: Any) -> None:
        var, value = binding.var, binding.value
        if isinstance(binding, relax.MatchCast):
            builder.emit_normalized(relax.MatchCast(var, renamed(value, self._whole), binding.ty))
        elif (needs := self._needs(var, value)) is not None:
            self._once[var] = self._on_rows(builder, var, value, needs)
        else:
            self._new[var] = bind(builder, renamed(value, self._whole), var.name)

    def _needs(self, var: relax.Var, value: Any) -> list[tuple[Any, int | None]] | None:
        """Return `needs_of` if a value depends only on distinct rows and parameters, else None."""
        if not isinstance(var, relax.DataflowVar) or self._once.keys().isdisjoint(used_vars(value)):
            return None
        needs = needs_of(value, self._rows) or []
        once = all(axis is None or given in self._once for given, axis in needs)
        return needs if once and any(axis is not None for _, axis in needs) else None

    def _on_rows(self, builder: Any, var: relax.Var, value: Any, needs: Any) -> Any:
        if isinstance(value, relax.Var):
            return self._once[value]
        if isinstance(value, relax.TupleGetItem):
            return emit(relax.TupleGetItem(self._once[value.tuple_value], value.index))
        rule = rule_of(value)
        assert rule is not None
        self.flops += rule.flops(value)
        operands = [self._operand(given, axis) for given, axis in needs]
        return bind(builder, rule.rebuild(value, self._rows, operands), var.name)

    def _operand(self, given: relax.Expr, axis: int | None) -> Operand:
        shape = list(getattr(given.ty, "shape", None) or ())
        if axis is None:
            return Operand(renamed(given, self._whole), None, shape)
        return Operand(given, self._once[given], self._rows.shape(shape))

    def _whole(self, var: relax.Var) -> relax.Expr:
        """Return all rows of a variable."""
        if var in self._once and var not in self._new:
            self._new[var] = self._gathered(self._once[var], var.ty)
        return self._new.get(var, var)

    def _gathered(self, rows: Any, ty: Any) -> relax.Expr:
        if isinstance(ty, relax.TupleType):
            fields = [emit(relax.TupleGetItem(rows, n)) for n in range(len(ty.fields))]
            pairs = zip(fields, ty.fields, strict=True)
            return relax.Tuple([self._gathered(*pair) for pair in pairs])
        if ty.ndim > 2:
            rows = emit(op.reshape(rows, self._rows.shape([*ty.shape])))
        return emit(op.take(rows, self._numbers, 0, "clip"))


def _is_letter(extent: Any) -> bool:
    return not isinstance(extent, tirx.IntImm)
