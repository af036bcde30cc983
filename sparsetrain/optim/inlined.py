# SPDX-License-Identifier: Apache-2.0
"""Dense updates inside the gradient program: one program computes gradients and writes parameters.

The program is staged. First all gradients; then a call of the host, the *gate*, which sees loss and
gradients and answers with the numbers of the step; then the updates, in place. So whatever has to
precede the first write does, as it does where the update is a program apart: the check for NaN, the
global norm, the plans of row-sparse gradients. A gate that says 0 rows updates nothing.

The arithmetic is that of the dense kernel, and so are the bits. A new learning rate compiles
nothing. Row-sparse gradients leave the program; the optimizer applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.kernel_builder import buffer, kernel, scalar
from sparsetrain.optim.kernel_parts import Parameter
from sparsetrain.optim.kernels import dense_body
from sparsetrain.optim.recipe import Recipe
from sparsetrain.optim.state import rows_of, slot_shape

GATE = "sparsetrain.optim.gate"


@tvm_ffi.register_global_func(GATE)
def _call(gate: Callable[..., Any], *results: Any) -> Any:
    """A program can call registered functions only; this one calls its argument."""
    return gate(*results)


class Update(NamedTuple):
    """One dense parameter of a program.

    Parameters
    ----------
    name : str
        Of the parameter among the function's arguments.
    result : int
        Place of its gradient among the function's results.
    recipe : Recipe
        What a step computes.
    """

    name: str
    result: int
    recipe: Recipe

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the arguments that its slots become."""
        return tuple(f"{self.name}:{slot.name}" for slot in self.recipe.formula.slots)

    def extents(self, shape: Sequence[int]) -> tuple[int, int]:
        """Rows and columns of a parameter as the kernel sees it; columns of one row, mostly."""
        rows = rows_of(tuple(shape))
        by_row = self.recipe.formula.by_row
        return (rows, prod(shape) // max(rows, 1)) if by_row else (1, prod(shape))

    def height(self, shape: Sequence[int]) -> int:
        """What the kernel counts: rows if the formula has a part by row, else elements."""
        return self.extents(shape)[0 if self.recipe.formula.by_row else 1]


def width(updates: Sequence[Update]) -> int:
    """K, the numbers that a gate gives for each update."""
    return 1 + max((len(update.recipe.scalars) for update in updates), default=0)


def inline_updates(module: tvm.IRModule, function: str, updates: Sequence[Update]) -> tvm.IRModule:
    """Append the updates to a gradient function.

    Parameters
    ----------
    module : tvm.IRModule
        Its `function` returns a tuple: the loss, then gradients.
    function : str
        Keeps its name and results. It gets more arguments at the end: the slots of each update, in
        order, and the gate, a function of the results that returns ``(P, K)`` float64. Row p holds
        the rows to write of parameter p, 0 or `Update.height`, then the scalars of its recipe.
    updates : sequence of P Update
        Their parameters and slots are written.

    Returns
    -------
    tvm.IRModule
        A new module.
    """
    old = module[function]
    params = {param.name: param for param in old.params}
    slots = {var.name: var for update in updates for var in _slots(update, params[update.name])}
    gate = relax.Var("gate", relax.AnyType())
    builder = relax.BlockBuilder(module)
    tail = _Tail()
    results = old.body.body
    leaves = [tail.bind(relax.TupleGetItem(results, i)) for i in range(len(results.ty.fields))]
    numbers = tail.bind(_ask(gate, leaves, (len(updates), width(updates))))
    for place, update in enumerate(updates):
        arrays = [leaves[update.result], params[update.name], *(slots[n] for n in update.slots)]
        views = [tail.bind(view) for view in _views(update, arrays)]
        update_kernel = inlined_update_kernel(update.recipe, str(arrays[0].ty.dtype))
        callee = builder.add_func(update_kernel, "inlined_update")
        tail.bind(relax.Call(callee, [*views, numbers, relax.prim_value(place)]))
    body = relax.SeqExpr([*old.body.blocks, relax.BindingBlock(tail.bindings)], results)
    arguments = [*old.params, *slots.values(), gate]
    whole = builder.get()
    whole[function] = relax.Function(arguments, body, old.ret_ty, is_pure=False, attrs=old.attrs)
    return relax.transform.Normalize()(whole)


class _Tail:
    """Bindings after the dataflow block, in the order in which they were made."""

    def __init__(self) -> None:
        self.bindings: list[relax.VarBinding] = []

    def bind(self, value: Any) -> relax.Var:
        var = relax.Var(f"inlined{len(self.bindings)}", _type(value))
        self.bindings.append(relax.VarBinding(var, value))
        return var


def _type(value: Any) -> Any:
    """The type of a right-hand side of the tail."""
    if isinstance(value, relax.TupleGetItem):
        return value.tuple_value.ty.fields[value.index]
    if value.ty_args:
        return value.ty_args[0]
    if isinstance(value.op, tvm.ir.GlobalVar):
        return relax.TupleType([])
    return relax.TensorType(value.args[1], value.args[0].ty.dtype)  # a view


def _ask(gate: relax.Var, leaves: list[relax.Var], shape: tuple[int, int]) -> relax.Call:
    returned = relax.TensorType(shape, "float64")
    return relax.Call(relax.ExternFunc(GATE), [gate, *leaves], ty_args=[returned])


def _slots(update: Update, param: relax.Var) -> Iterator[relax.Var]:
    shape = tuple(map(int, param.ty.shape))
    for name, slot in zip(update.slots, update.recipe.formula.slots, strict=True):
        yield relax.Var(name, relax.TensorType(slot_shape(slot, shape), param.ty.dtype))


def _views(update: Update, arrays: Sequence[relax.Var]) -> Iterator[relax.Call]:
    """Gradient, weight and slots as the kernel sees them: the same memory in another shape."""
    rows, columns = update.extents([int(extent) for extent in arrays[1].ty.shape])
    kinds = ["element", "element", *(slot.per for slot in update.recipe.formula.slots)]
    shapes = {"element": (rows, columns), "row": (rows,)}
    for array, kind in zip(arrays, kinds, strict=True):
        yield relax.op.memory.view(array, shapes[kind])


def inlined_update_kernel(recipe: Recipe, dtype: str) -> PrimFunc:
    """The dense kernel with its numbers in an array.

    Arguments: gradient and weight (R, C), one array per slot, numbers (P, K) float64, and which row
    of them holds this parameter's.
    """
    with kernel() as built:
        rows, columns, places, count = (T.int64() for _ in range(4))
        gradient = buffer("gradient", (rows, columns), dtype)
        parameter = Parameter(recipe, rows, columns, dtype)
        numbers = buffer("numbers", (places, count), "float64")
        place = scalar("place", "int64")
        h = SimpleNamespace(
            **{
                name: T.Bind(tirx.Cast(dtype, numbers[place, 1 + column]))
                for column, name in enumerate(recipe.scalars)
            }
        )
        end = T.Bind(tirx.Cast("int64", numbers[place, 0]))
        dense_body(parameter, gradient, h, tirx.const(0, "int64"), end)
    return built.get()
