# SPDX-License-Identifier: Apache-2.0
"""Compile errors in one line that names the operator.

TVM reports an internal error or a failed assertion without naming the operator. After such an
error, each operator is lowered by itself, and the message names the first operator that fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import relax, tirx

from sparsetrain.errors import ConfigError, SparsetrainError, first_line
from sparsetrain.ops.operand_shapes import describe_call, name_of, operands, shape_of
from sparsetrain.system.locks import with_builder_lock

# Operator -> specific advice, in place of the general advice in `_OTHERWISE`.
_WAYS_OUT = {
    "relax.strided_slice": "cut with op.strided_slice(..., assume_inbound=True), which is checked "
    "in every call",
}
_OTHERWISE = "give arguments of a different shape, dtype or attribute, or use different operators"


@contextmanager
def naming_operators(module: tvm.IRModule, target: tvm.target.Target) -> Iterator[None]:
    """Make compile errors name the operator that caused them, if it can be found.

    Raises
    ------
    ConfigError
        In place of TVM's error, if the operator is found. `OSError` and `MemoryError` pass
        through.
    """
    try:
        yield
    except (SparsetrainError, OSError, MemoryError):
        raise
    except Exception as error:  # TVM raises errors of many types, Python's included
        call = None if "bad_alloc" in str(error) else _culprit(module, target, str(error))
        if call is None:
            raise
        raise ConfigError(
            f"TVM cannot compile {_text(call)}: {first_line(error)}; "
            f"{_WAYS_OUT.get(name_of(call), _OTHERWISE)}"
        ) from error


def _text(call: relax.Call) -> str:
    known = any(shape_of(operand) is not None for operand in operands(call))
    return describe_call(call) if known else name_of(call)


@with_builder_lock
def _culprit(module: tvm.IRModule, target: tvm.target.Target, message: str) -> relax.Call | None:
    """Return the first call that cannot be lowered, else the first that the message names."""
    calls = list(_calls(module))
    if (
        "prim.if_then_else" in message
    ):  # an if_then_else in a shape, which TVM cannot infer; a call lowered by itself has none
        return next(filter(_moves_its_bounds, calls), None)
    for call in calls:
        if not _lowers(call, target):
            return call
    return next((call for call in calls if f"R.{_short(call)}(" in message), None)


def _moves_its_bounds(call: relax.Call) -> bool:
    """Whether a call is a slice with a symbolic bound that counts from the end if negative."""
    if name_of(call) != "relax.strided_slice" or int(call.attrs["assume_inbound"]):
        return False
    bounds = [bound for given in call.args[2:4] for bound in getattr(given, "fields", ())]
    return not all(isinstance(bound, tirx.IntImm) for bound in bounds)


def _calls(module: tvm.IRModule) -> Iterator[relax.Call]:
    for function in module.functions.values():
        for block in getattr(getattr(function, "body", None), "blocks", []):
            for binding in block.bindings:
                value: Any = getattr(binding, "value", None)
                if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op):
                    yield value


def _short(call: relax.Call) -> str:
    return name_of(call).removeprefix("relax.")


def _lowers(call: relax.Call, target: tvm.target.Target) -> bool:
    """Whether lowering the call by itself succeeds."""
    builder = relax.BlockBuilder()
    with builder.function("alone", relax.analysis.free_vars(call)):
        builder.emit_func_output(builder.emit(call))
    lower = tvm.transform.Sequential(
        [relax.backend.DispatchSortScan(), relax.transform.LegalizeOps()]
    )
    try:
        with target:
            lower(builder.get())
    except Exception:  # TVM raises errors of many types
        return False
    return True
