# SPDX-License-Identifier: Apache-2.0
"""Pass that removes a kernel's argument checks if it can prove them at compile time.

TVM's kernels check the number, dtype, rank, extents, strides and offset of their arguments in each
call. In a DLRM step these checks were half of the machine code and took at least a third of LLVM's
time. But every call is visible at compile time, so this pass compares the types of its arguments
with the kernel's declaration, symbols included. `sparsetrain.compiler.arguments` and the program's
prologue check the arguments of the program; arrays that the program allocates are in C order
without an offset. The layout of an external function's result is unknown, so kernels that read one
keep their checks. A kernel also keeps its checks if the arguments of a call do not provably match,
if another kernel calls it, or if it contains asserts.

Precondition: `CallTIRRewrite` has run, so calls name every array they write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import PrimType
from tvm.sym import Analyzer
from tvm.tirx.buffer import BufferType

from sparsetrain.runtime.lowering import SKIP_ASSERTS


@tvm.transform.module_pass(opt_level=0, name="ElideArgumentChecks")
class ElideArgumentChecks:
    """Mark each kernel if all calls to it provably match its declaration."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Give these kernels the attribute `SKIP_ASSERTS`."""
        kernels = {v: f for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
        calls = [call for call in _calls(mod) if call.kernel in kernels]
        proved = {call.kernel for call in calls}
        proved -= {c.kernel for c in calls if not (c.plain and _fits(kernels[c.kernel], c.given))}
        proved -= {var for kernel in kernels.values() for var in _called(kernel)}
        mod = mod.clone()
        for var in proved:
            if not _asserts(kernels[var]):
                mod[var] = kernels[var].with_attr(SKIP_ASSERTS, True)
        return mod


class _Call(NamedTuple):
    """A kernel call: its arguments, and whether their arrays are in C order without an offset."""

    kernel: tvm.ir.GlobalVar
    given: Sequence[Any]
    plain: bool


def _calls(mod: tvm.IRModule) -> Iterator[_Call]:
    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            found: list[relax.Call] = []
            relax.analysis.post_order_visit(
                function, lambda e, found=found: isinstance(e, relax.Call) and found.append(e)
            )
            values = _Values(function)
            for call in found:
                yield _Call(call.op, call.args, all(map(values.is_plain, call.args)))


class _Values:
    """The definitions of a function's variables; variables in branches are unknown."""

    def __init__(self, function: relax.Function) -> None:
        self._params = set(function.params)
        blocks = getattr(function.body, "blocks", ())
        self._bound = {b.var: b.value for block in blocks for b in block.bindings}

    def is_plain(self, value: Any) -> bool:
        """Whether a value is a scalar, or an array in C order without an offset."""
        value = self._made(value)
        if not isinstance(value, relax.Call):
            known = value in self._params or isinstance(value, tvm.ir.GenericConst)
            return known or isinstance(getattr(value, "ty", None), PrimType)
        name = getattr(value.op, "name", "")
        return name == _ALLOCATES or (name in _SHARES and self._shares_all(value))

    def _made(self, value: Any) -> Any:
        """Return the value behind a variable or a field of a tuple, through all aliases."""
        while value in self._bound or isinstance(value, relax.TupleGetItem):
            if not isinstance(value, relax.TupleGetItem):
                value = self._bound[value]
                continue
            whole = self._made(value.tuple_value)
            if not isinstance(whole, relax.Tuple):
                return whole
            value = whole.fields[value.index]
        return value

    def _shares_all(self, call: relax.Call) -> bool:
        """Whether a view shares the memory of a plain array, without an offset."""
        offset = call.args[_SHARES[call.op.name] :]
        return self.is_plain(call.args[0]) and all(
            isinstance(part, relax.Tuple) and not part.fields for part in offset
        )


_ALLOCATES = "relax.builtin.alloc_tensor"
# Operator that returns a view -> position of its offset, an empty tuple if there is no offset.
_SHARES = {"relax.reshape": 2, "relax.memory.view": 3}


def _called(kernel: tirx.PrimFunc) -> list[tvm.ir.GlobalVar]:
    found: list[tvm.ir.GlobalVar] = []
    tvm_ffi.structural_walk(kernel.body, (tvm.ir.GlobalVar, found.append))
    return found


def _asserts(kernel: tirx.PrimFunc) -> bool:
    found: list[tirx.AssertStmt] = []
    tvm_ffi.structural_walk(kernel.body, (tirx.AssertStmt, found.append))
    return bool(found)


def _fits(kernel: tirx.PrimFunc, given: Sequence[Any]) -> bool:
    """Whether a call's arguments match the kernel's declaration for all values of the symbols."""
    if len(kernel.params) != len(given):
        return False
    pairs = list(zip(kernel.params, given, strict=True))
    if not all(_is_of_kind(param.ty, value.ty) for param, value in pairs):
        return False
    arrays = [(p.ty.shape, v.ty.shape) for p, v in pairs if isinstance(p.ty, BufferType)]
    extents = [pair for shapes in arrays for pair in zip(*shapes, strict=True)]
    # A declared extent that is a symbol takes the actual value; then all extents must be equal.
    stands_for = {d: a for d, a in [*pairs, *extents] if _is_symbol(d) and d is not a}
    if not stands_for.keys().isdisjoint(_symbols([a for _, a in extents])):
        return False  # the caller uses the same symbol with a different value
    analyzer = Analyzer()
    for symbol, extent in stands_for.items():
        analyzer.bind(symbol, extent)
    return all(analyzer.can_prove_equal(*pair) for pair in extents)


def _symbols(extents: Sequence[Any]) -> set[tirx.Var]:
    found: list[tirx.Var] = []
    tvm_ffi.structural_walk(tvm_ffi.convert(list(extents)), (tirx.Var, found.append))
    return set(found)


def _is_of_kind(declared: Any, actual: Any) -> bool:
    """Whether everything but the extents matches: dtype, rank, and C order without an offset."""
    if not isinstance(declared, BufferType):
        return isinstance(actual, PrimType) and str(actual.dtype) == str(declared.dtype)
    begins = declared.elem_offset
    plain = not declared.strides and isinstance(begins, tirx.IntImm) and int(begins) == 0
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
