# SPDX-License-Identifier: Apache-2.0
"""Run a rule written over Relax variables on tensors: trace once per signature, then call.

`algebra` is written once, for traces. Called with run-time tensors, a rule is traced over
variables of the same dtypes and widths with symbolic lengths, compiled, and kept; the second
call costs a few microseconds. Numbers among the arguments become scalar inputs, not new traces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from sparsetrain import runtime
from sparsetrain.runtime.compiling import build_relax
from sparsetrain.runtime.device_pool import limit_pool
from sparsetrain.runtime.tensors import target_of, to_device
from sparsetrain.system.locks import new_lock, with_builder_lock

# Rule and signature -> the compiled rule, and the structure of a row-sparse result.
_compiled: dict[Any, tuple[Any, Any]] = {}
_lock = new_lock()


def eager(rule: Callable[..., Any], *arguments: Any) -> Any:
    """Apply `rule` to `arguments` now if their leaves are tensors, else as part of a trace."""
    if any(getattr(a, "is_traced", False) for a in arguments):
        return rule(*arguments)
    first = arguments[0]
    place = first.values
    arguments = tuple(_scalar(a, first.dtype, place) if _is_number(a) else a for a in arguments)
    target = target_of(place)
    key = (rule.__name__, target.kind.name, *map(_signature, arguments))
    leaves = [leaf for a in arguments for leaf in _leaves(a)]
    with _lock:  # threads share the virtual machine
        if key not in _compiled:
            _compiled[key] = _compile(rule, arguments, target)
        function, structure = _compiled[key]
        limit_pool(leaves)
        result = function(*leaves)
    return result if structure is None else structure.with_leaves(tuple(result))


@with_builder_lock
def _compile(
    rule: Callable[..., Any], arguments: tuple[Any, ...], target: tvm.target.Target
) -> tuple[Any, Any]:
    """Trace `rule` over variables like `arguments`; return it with its result's structure."""
    traced = tuple(_variables(a, f"arg{i}") for i, a in enumerate(arguments))
    builder = relax.BlockBuilder()
    with builder.function("rule", [leaf for a in traced for leaf in _leaves(a)]):
        with builder.dataflow():
            result = rule(*traced)
            sparse = hasattr(result, "leaves")
            leaves = [builder.emit(leaf) for leaf in (result.leaves if sparse else [result])]
            output = builder.emit_output(relax.Tuple(leaves) if sparse else leaves[0])
        builder.emit_func_output(output)
    machine = build_relax(builder.get(), target)
    return machine["rule"], result if sparse else None  # its leaves are variables: small


def _variables(argument: Any, name: str) -> Any:
    if hasattr(argument, "leaves"):
        rows = {leaf: f"{name}_{leaf}" for leaf in ("N", "M")}
        count = tvm.tirx.Var(rows["N"], "int64")
        stored = count if argument.source is None else tvm.tirx.Var(rows["M"], "int64")
        shapes = [(count,), (stored, argument.width), (count,)]
        return argument.with_leaves(
            tuple(
                relax.Var(f"{name}_{i}", relax.TensorType(shape, str(leaf.dtype)))
                for i, (leaf, shape) in enumerate(zip(argument.leaves, shapes, strict=False))
            )
        )
    if isinstance(argument, runtime.NDArray):
        return relax.Var(name, relax.TensorType((), str(argument.dtype)))
    return argument


def _leaves(argument: Any) -> tuple[Any, ...]:
    if hasattr(argument, "leaves"):
        return tuple(argument.leaves)
    return (argument,) if isinstance(argument, (runtime.NDArray, relax.Expr)) else ()


def _signature(argument: Any) -> Any:
    if hasattr(argument, "leaves"):
        dtypes = tuple(str(leaf.dtype) for leaf in argument.leaves)
        return (*dtypes, argument.num_rows, argument.shape, argument.coalesced)
    return str(argument.dtype) if isinstance(argument, runtime.NDArray) else argument


def _is_number(argument: Any) -> bool:
    if isinstance(argument, np.ndarray):
        return argument.ndim == 0
    return isinstance(argument, (int, float, np.number)) and not isinstance(argument, bool)


def _scalar(number: Any, dtype: str, place: runtime.NDArray) -> Any:
    return to_device(runtime.as_tensor(np.asarray(number, dtype)), place.device)
