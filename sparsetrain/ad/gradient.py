# SPDX-License-Identifier: Apache-2.0
"""Turn a Relax function with a scalar result into one that also returns its gradients.

The new function keeps the forward bindings, appends the reverse pass, and returns ``(loss, leaf,
leaf, ...)``: one leaf for a dense gradient, two or three for a row-sparse one. If the function
returns a tuple, the results after the loss are returned undifferentiated. No value in it has the
shape of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import tvm
from tvm import relax
from tvm.relax.utils import copy_with_new_vars
from tvm_ffi import structural_equal

from sparsetrain.ad.bindings import used_vars
from sparsetrain.ad.cotangent import bind, make_dense
from sparsetrain.ad.differentiable import has_gradient, is_float_tensor
from sparsetrain.ad.reverse import ReversePass, activity
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.relax_op import callees, find_function
from sparsetrain.ops.operand_shapes import require_plain_shapes, require_shapes, simplified
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.system.locks import with_builder_lock

LOSS_SCALE = "loss_scale"


class Unreached(ConfigError):
    """Error: the result does not depend on some of the parameters to differentiate.

    Attributes
    ----------
    names : list of str
        The parameters that the result does not depend on.
    """

    def __init__(self, names: list[str], fix: str) -> None:
        super().__init__(f"the result does not depend on parameter {names[0]!r}: {fix}")
        self.names = names


@dataclass(frozen=True)
class GradientModule:
    """A Relax module with one gradient function, and the meaning of its flat results.

    Parameters
    ----------
    module : tvm.IRModule
        Holds the function, not yet lowered.
    function : str
        Its name: the original function's name with ``_adjoint`` appended.
    arguments : tuple of str
        Names of the function's arguments, in order.
    structure : dict
        Parameter name -> None for a dense gradient, or a traced `RowSparse` as a template.
    others : int
        Number of results of the original function after its loss, without new values of buffers.
    """

    module: tvm.IRModule
    function: str
    arguments: tuple[str, ...]
    structure: dict[str, RowSparse | None]
    others: int = 0

    def unflatten(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Return gradients by parameter name, from the results after the loss and `others`."""
        rest = iter(leaves)
        return {
            name: next(rest)
            if template is None
            else template.with_leaves(tuple(islice(rest, len(template.leaves))))
            for name, template in self.structure.items()
        }


@with_builder_lock
def gradient(
    module: tvm.IRModule,
    function: str,
    wrt: Sequence[str] | None = None,
    densify: Sequence[str] = (),
    scaled: bool = False,
    buffers: Sequence[str] = (),
) -> GradientModule:
    """Differentiate a function that has one dataflow block and returns a scalar loss.

    The loss is a floating-point number. The function may also return a tuple of tensors, with the
    loss first.

    Parameters
    ----------
    module : tvm.IRModule
        From ``nn.Module.export_tvm`` or any other source of Relax.
    function : str
        Name of the function in `module`.
    wrt : sequence of str, optional
        Parameters to differentiate; by default all floating-point arguments after the first
        ``num_input`` (the function attribute that ``export_tvm`` sets; 0 without it).
    densify : sequence of str
        Parameters with a row-sparse gradient that may become dense. No other gradient ever does.
    scaled : bool
        Whether the new function has an additional first argument, the number `LOSS_SCALE`. The
        reverse pass begins with it instead of 1. The returned loss is not scaled.
    buffers : sequence of str
        Parameters for which the function returns new values, as its last results and in this order.
        The values are returned in place of gradients and are not differentiated.

    Raises
    ------
    ConfigError
        For an unknown name, a function of an unsupported form, an operator without a rule, a result
        that does not depend on a parameter, a result of unknown shape, or a tied embedding not
        named in `densify`.
    """
    primal = _find(module, function)
    require_shapes(primal.body.blocks[0].bindings)
    require_plain_shapes(primal.body.blocks[0].bindings)
    names = tuple(param.name for param in primal.params)
    primal = copy_with_new_vars(primal)
    wanted = _wanted(primal, names, wrt, densify, buffers)
    results = _results(primal)
    _check_buffers(dict(zip(names, primal.params, strict=True)), results, buffers)
    _check_reached(primal, results[0], wanted, chosen=wrt is not None)
    builder = relax.BlockBuilder()
    name = f"{function}_adjoint"
    scale = [_scale(results[0], names)] if scaled else []
    with _function(builder, name, [*scale, *primal.params], _attrs(primal, len(scale))):
        with builder.dataflow():
            (loss, *others), bindings = _replay(primal, results, builder)
            reverse = ReversePass(activity(bindings, wanted), frozenset(densify))
            reverse.run(bindings, loss, *scale)
            gradients = {n: _finish(reverse, v, n in densify) for v, n in wanted.items()}
            leaves = [leaf for g in gradients.values() for leaf in _leaves(g)]
            output = builder.emit_output(relax.Tuple([loss, *others, *leaves]))
        builder.emit_func_output(output)
    adjoint = builder.get()
    for var, callee in callees(module).items():
        adjoint[var] = callee
    adjoint = relax.transform.DeadCodeElimination([name])(adjoint)
    structure = dict.fromkeys(buffers) | {
        n: g if isinstance(g, RowSparse) else None for n, g in gradients.items()
    }
    arguments = (LOSS_SCALE,) * scaled + names
    return GradientModule(adjoint, name, arguments, structure, len(others) - len(buffers))


