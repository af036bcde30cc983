# SPDX-License-Identifier: Apache-2.0
"""Pass that elides argument checks of kernels where the compiler can prove that they hold.

TVM lets each kernel check number, dtype, rank, extents, strides and offset of its arguments in
every call. In a DLRM step those checks were half of the machine code, and a third of LLVM's time or
more. But every call is visible at compile time: the types of its arguments are compared with the
kernel's declaration, symbols included. Arrays from outside are checked by
`sparsetrain.compiler.arguments` and by the program's prologue; arrays that the program allocates
are plain. Results of external functions are unknown: kernels that read them keep their checks.

A kernel also keeps its checks if one of its calls cannot be proved, if a kernel calls it, or if it
asserts anything itself.

Precondition: the module is as `CallTIRRewrite` leaves it, so calls name every array they write.
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
    """Mark kernels if all their calls fit."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Give them the attribute `SKIP_ASSERTS`."""
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
    """A call's arguments, and whether all arrays among them have a plain layout."""

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
    """Where the values of a function come from; of those in branches nothing is known."""

    def __init__(self, function: relax.Function) -> None:
        self._params = set(function.params)
        blocks = getattr(function.body, "blocks", ())
        self._bound = {b.var: b.value for block in blocks for b in block.bindings}

    def is_plain(self, value: Any) -> bool:
        """Whether it is a number, or an array in C order and without an offset."""
        value = self._made(value)
        if not isinstance(value, relax.Call):
            known = value in self._params or isinstance(value, tvm.ir.GenericConst)
            return known or isinstance(getattr(value, "ty", None), PrimType)
        name = getattr(value.op, "name", "")
        return name == _ALLOCATES or (name in _SHARES and self._shares_all(value))

    def _made(self, value: Any) -> Any:
        """The value bound to a variable, or to a part of a tuple."""
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
        """Whether an array begins where the array begins that it shares memory with."""
        offset = call.args[_SHARES[call.op.name] :]
        return self.is_plain(call.args[0]) and all(
            isinstance(part, relax.Tuple) and not part.fields for part in offset
        )


_ALLOCATES = "relax.builtin.alloc_tensor"
# Operator -> the place of its offset, which is an empty tuple if there is none.
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
    # A symbol gets its value where it is an extent by itself; then all extents must be equal.
    stands_for = {d: a for d, a in [*pairs, *extents] if _is_symbol(d) and d is not a}
    if not stands_for.keys().isdisjoint(_symbols([a for _, a in extents])):
        return False  # the caller means something else by it
    analyzer = Analyzer()
    for symbol, extent in stands_for.items():
        analyzer.bind(symbol, extent)
    return all(analyzer.can_prove_equal(*pair) for pair in extents)


def _symbols(extents: Sequence[Any]) -> set[tirx.Var]:
    found: list[tirx.Var] = []
    tvm_ffi.structural_walk(tvm_ffi.convert(list(extents)), (tirx.Var, found.append))
    return set(found)


def _is_of_kind(declared: Any, actual: Any) -> bool:
    """All but the extents: a number of its dtype, or a plain array of its dtype and rank."""
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
