# SPDX-License-Identifier: Apache-2.0
"""Schedule rules: the base class of CPU rules, and the pass that tries rules for each kernel.

A rule receives one kernel, a TIR function with loops and blocks, and returns a faster schedule, or
None to decline. A schedule primitive may also fail halfway. Each rule works on a copy, so a failed
rule has no effect, and the next rule is tried. If every rule declines, the kernel is compiled
unscheduled.

A rule's result depends only on the kernel and the target, so each distinct kernel is scheduled once
per process. The programs of a model share most of their kernels. Scheduling a product takes 50 to
100 ms on one core of an EPYC (Zen 3), and scheduling a lookup 1 ms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from threading import Lock

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.error import InternalError
from tvm.ir import PrimType
from tvm.s_tir.dlight import ApplyDefaultSchedule, ScheduleRule
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.s_tir.schedule.schedule import ScheduleError
from tvm.target import Target

from sparsetrain.runtime.library_cache import kernel_text


class CpuRule(ScheduleRule, ABC):
    """Base of the rules for `llvm` targets; subclasses implement `schedule`."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        """Return a schedule of `func`, or None if this rule does not fit it."""
        del tunable  # There is no search: one schedule per function.
        if target.kind.name != "llvm" or not has_blocks(func) or not has_wide_extents(func):
            return None
        sch, blocks = _normalized(func)
        if not blocks:
            return None
        try:
            return self.schedule(sch.copy(), list(blocks), target)
        except (ScheduleError, InternalError):
            # A primitive refused a step that it cannot prove safe, or failed one of TVM's checks.
            return None

    @abstractmethod
    def schedule(
        self, sch: s_tir.Schedule, blocks: list[SBlockInfo], target: Target
    ) -> s_tir.Schedule | None:
        """Transform and return `sch`, or return None to decline; `blocks` are in program order."""


@lru_cache(maxsize=1)
def _normalized(func: tirx.PrimFunc) -> tuple[s_tir.Schedule, list[SBlockInfo]]:
    """Return an unmodified schedule and its blocks, shared by all rules that try a kernel.

    Each rule copies the schedule; references to its blocks stay valid in a copy.
    """
    sch = s_tir.Schedule(_with_loops(func))
    return sch, normalize_prim_func(sch) or []


def _with_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return `func` with a loop of one iteration around each block that has no loop.

    If any block has no loop, `rfactor` of TVM 0.27 fails, and `normalize_prim_func` raises and
    catches an error. The first error that TVM raises takes 0.35 s, because its traceback reads the
    symbols of libraries.
    """
    root = func.body.block
    parts = [*root.body] if isinstance(root.body, tirx.SeqStmt) else [root.body]
    if not any(isinstance(part, s_tir.SBlockRealize) for part in parts):
        return func
    looped = [_with_loop(part) for part in parts]
    body = tirx.SeqStmt(looped) if len(looped) > 1 else looped[0]
    block = s_tir.SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint, body, root.init, root.alloc_buffers
    )
    return func.with_body(s_tir.SBlockRealize([], True, block))


def _with_loop(part: tirx.Stmt) -> tirx.Stmt:
    if not isinstance(part, s_tir.SBlockRealize):
        return part
    var = tirx.Var("u", "int64")
    realize = s_tir.SBlockRealize([var for _ in part.iter_values], part.predicate, part.block)
    return tirx.For(var, 0, 1, tirx.ForKind.SERIAL, realize)


def has_blocks(func: tirx.PrimFunc) -> bool:
    """Whether `func` consists of blocks, the form that schedules can transform."""
    return isinstance(func.body, s_tir.SBlockRealize)


def has_wide_extents(func: tirx.PrimFunc) -> bool:
    """Whether every extent is int64, as in all kernels that Relax generates.

    Kernels written with plain Python integers have int32 extents. Schedules would mix int32 and
    int64, and code generation refuses this.
    """
    extents = [extent for param in func.params for extent in getattr(param.ty, "shape", ())]
    return all(str(extent.ty.dtype) == "int64" for extent in extents)


