# SPDX-License-Identifier: Apache-2.0
"""Pass that turns a function's intermediate arrays into arguments.

Between two kernels the virtual machine runs on cold caches: creating and freeing a memory block, a
shape and a tensor for each result took 0.25 ms of a step on Criteo Kaggle. So arrays that do not
escape a function become its last arguments. A second function returns their sizes; the caller
allocates them once for each size of the inputs (`sparsetrain.runtime.workspace`).

Precondition: `CallTIRRewrite` has run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import DataType, relax, tirx

NEEDS = "{}_needs"  # the name of the second function
KINDS = ("int", "uint", "float", "bfloat")  # kinds of dtype that arrays may have
OWN = -1  # in place of an array's number: this array is no view, but owns its memory


@tvm.transform.module_pass(opt_level=0, name="HoistAllocations")
class HoistAllocations:
    """Turn the intermediate arrays of a function into arguments.

    Parameters
    ----------
    function : str
        Name of the function. A second function, with a name made by `NEEDS`, takes its old
        arguments and returns one tuple of numbers (a Relax shape) for each new argument: the first
        and last binding that use the array, the number of the new argument that it is a view of
        (or `OWN`), the kind (an index into `KINDS`) and bits of its dtype, and its extents.
    """

    def __init__(self, function: str) -> None:
        self.function = function

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Rewrite the function, and add the second function, which returns its buffer sizes."""
        mod = mod.clone()
        hoisted = _Hoisted(mod, mod[self.function])
        mod[self.function] = hoisted.rewritten()
        mod[NEEDS.format(self.function)] = hoisted.needs(NEEDS.format(self.function))
        return mod


@dataclass
class _Array:
    """An array: its variable, the array it is a view of, and the first and last binding with it."""

    var: relax.Var
    within: int
    first: int
    last: int


