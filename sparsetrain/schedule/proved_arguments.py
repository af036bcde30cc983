# SPDX-License-Identifier: Apache-2.0
"""Kernels need not check arguments that are proved to fit while the program is compiled.

TVM lets each kernel check number, dtype, rank, extents, strides and offset of its arguments
whenever it is called. Of a step of DLRM those checks were half of the machine code, and compiling
them half of LLVM's time. But every call is there to be read: the types of what is given are
compared with what the kernel declares, symbols included. Arrays that a program is given are checked
by `sparsetrain.arguments` and by the program itself as it begins; those of its own are plain.

A kernel keeps its checks if one call of it cannot be proved, if another kernel calls it, or if it
asserts anything itself: somebody's own operator that is called with other extents still says so.

Precondition: the module is as `CallTIRRewrite` leaves it, so calls name every array they write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import PrimType
from tvm.sym import Analyzer
from tvm.tirx.buffer import BufferType

from sparsetrain.runtime import UNCHECKED


@tvm.transform.module_pass(opt_level=0, name="ProveArguments")
class ProveArguments:
    """Mark kernels all of whose calls fit."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Give them the attribute `sparsetrain.runtime.UNCHECKED`."""
        kernels = {v: f for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
        proved = {call.op for call in _calls(mod) if call.op in kernels}
        proved -= {c.op for c in _calls(mod) if c.op in proved and not _fits(kernels[c.op], c.args)}
        proved -= {var for kernel in kernels.values() for var in _called(kernel)}
        mod = mod.clone()
        for var in proved:
            if not _asserts(kernels[var]):
                mod[var] = kernels[var].with_attr(UNCHECKED, True)
        return mod


def _calls(mod: tvm.IRModule) -> Iterator[relax.Call]:
    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            found: list[relax.Call] = []
            relax.analysis.post_order_visit(
                function, lambda e, found=found: isinstance(e, relax.Call) and found.append(e)
            )
            yield from found


def _called(kernel: tirx.PrimFunc) -> list[tvm.ir.GlobalVar]:
    found: list[tvm.ir.GlobalVar] = []
    tvm_ffi.structural_walk(kernel.body, (tvm.ir.GlobalVar, found.append))
    return found


def _asserts(kernel: tirx.PrimFunc) -> bool:
    found: list[tirx.AssertStmt] = []
    tvm_ffi.structural_walk(kernel.body, (tirx.AssertStmt, found.append))
    return bool(found)


def _fits(kernel: tirx.PrimFunc, given: Sequence[Any]) -> bool:
    """Whether what a call gives is what the kernel declares, whatever the symbols stand for."""
    if len(kernel.params) != len(given):
        return False
    pairs = list(zip(kernel.params, given, strict=True))
    if not all(_is_of_kind(param.ty, value.ty) for param, value in pairs):
        return False
    arrays = [(p.ty.shape, v.ty.shape) for p, v in pairs if isinstance(p.ty, BufferType)]
    extents = [pair for shapes in arrays for pair in zip(*shapes, strict=True)]
    analyzer = Analyzer()
    # A symbol stands for the extent where it is met by itself; then all extents must be equal.
    for symbol, extent in {d: a for d, a in [*pairs, *extents] if _is_symbol(d)}.items():
        analyzer.bind(symbol, extent)
    return all(analyzer.can_prove_equal(*pair) for pair in extents)


def _is_of_kind(declared: Any, actual: Any) -> bool:
    """All but the extents: a number of its dtype, or a plain array of its dtype and rank."""
    if not isinstance(declared, BufferType):
        return isinstance(actual, PrimType) and str(actual.dtype) == str(declared.dtype)
    plain = not declared.strides and isinstance(declared.elem_offset, tirx.IntImm)
    known = isinstance(actual, relax.TensorType) and isinstance(actual.shape, relax.ShapeExpr)
    return bool(
        plain
        and known
        and str(actual.dtype) == str(declared.dtype)
        and len(actual.shape) == len(declared.shape)
    )


def _is_symbol(extent: Any) -> bool:
    ty = getattr(extent, "ty", None)
    return isinstance(extent, tirx.Var) and isinstance(ty, PrimType) and str(ty.dtype) == "int64"
