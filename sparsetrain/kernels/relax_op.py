# SPDX-License-Identifier: Apache-2.0
"""Relax operators defined from Python: a name, a type rule and a kernel.

The operator prints as ``R.sparsetrain.<name>`` and legalizes like a built-in operator. Registering
is process-wide and happens once, when the module that defines the operator is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Op, make_node

from sparsetrain.errors import ConfigError, DataError

# Errors of a type rule pass through TVM, which keeps only the name of their class.
for _error in (ConfigError, DataError):
    tvm_ffi.register_error(_error.__name__, _error)

InferType = Callable[[Any], relax.Type]
Legalize = Callable[[relax.BlockBuilder, Any], relax.Expr]


def define_op(
    name: str, arguments: tuple[str, ...], infer: InferType, legalize: Legalize
) -> Callable[..., relax.Expr]:
    """Register ``relax.sparsetrain.<name>`` and return the function that calls it.

    Parameters
    ----------
    name : str
        Name below ``relax.sparsetrain``.
    arguments : tuple of str
        Names of the tensor arguments, in order.
    infer : callable
        ``infer(call)`` returns the type of the result from ``call.args`` and ``call.attrs``.
    legalize : callable
        ``legalize(block_builder, call)`` returns the call of the kernel that computes the result.

    Returns
    -------
    callable
        ``op(*tensors, **attributes)``: an unemitted Relax call.
    """
    full_name = f"relax.sparsetrain.{name}"
    tvm_ffi.get_global_func("ir.RegisterOp")(full_name, f"sparsetrain {name}")
    operator = Op.get(full_name)
    for argument in arguments:
        operator.add_argument(argument, "Tensor", "")
    operator.set_num_inputs(len(arguments))
    operator.set_attr("FInferType", lambda call, _builder: infer(call))
    operator.set_attr("FPurity", True)
    operator.set_attr("FLegalize", legalize)

    def call(*tensors: relax.Expr, **attributes: Any) -> relax.Expr:
        attrs = make_node("ir.DictAttrs", **attributes) if attributes else None
        return relax.Call(operator, list(tensors), attrs)

    call.__name__ = name
    return call


def find_function(module: tvm.IRModule, name: str) -> relax.Function:
    """Return the Relax function of that name.

    Raises
    ------
    ConfigError
        If `module` is not an IRModule or has no such function, or two arguments have the same name.
    """
    if not isinstance(module, tvm.IRModule):
        raise ConfigError(
            f"a {type(module).__name__} is not an IRModule: export_tvm of a nn.Module gives one, "
            "with its parameters: module, named = model.export_tvm(...)"
        )
    names = {v.name_hint: f for v, f in module.functions.items() if isinstance(f, relax.Function)}
    if name not in names:
        raise ConfigError(f"no Relax function {name!r} in the module; it has {sorted(names)}")
    _require_own_names(names[name], name)
    return names[name]


def _require_own_names(function: relax.Function, name: str) -> None:
    """Raise for two arguments of the same name: arrays are passed by name."""
    inputs = int((function.attrs or {}).get("num_input", len(function.params)))
    seen: dict[str, str] = {}
    for place, param in enumerate(function.params):
        kind = f"{'an input' if place < inputs else 'a parameter'}, {_one_line(param.ty)}"
        if param.name in seen:
            raise ConfigError(
                f"function {name!r} has two arguments called {param.name!r}: {seen[param.name]}, "
                f"and {kind}; rename one of them"
            )
        seen[param.name] = kind


def _one_line(ty: relax.Type) -> str:
    return " ".join(str(ty).split())


def callees(module: tvm.IRModule) -> dict[tvm.ir.GlobalVar, Any]:
    """Return the functions that a module's functions may call: kernels and private functions."""
    return {
        var: function
        for var, function in module.functions.items()
        if isinstance(function, tvm.tirx.PrimFunc) or "global_symbol" not in (function.attrs or {})
    }


def call_kernel(
    builder: relax.BlockBuilder, kernel: Any, name: str, arguments: list[relax.Expr], out: Any
) -> relax.Expr:
    """Call a hand-written PrimFunc from a legalization; `out` is its type or a list of types."""
    return relax.call_tir(builder.add_func(kernel, name), arguments, out)