def _find(module: tvm.IRModule, function: str) -> relax.Function:
    found = find_function(module, function)
    blocks = found.body.blocks
    if len(blocks) != 1 or not isinstance(blocks[0], relax.DataflowBlock):
        raise ConfigError(
            f"function {function!r} must be one dataflow block: write it under R.dataflow(), or "
            "run relax.transform.ConvertToDataflow first"
        )
    return found


def _wanted(
    primal: relax.Function,
    names: Sequence[str],
    wrt: Sequence[str] | None,
    densify: Sequence[str],
    buffers: Sequence[str],
) -> dict[relax.Var, str]:
    variables = dict(zip(names, primal.params, strict=True))
    bindings = primal.body.blocks[0].bindings
    if wrt is None:
        inputs = int(primal.attrs.get("num_input", 0))
        own = names[inputs:]
        wrt = [n for n in own if n not in buffers and has_gradient(variables[n], bindings)]
    if isinstance(wrt, str):
        raise ConfigError(f"wrt must be a list of names: pass wrt=[{wrt!r}]")
    for name in (*wrt, *densify):
        if name not in variables:
            raise ConfigError(f"no argument {name!r} to differentiate; there are {list(names)}")
        if not has_gradient(variables[name], bindings):
            raise ConfigError(
                f"argument {name!r} is {variables[name].ty}, not a floating-point tensor"
            )
    for name in densify:
        if not is_float_tensor(variables[name].ty):
            raise ConfigError(
                f"densify: {name!r} is an int8 table, which takes only row-sparse gradients: "
                "store it in float32, or use two parameters"
            )
    return {variables[name]: name for name in wrt}


def _check_buffers(
    arguments: dict[str, relax.Var], results: list[relax.Var], buffers: Sequence[str]
) -> None:
    """Refuse a function that does not return the new values of buffers."""
    returned = dict(zip(buffers, results[1:][-len(buffers) :], strict=False)) if buffers else {}
    for name in buffers:
        wanted, found = (getattr(of.get(name), "ty", None) for of in (arguments, returned))
        if wanted is None or found is None or not structural_equal(wanted, found):
            raise ConfigError(
                f"buffers: {name!r} is {wanted}, but its new value is {found}: return the "
                f"loss first, and the new values of {', '.join(buffers)} last"
            )


def _results(primal: relax.Function) -> list[relax.Var]:
    """Return the loss, and the tensors that the function returns after it."""
    result = primal.body.body
    made = {binding.var: binding.value for binding in primal.body.blocks[0].bindings}
    value = made.get(result, result)
    while value in made:  # an alias
        value = made[value]
    fields = list(value.fields) if isinstance(value, relax.Tuple) else [result]
    return fields if all(isinstance(field, relax.Var) for field in fields) else [result]


