# SPDX-License-Identifier: Apache-2.0
"""Search for a program's first non-finite value, by a rerun that returns all values.

The Relax function is rewritten to return every intermediate value, compiled without fusion, and run
on the failing batch, on the CPU. This needs memory for all values of one batch, and one compilation
per program. It happens only after a step has failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from tvm import relax

from sparsetrain import runtime
from sparsetrain.compiler.program import GradientProgram
from sparsetrain.runtime.compiling import build_relax
from sparsetrain.runtime.host import host_target
from sparsetrain.runtime.tensors import to_device


def first_nonfinite(
    program: GradientProgram, weights: Mapping[str, Any], inputs: Mapping[str, Any]
) -> str | None:
    """Find the first value that is not finite, in the order of the program.

    Parameters
    ----------
    program : GradientProgram
        Its function has one dataflow block.
    weights, inputs : mapping
        The program's arguments.

    Returns
    -------
    str or None
        A message that names the argument, or the operator and the parameters closest to it; None if
        all values are finite.
    """
    module, function = program.module, program.function  # as it was before lowering
    body = module[function]
    bound = program.arguments.bind(weights, inputs)
    arguments = [to_device(argument, tvm.cpu()) for argument in bound]
    for param, value in zip(body.params, arguments, strict=True):
        if not _is_finite(value):
            return f"the first value that is not finite is {param.name!r}, an argument"
    values = _showing(module, function)[function](*arguments)
    for binding, value in zip(_shown(body), values, strict=True):
        if not _is_finite(value):
            return f"the first value that is not finite is the result of {_describe(body, binding)}"
    return None


def _shown(body: relax.Function) -> list[Any]:
    """Return the bindings of float tensors: the values that the variant returns."""
    return [b for b in body.body.blocks[0].bindings if _is_float_tensor(b.var)]


@lru_cache(maxsize=1)
def _showing(module: tvm.IRModule, name: str) -> relax.VirtualMachine:
    """Compile a variant of the function that returns every value in `_shown`."""
    old = module[name]
    block = old.body.blocks[0]
    shown = [binding.var for binding in _shown(old)]
    # A dataflow variable cannot be returned from its block, so the bindings move to an ordinary
    # block.
    plain = relax.BindingBlock(list(block.bindings))
    body = relax.SeqExpr([plain], relax.Tuple(shown))
    returned = relax.TupleType([var.ty for var in shown])
    new = relax.Function(old.params, body, returned, is_pure=True, attrs=old.attrs)
    kept = {var: function for var, function in module.functions.items() if var.name_hint != name}
    rewritten = relax.transform.ToNonDataflow()(tvm.IRModule(kept | {tvm.ir.GlobalVar(name): new}))
    return build_relax(rewritten, host_target())


def _is_float_tensor(var: relax.Var) -> bool:
    return isinstance(var.ty, relax.TensorType) and str(var.ty.dtype).startswith("float")


def _is_finite(tensor: Any) -> bool:
    array = runtime.as_numpy(tensor)
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _describe(body: relax.Function, binding: Any) -> str:
    operator = getattr(getattr(binding.value, "op", None), "name", type(binding.value).__name__)
    near = _nearest(body)[binding.var.name]
    by = f" with {', '.join(repr(name) for name in near)}" if near else ""
    return f"{operator.removeprefix('relax.')}{by} ({binding.var.name})"


# Operators that only change the layout or dtype of their argument.
_LAYOUT = frozenset({"relax.permute_dims", "relax.reshape", "relax.astype", "relax.expand_dims"})


def _nearest(body: relax.Function) -> Mapping[str, list[str]]:
    """Map each value to the parameters among its operands, or to two from a level deeper."""
    same = {param.name: param.name for param in body.params}
    near: dict[str, list[str]] = {name: [name] for name in same}
    for binding in body.body.blocks[0].bindings:
        used = [var.name for var in relax.analysis.free_vars(binding.value)]
        direct = [same[name] for name in used if name in same]
        inherited = [name for other in used for name in near.get(other, [])]
        near[binding.var.name] = list(dict.fromkeys(direct or inherited[:2]))
        operator = getattr(getattr(binding.value, "op", None), "name", "")
        if operator in _LAYOUT and len(direct) == 1:
            same[binding.var.name] = direct[0]
    return near