class _Hoisted:
    """The intermediate arrays that do not escape a function."""

    def __init__(self, module: tvm.IRModule, function: relax.Function) -> None:
        self._module, self._function = module, function
        self._symbols = _input_symbols(function)
        self._arrays: list[_Array] = []
        self._numbers: dict[relax.Var, int] = {}
        self._names: dict[relax.Var, Any] = {}  # alias -> the value that it names
        self._given: dict[relax.Var, relax.Var] = {}
        self._bindings = [b for block in function.body.blocks for b in block.bindings]
        leaving = set[int]()
        for place, binding in enumerate(self._bindings):
            leaving |= self._read(place, binding)
        leaving |= self._mentioned(function.body.body)
        leaving |= {self._root(number) for number in leaving}
        kept = [n for n in range(len(self._arrays)) if not {n, self._root(n)} & leaving]
        self._place = {number: place for place, number in enumerate(kept)}
        self._given |= {
            self._arrays[number].var: relax.Var(f"kept{place}", self._arrays[number].var.ty)
            for number, place in self._place.items()
        }

    def rewritten(self) -> relax.Function:
        """Return the function with the hoisted arrays as its last arguments."""
        old = self._function
        bindings = [
            relax.VarBinding(binding.var, self._resolved(binding.value))
            if isinstance(binding, relax.VarBinding)
            else binding
            for binding in self._bindings
            if binding.var not in self._given and not self._names_given(binding.var)
        ]
        body = relax.SeqExpr([relax.BindingBlock(bindings)], self._resolved(old.body.body))
        params = [*old.params, *self._given.values()]
        return relax.Function(params, body, old.ret_ty, is_pure=False, attrs=old.attrs)

    def needs(self, name: str) -> relax.Function:
        """Return the second function, which returns the sizes of the hoisted arrays."""
        old = self._function
        rows = [relax.ShapeExpr(self._row(self._arrays[number])) for number in self._place]
        sizes = [relax.VarBinding(relax.Var("need", row.ty), row) for row in rows]
        result = relax.Tuple([binding.var for binding in sizes])
        body = relax.SeqExpr([relax.BindingBlock(sizes)], result)
        function = relax.Function(old.params, body, result.ty, attrs=old.attrs)
        return relax.utils.copy_with_new_vars(function).with_attr("global_symbol", name)

    def _row(self, array: _Array) -> list[Any]:
        kind, bits = _number_type(array.var)
        within = self._place.get(array.within, OWN)
        head = (array.first, array.last, within, KINDS.index(kind), bits)
        return [*(tirx.IntImm("int64", number) for number in head), *array.var.ty.shape]

    def _read(self, place: int, binding: Any) -> set[int]:
        """Record a binding's use of arrays; return the arrays that may escape through it."""
        value, mentioned = binding.value, self._mentioned(binding.value)
        for number in mentioned:
            self._arrays[number].last = place
        if not isinstance(binding, relax.VarBinding):  # a match_cast checks its value at run time
            return mentioned
        if isinstance(value, _NAMES):
            self._names[binding.var] = self._resolved(value)
        elif _calls(value, "relax.builtin.alloc_tensor") and self._can_be_given(binding.var):
            self._add(binding.var, OWN, place)
        elif _calls(value, "relax.reshape") and mentioned and self._can_be_given(binding.var):
            (shown,) = mentioned
            self._add(binding.var, self._root(shown), place)
        elif not self._is_kernel(value):
            return mentioned
        return set()

    def _add(self, var: relax.Var, within: int, place: int) -> None:
        self._numbers[var] = len(self._arrays)
        self._arrays.append(_Array(var, within, place, place))

    def _root(self, number: int) -> int:
        """Return the number of the array that owns an array's memory."""
        within = self._arrays[number].within
        return number if within == OWN else within

    def _mentioned(self, value: Any) -> set[int]:
        """Return the numbers of the arrays in an expression."""
        variables = (
            inner
            for outer in relax.analysis.free_vars(value)
            for inner in relax.analysis.free_vars(self._names.get(outer, outer))
        )
        return {self._numbers[var] for var in variables if var in self._numbers}

    def _resolved(self, value: Any) -> Any:
        """Return an expression with aliases resolved and arrays replaced by arguments."""
        if isinstance(value, relax.Var):
            meant = self._names.get(value, value)
            return self._given.get(meant, meant) if meant.same_as(value) else self._resolved(meant)
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self._resolved(field) for field in value.fields])
        if isinstance(value, relax.TupleGetItem):
            return self._resolved(value.tuple_value)[value.index]
        if isinstance(value, relax.Call) and self._mentioned(value):
            arguments = [self._resolved(argument) for argument in value.args]
            return relax.Call(value.op, arguments, value.attrs, value.ty_args)
        return value

    def _names_given(self, var: relax.Var) -> bool:
        """Whether a variable is an alias of a hoisted array."""
        return var in self._names and not self._place.keys().isdisjoint(self._mentioned(var))

    def _can_be_given(self, var: relax.Var) -> bool:
        """Whether an array's size depends only on sizes of inputs, and its dtype is in `KINDS`."""
        symbols = relax.analysis.tir_vars_in_type(var.ty)
        known = _number_type(var)[0] in KINDS and self._symbols.issuperset(symbols)
        return known and not _chooses(var.ty.shape)

    def _is_kernel(self, value: Any) -> bool:
        """Whether a value is a kernel call, which returns nothing."""
        callee = getattr(value, "op", None)
        return isinstance(callee, tvm.ir.GlobalVar) and isinstance(
            self._module[callee], tirx.PrimFunc
        )


# Expressions that only refer to other values.
_NAMES = (relax.Var, relax.Tuple, relax.TupleGetItem)


def _calls(value: Any, name: str) -> bool:
    return isinstance(value, relax.Call) and getattr(value.op, "name", None) == name


def _chooses(shape: relax.Expr) -> bool:
    """Whether an extent has an `if_then_else`, which TVM cannot copy between functions."""
    found: list[bool] = []
    relax.analysis.post_order_visit(shape, lambda e: found.append(isinstance(e, relax.Call)))
    return any(found)


def _number_type(var: relax.Var) -> tuple[str, int]:
    """Return the kind and the bits of an array's dtype."""
    dtype = DataType(str(var.ty.dtype))
    return str(dtype).rstrip("0123456789"), dtype.bits


def _input_symbols(function: relax.Function) -> set[Any]:
    """Return the symbols in the shapes of a function's inputs."""
    inputs = function.params[: int(function.attrs.get("num_input", len(function.params)))]
    return {symbol for param in inputs for symbol in relax.analysis.tir_vars_in_type(param.ty)}
