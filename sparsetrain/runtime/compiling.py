# SPDX-License-Identifier: Apache-2.0
"""From kernels and Relax modules to what runs; every compile of this package goes through here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.s_tir import dlight

from sparsetrain.runtime import gpu, library_cache, lowering, threads
from sparsetrain.runtime.host import host_target
from sparsetrain.runtime.object_files import CrossKernelCallError, compile_objects
from sparsetrain.runtime.targets import device_of
from sparsetrain.system.locks import with_builder_lock


class Kernel:
    """A compiled kernel that is called by itself, not by a program; writes its output arguments."""

    __slots__ = ("_run", "name")

    def __init__(self, run: Callable[..., Any], name: str) -> None:
        self._run, self.name = run, name

    def __call__(self, *args: Any) -> Any:
        """Run on tensors and numbers."""
        return self._run(*args) if _watch is None else _watch(self.name, self._run, args)


# (name, what runs, arguments) -> what running it returns.
Interceptor = Callable[[str, Callable[..., Any], tuple[Any, ...]], Any]
_watch: Interceptor | None = None


@contextmanager
def intercept_kernels(watch: Interceptor) -> Iterator[None]:
    """Let `watch` make the calls of all kernels meanwhile, to time them."""
    global _watch
    before, _watch = _watch, watch
    try:
        yield
    finally:
        _watch = before


def compile_kernel(
    kernel: tvm.tirx.PrimFunc, target: tvm.target.Target, name: str = "kernel"
) -> Kernel:
    """Compile one scheduled PrimFunc into a callable; `name` tells profilers what it does."""
    threads.mark_pool_started()
    symbol = name.replace(" ", "_")
    module = tvm.IRModule({symbol: kernel.with_attr("global_symbol", symbol)})
    return Kernel(_kept(module, target)[symbol], name)


def host_kernel(name: str, make: Callable[..., tvm.tirx.PrimFunc]) -> Callable[..., Kernel]:
    """Compile what `make` gives of its arguments for this machine's CPU, once for each of them."""

    @cache
    def compiled(*variant: Any) -> Kernel:
        return compile_kernel(make(*variant), host_target(), name)

    return compiled


def target_kernel(name: str, **makers: Callable[..., tvm.tirx.PrimFunc]) -> Callable[..., Kernel]:
    """As `host_kernel`, for the target that comes first; `makers` are by kind of target."""

    @cache
    def compiled(target: tvm.target.Target, *variant: Any) -> Kernel:
        return compile_kernel(makers[target.kind.name](*variant), target, name)

    return compiled


def _kept(module: tvm.IRModule, target: tvm.target.Target) -> Any:
    """A kernel's library, from disk if it was compiled before: a run needs some seven of them."""
    on_gpu = gpu.is_cuda(target)
    compile_ = gpu.compile_kernels if on_gpu else _for_cpu
    place = library_cache.cache_folder() if gpu.CACHE_KERNELS or not on_gpu else None
    if place is None:
        return compile_(module, target)
    key = library_cache.KERNEL_PREFIX + library_cache.digest(
        library_cache.kernel_text(module), str(target)
    )
    found = library_cache.load(place, key)
    if found is not None:
        return found
    made = compile_(module, target)
    return (library_cache.can_link() and library_cache.store(place, key, made)) or made


def _for_cpu(module: tvm.IRModule, target: tvm.target.Target) -> Any:
    """Shared subexpressions are left to LLVM.

    TVM binds a float's negation to a name, of which its own analysis then makes an integer, and
    fails.
    """
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
        return tvm.compile(module, target, tir_pipeline=lowering.PIPELINE)


@cache
def vm_pipeline(kind: str) -> tvm.transform.Pass:
    """Lower Relax to virtual-machine code for a kind of target; kernels run as they are.

    TVM's default pipeline without `RewriteDataflowReshape`, which aborts on hand-written
    kernels that have no root block. On a device every kernel gets threads.
    """
    passes = relax.transform
    return tvm.transform.Sequential(
        [
            passes.LegalizeOps(),
            *([dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())] if kind == gpu.KIND else []),
            passes.ToNonDataflow(),
            passes.RemovePurityChecking(),
            passes.CallTIRRewrite(),
            passes.StaticPlanBlockMemory(),
            passes.LowerAllocTensor(),
            passes.KillAfterLastUse(),
            passes.LowerRuntimeBuiltin(),
            passes.ComputePrimValue(),
            passes.VMShapeLower(),
            passes.AttachGlobalSymbol(),
        ]
    )


def compile_relax(
    module: tvm.IRModule,
    target: tvm.target.Target,
    pipeline: tvm.transform.Pass | None = None,
    place: Path | None = None,
) -> relax.VMExecutable:
    """Compile a Relax module by a pass pipeline, `vm_pipeline` by default.

    Kernels for a CPU come from `place` if they are kept there. What is returned then runs once it
    has been linked: by `sparsetrain.runtime.library_cache.store`.
    """
    with target:
        module = _rewritten(module, pipeline or vm_pipeline(target.kind.name))
        if place is not None:
            with suppress(OSError, CrossKernelCallError):
                return _linked(module, target, place)
        return relax.build(module, target, relax_pipeline=None, tir_pipeline=lowering.PIPELINE)


@with_builder_lock
def _rewritten(module: tvm.IRModule, passes: tvm.transform.Pass) -> tvm.IRModule:
    return passes(module)


def _linked(module: tvm.IRModule, target: tvm.target.Target, place: Path) -> relax.VMExecutable:
    """As `relax.build`, of kernels that are compiled one by one."""
    builder = relax.ExecBuilder()
    kernels = relax.vm_build._vmcodegen(builder, module)
    made = compile_objects(kernels, target, place)
    return relax.vm_build._vmlink(builder, target, ext_libs=made)


def create_vm(library: Any, target: tvm.target.Target) -> relax.VirtualMachine:
    """What runs the functions of a compiled Relax module, by name.

    Its memory comes from TVM's pool, which keeps a block for every size it has seen: a step of
    a known size allocates nothing. Whoever calls it with ever new sizes calls `bound_pool`.
    """
    threads.mark_pool_started()
    return relax.VirtualMachine(library, device_of(target), memory_cfg="pooled")


def build_relax(
    module: tvm.IRModule, target: tvm.target.Target, pipeline: tvm.transform.Pass | None = None
) -> relax.VirtualMachine:
    """`compile_relax` and `virtual_machine` in one."""
    return create_vm(compile_relax(module, target, pipeline), target)
