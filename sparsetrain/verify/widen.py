# SPDX-License-Identifier: Apache-2.0
"""Conversion of a Relax function to float64: every float argument, constant and cast.

The result is compiled like any program, as a reference for the gradients of the float32 program.
Cost: a copy of the parameters at twice their size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax

from sparsetrain.errors import ConfigError
from sparsetrain.runtime import as_numpy

_WIDE = "float64"
_CONSTANT = type(relax.const(0.0, "float32"))


def widen_function(module: tvm.IRModule, name: str) -> tvm.IRModule:
    """Return a module with the float64 version of a function that has one dataflow block.

    Raises
    ------
    ConfigError
        If an operator of the function does not support float64.
    """
    function, builder = module[name], relax.BlockBuilder()
    known: dict[Any, Any] = {}

    def replaced(expr: Any) -> Any:
        if isinstance(expr, _CONSTANT) and _is_float(expr.ty):
            return relax.const(np.asarray(expr.value.numpy()).astype(_WIDE), _WIDE)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([replaced(field) for field in expr.fields])
        if isinstance(expr, relax.Call):
            return _widen_call(expr, [replaced(argument) for argument in expr.args])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(replaced(expr.tuple_value), expr.index)
        return known.get(expr, expr)

    for param in function.params:
        known[param] = relax.Var(param.name, _widen_type(param.ty))
    with builder.function(name, [known[param] for param in function.params]):
        with builder.dataflow():
            for block in function.body.blocks:
                for binding in block.bindings:
                    try:
                        known[binding.var] = builder.emit(replaced(binding.value))
                    except Exception as error:  # raised by type inference
                        raise ConfigError(
                            f"cannot compute {binding.value} in float64: {error}"
                        ) from error
            result = builder.emit_output(replaced(function.body.body))
        builder.emit_func_output(result)
    return builder.get()


def widen_arrays(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Copy float arrays and tensors to float64; integers are unchanged."""
    plain = {name: as_array(value) for name, value in arrays.items()}
    return {n: a if a.dtype.kind in "iu" else a.astype(_WIDE) for n, a in plain.items()}


def as_array(value: Any) -> np.ndarray:
    """View an array or a tensor as an array."""
    return value if isinstance(value, np.ndarray) else as_numpy(value)


def _is_float(ty: Any) -> bool:
    return isinstance(ty, relax.TensorType) and "float" in str(ty.dtype)


def _widen_type(ty: Any) -> Any:
    return relax.TensorType(ty.shape, _WIDE) if _is_float(ty) else ty


_WITH_DTYPE = ("relax.astype", "relax.full", "relax.ones", "relax.zeros")


def _widen_call(call: Any, arguments: list[Any]) -> Any:
    name = getattr(call.op, "name", "")
    if name in _WITH_DTYPE and _is_float(call.ty):
        return getattr(relax.op, name.removeprefix("relax."))(*arguments, dtype=_WIDE)
    return relax.Call(call.op, arguments, call.attrs, call.ty_args)