def output_dtype(sch: s_tir.Schedule, block: SBlockRV) -> str:
    """Return the dtype of a block's result, such as `float32`."""
    return dtype_of(sch.get(block).writes[0].source)


def dtype_of(buffer: tirx.Var) -> str:
    """Return a buffer's dtype, such as `float32`."""
    dtype = buffer.dtype
    return str(dtype.dtype if isinstance(dtype, PrimType) else dtype)


def static_extent(sch: s_tir.Schedule, loop: LoopRV) -> int | None:
    """Return a loop's number of iterations, or None if it is symbolic."""
    extent = sch.get(loop).extent
    return int(extent) if isinstance(extent, tirx.IntImm) else None


def parallel_over(sch: s_tir.Schedule, loops: list[LoopRV]) -> LoopRV:
    """Fuse `loops` into one and spread it over the threads."""
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    sch.parallel(fused)
    return fused


def vectorize_if_whole(sch: s_tir.Schedule, loop: LoopRV, lanes: int) -> None:
    """Vectorize `loop` by `lanes` if its extent is a multiple of `lanes`.

    Otherwise every lane would need a guard. LLVM's own vectorizer masks such a loop better, so it
    stays unchanged here.
    """
    extent = static_extent(sch, loop)
    if extent is None or lanes < 2 or extent % lanes:
        return
    sch.vectorize(sch.split(loop, [None, lanes])[-1])


MOST_KERNELS = 500  # the cache keeps this many of the most recently used kernels


@tvm.transform.module_pass(opt_level=0, name="ApplyRules")
class ApplyRules:
    """Pass that schedules every kernel not yet scheduled, like `ApplyDefaultSchedule` of TVM.

    Parameters
    ----------
    rules : ScheduleRule
        The rules, tried in this order.
    """

    def __init__(self, *rules: ScheduleRule) -> None:
        self._known = _known(rules)

    def transform_module(
        self, module: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Return the module with its kernels scheduled."""
        target = Target.current(allow_none=False)
        result = module.clone()
        for var, function in module.functions_items():
            if isinstance(function, tirx.PrimFunc) and not _is_scheduled(function):
                result[var] = self._known.scheduled(_plainly_named(function), target)
        return result


def _is_scheduled(kernel: tirx.PrimFunc) -> bool:
    return bool(kernel.attrs and kernel.attrs.get("tirx.is_scheduled"))


def _plainly_named(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """Rename a kernel's parameters by their positions.

    Relax names parameters after layers and numbered values of a program, and a schedule names
    blocks after parameters. So kernels that compute the same would differ in names only, and miss
    the cache.
    """
    new = {old: tirx.Var(f"p{place}", old.ty) for place, old in enumerate(kernel.params)}
    return tvm_ffi.structural_map(kernel, (tirx.Var, lambda var: new.get(var, var)))


class _Known:
    """A cache of scheduled kernels, with the kernel's text and the target as key."""

    def __init__(self, rules: Sequence[ScheduleRule]) -> None:
        self._apply = ApplyDefaultSchedule(*rules)
        self._made: OrderedDict[tuple[str, str], tirx.PrimFunc] = OrderedDict()
        self._lock = Lock()

    def scheduled(self, kernel: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
        """Return `kernel` scheduled by the rules, or unchanged if none applies."""
        key = kernel_text(kernel), str(target)
        with self._lock:
            if key not in self._made:
                self._made[key] = self._apply(tvm.IRModule({"main": kernel}))["main"]
            self._made.move_to_end(key)
            while len(self._made) > MOST_KERNELS:
                self._made.popitem(last=False)
            return self._made[key]


@lru_cache(maxsize=8)
def _known(rules: Sequence[ScheduleRule]) -> _Known:
    return _Known(rules)