@contextmanager
def _function(
    builder: relax.BlockBuilder, name: str, params: list[relax.Var], attrs: dict[str, Any]
) -> Iterator[None]:
    """Build a function; after an error, close its blocks, or else TVM warns on stderr."""
    try:
        with builder.function(name, params, attrs=attrs):
            yield
    except BaseException:
        builder._end_block()
        builder.end_scope()
        raise


def _replay(
    primal: relax.Function, results: list[relax.Var], builder: relax.BlockBuilder
) -> tuple[list[relax.Var], list[relax.VarBinding]]:
    """Emit the bindings that the results depend on; return the new results and bindings."""
    block = primal.body.blocks[0]
    needed, live = set(results), []
    for binding in reversed(block.bindings):
        # A cast may define a symbolic extent, so it is always kept.
        if binding.var in needed or isinstance(binding, relax.MatchCast):
            live.append(binding)
            needed.update(used_vars(binding.value))
    emitted: list[relax.VarBinding] = []
    renamed: dict[relax.Var, relax.Var] = {}
    for binding in reversed(live):
        value = _rename(binding.value, renamed)
        if isinstance(binding, relax.MatchCast):
            binding = relax.MatchCast(binding.var, value, binding.ty)
            builder.emit_normalized(binding)
        elif (
            isinstance(binding.var, relax.DataflowVar)
            and simplified(binding.var.ty) is binding.var.ty
        ):
            binding = relax.VarBinding(binding.var, value)
            builder.emit_normalized(binding)
        else:  # outputs of the old block, and types that simplify, need new variables
            renamed[binding.var] = bind(builder, value, binding.var.name)
            binding = relax.VarBinding(renamed[binding.var], value)
        emitted.append(binding)
    return [renamed.get(result, result) for result in results], emitted


def _rename(value: Any, renamed: dict[relax.Var, relax.Var]) -> Any:
    """Replace variables in a right-hand side, copying only the parts that change."""
    if not renamed or not any(v in renamed for v in used_vars(value)):
        return value
    if isinstance(value, relax.Var):
        return renamed[value]
    if isinstance(value, relax.Tuple):
        return relax.Tuple([_rename(item, renamed) for item in value.fields])
    if isinstance(value, relax.TupleGetItem):
        return relax.TupleGetItem(_rename(value.tuple_value, renamed), value.index)
    arguments = [_rename(item, renamed) for item in value.args]
    return relax.Call(value.op, arguments, value.attrs, value.ty_args)


def _check_reached(
    primal: relax.Function, loss: relax.Var, wanted: dict[relax.Var, str], *, chosen: bool
) -> None:
    """Raise if a parameter has no gradient; `chosen` says whether the caller named them."""
    ty: Any = getattr(loss, "ty", None)
    if not (is_float_tensor(ty) and ty.ndim == 0):
        raise ConfigError(
            "only a scalar floating-point result can be differentiated, alone or first in a flat "
            f"tuple of tensors, not {ty}"
        )
    reached = activity(primal.body.blocks[0].bindings, wanted).get(loss, frozenset())
    missing = [name for name in wanted.values() if name not in reached]
    if missing:
        fix = "leave it out of wrt" if chosen else "use it, or name those to differentiate in wrt"
        raise Unreached(missing, fix)


def _finish(reverse: ReversePass, variable: relax.Var, dense: bool) -> Any:
    cotangent = reverse.cotangents.get(variable)
    if cotangent is None:
        raise ConfigError(
            f"no cotangent reaches parameter {', '.join(reverse.depends[variable])!r}: "
            "leave it out of wrt"
        )
    return make_dense(cotangent) if dense else cotangent


def _leaves(gradient: Any) -> tuple[Any, ...]:
    return gradient.leaves if isinstance(gradient, RowSparse) else (gradient,)


def _attrs(primal: relax.Function, more: int) -> dict[str, Any]:
    if "num_input" not in primal.attrs:
        return {}
    return {"num_input": int(primal.attrs["num_input"]) + more}


def _scale(loss: relax.Var, names: Sequence[str]) -> relax.Var:
    if LOSS_SCALE in names:
        raise ConfigError(f"scaled: the function already has an argument {LOSS_SCALE!r}: rename it")
    return relax.Var(LOSS_SCALE, relax.TensorType((), loss.ty.dtype))
