# SPDX-License-Identifier: Apache-2.0
"""Lowering pipeline of kernels: TVM's, for CPUs without the passes that change nothing there.

Asserts about arguments are dropped if the compiler proved them, small arrays are on the stack, and
exp of float32 is inline arithmetic (`exponential`).

TVM 0.27 allocates a local array from a heap of workspaces, by a runtime call each time the array
comes into scope, unless it is "global" and shorter than 1024 bytes. A named scalar of TVMScript
(``row = ...``) is such an array too. In a loop over rows these calls serialize cache misses: a
gather took twelve times as long. So all arrays that registers could hold are placed on the stack.
Larger arrays stay on the heap: allocate them once per task, not once per row.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.target import Target

from sparsetrain.runtime.exponential import inline_exp

PIPELINE = "sparsetrain"  # its registered name
LEVEL = 2  # LLVM's optimization level; 3 compiles longer, unrolls more, and no step is faster
SKIP_ASSERTS = "sparsetrain.skip_asserts"  # attribute of a kernel to compile without asserts
MAX_STACK_BYTES = 4096  # per array; half the tile registers of a core with AMX
_ON_STACK = {"disable_lower_builtin": tirx.const(1, "int32")}


def for_llvm(target: Target) -> Target:
    """Return the target with this module's optimization level, unless it sets one."""
    return Target({"kind": target.kind.name, "opt-level": LEVEL, **dict(target.attrs)})


@tvm.tirx.transform.prim_func_pass(opt_level=0)
def _drop_asserts(function: tirx.PrimFunc, _module: Any, _context: Any) -> tirx.PrimFunc:
    """Remove asserts from a function with the attribute `SKIP_ASSERTS`."""
    if not (function.attrs and function.attrs.get(SKIP_ASSERTS)):
        return function
    return tirx.transform.SkipAssert()(tvm.IRModule({"main": function}))["main"]


def _mark(statement: Any) -> Any:
    """Return the statement with its small arrays marked."""
    if isinstance(statement, tirx.AllocBuffer):
        small = _is_small(statement.buffer)
        return tirx.AllocBuffer(statement.buffer, _ON_STACK) if small else statement
    rebuild = _REBUILD.get(type(statement))
    return statement if rebuild is None else rebuild(statement)


def _is_small(array: Any) -> bool:
    extents = list(array.shape)
    if not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return False
    bits = array.dtype.bits * array.dtype.lanes
    # LLVM cannot place an empty array on the stack.
    return 0 < prod(map(int, extents)) * bits <= 8 * MAX_STACK_BYTES


def _sequence(s: Any) -> Any:
    return tirx.SeqStmt([_mark(part) for part in s.seq], s.span)


def _loop(s: Any) -> Any:
    return tirx.For(
        s.loop_var, s.min, s.extent, s.kind, _mark(s.body), s.thread_binding, s.annotations,
        s.step, s.span,
    )  # fmt: skip


def _branch(s: Any) -> Any:
    otherwise = None if s.else_case is None else _mark(s.else_case)
    return tirx.IfThenElse(s.condition, _mark(s.then_case), otherwise, s.span)


# Statements with a body.
_REBUILD = {
    tirx.SeqStmt: _sequence,
    tirx.For: _loop,
    tirx.IfThenElse: _branch,
    tirx.While: lambda s: tirx.While(s.condition, _mark(s.body), s.span),
    tirx.AttrStmt: lambda s: tirx.AttrStmt(s.node, s.attr_key, s.value, _mark(s.body), s.span),
}


@tvm.tirx.transform.prim_func_pass(opt_level=0)
def _place_on_stack(function: tirx.PrimFunc, _module: Any, _context: Any) -> tirx.PrimFunc:
    """Place the small local arrays of a function on the stack."""
    return function.with_body(_mark(function.body))


def _has_blocks(function: tirx.PrimFunc) -> bool:
    """Whether a schedule made the function; a hand-written kernel only has loops."""
    found: list[Any] = []
    tvm_ffi.structural_walk(function.body, (s_tir.SBlock, found.append))
    return bool(found)


@tvm.tirx.transform.prim_func_pass(opt_level=0)
def _compact(function: tirx.PrimFunc, _module: Any, _context: Any) -> tirx.PrimFunc:
    """Shrink the arrays of a scheduled function; hand-written kernels allocate what they need."""
    if not _has_blocks(function):
        return function
    return s_tir.transform.CompactBufferAllocation()(tvm.IRModule({"main": function}))["main"]


def _lower_for_cpu() -> Any:
    """Return TVM's passes for `s_tir`, in their order, without those that a CPU does not need."""
    without_cse = tvm.transform.PassContext.current().config.get("tirx.disable_cse_tir")
    return tvm.transform.Sequential(
        [
            s_tir.transform.CanonicalizeLoop(),
            s_tir.transform.LowerInitBlock(),
            s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
            s_tir.transform.ConvertBlocksToOpaque(),
            _compact,
            s_tir.transform.LowerMatchBuffer(),
            s_tir.transform.StmtSimplify(),
            s_tir.transform.LowerOpaqueBlock(),
            tirx.transform.FlattenBuffer(),
            tirx.transform.BF16ComputeLegalize(),
            tirx.transform.NarrowDataType(32),
            s_tir.transform.LoopPartition(),
            tirx.transform.VectorizeLoop(),
            tirx.transform.StorageRewrite(),
            s_tir.transform.HoistIfThenElse(),
            tirx.transform.UnrollLoop(),
            s_tir.transform.RenormalizeSplitPattern(),
            tirx.transform.StmtSimplify(),
            tirx.transform.RemoveNoOp(),
            s_tir.transform.RewriteUnsafeSelect(),
            *([] if without_cse else [tirx.transform.CommonSubexprElim()]),
            tirx.transform.AnnotateEntryFunc(),
            tirx.transform.SplitHostDevice(),
            tirx.transform.MakePackedAPI(),
            tirx.transform.BF16StorageLegalize(),
        ]
    )


def _make() -> tuple[Any, Any, Any]:
    lower_for_any, finish_host, finish_device = tirx.get_tir_pipeline("s_tir")

    @tvm.transform.module_pass(opt_level=0, name="Lower")
    def lower(module: Any, _context: Any) -> Any:
        kinds = {kernel.attrs["target"].kind.name for kernel in module.functions.values()}
        return (_lower_for_cpu() if kinds == {"llvm"} else lower_for_any)(module)

    def finish() -> Any:
        @tvm.transform.module_pass(opt_level=0, name="FinishHost")
        def finish_with_inline_exp(module: Any, _context: Any) -> Any:
            with inline_exp():
                return finish_host()(module)

        return tvm.transform.Sequential([_drop_asserts, _place_on_stack, finish_with_inline_exp])

    return lower, finish, finish_device


tirx.register_tir_pipeline(PIPELINE, _make)
