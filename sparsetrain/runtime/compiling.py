# SPDX-License-Identifier: Apache-2.0
"""Compilation of kernels and Relax modules; every compile of this package goes through here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from sparsetrain.backend import backend_of
from sparsetrain.runtime import library_cache, lowering, threads
from sparsetrain.runtime.host import host_target
from sparsetrain.runtime.kernel_names import name_by_content
from sparsetrain.runtime.object_files import TOGETHER, CrossKernelCallError, compile_objects
from sparsetrain.runtime.targets import device_of
from sparsetrain.runtime.tensors import Kernel
from sparsetrain.system.heap import reused_heap
from sparsetrain.system.locks import with_builder_lock


def compile_kernel(
    kernel: tvm.tirx.PrimFunc, target: tvm.target.Target, name: str = "kernel"
) -> Kernel:
    """Compile one scheduled PrimFunc into a callable; profilers show `name`."""
    threads.mark_pool_started()
    symbol = name.replace(" ", "_")
    module = tvm.IRModule({symbol: kernel.with_attr("global_symbol", symbol)})
    return Kernel(_load_or_compile(module, target)[symbol], name)


def host_kernel(name: str, make: Callable[..., tvm.tirx.PrimFunc]) -> Callable[..., Kernel]:
    """Return a function that compiles ``make(*variant)`` for this CPU, once per variant."""

    @cache
    def compiled(*variant: Any) -> Kernel:
        return compile_kernel(make(*variant), host_target(), name)

    return compiled


def target_kernel(name: str, make: Callable[..., tvm.tirx.PrimFunc]) -> Callable[..., Kernel]:
    """Like `host_kernel`, for the target passed as first argument."""

    @cache
    def compiled(target: tvm.target.Target, *variant: Any) -> Kernel:
        return compile_kernel(make(*variant), target, name)

    return compiled


def backend_kernel(name: str, host: Callable[..., tvm.tirx.PrimFunc]) -> Callable[..., Kernel]:
    """Like `target_kernel`, with the backend's kernel for that name; see `Backend.kernel`."""

    @cache
    def compiled(target: tvm.target.Target, *variant: Any) -> Kernel:
        make = backend_of(target).kernel(name, host)
        return compile_kernel(make(*variant), target, name)

    return compiled


def _load_or_compile(module: tvm.IRModule, target: tvm.target.Target) -> Any:
    """Return a kernel's library, from disk if compiled before; a run calls about seven kernels."""
    backend = backend_of(target)
    folder = library_cache.cache_folder() if backend.caches else None
    if folder is None:
        return backend.compile(module, target)
    key = library_cache.KERNEL_PREFIX + library_cache.digest(
        library_cache.kernel_text(module), str(target)
    )
    library = library_cache.load(folder, key)
    if library is not None:
        return library
    compiled = backend.compile(module, target)
    return (library_cache.can_link() and library_cache.store(folder, key, compiled)) or compiled


def vm_pipeline(plain: Sequence[tvm.transform.Pass]) -> tvm.transform.Pass:
    """Return the pipeline from Relax to virtual-machine code, with a backend's passes `plain`.

    It is TVM's default without `RewriteDataflowReshape`, which aborts on hand-written kernels that
    have no root block.
    """
    passes = relax.transform
    return tvm.transform.Sequential(
        [
            passes.LegalizeOps(),
            *plain,
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
    folder: Path | None = None,
    together: int = TOGETHER,
) -> relax.VMExecutable:
    """Compile a Relax module by a pass pipeline, `vm_pipeline` by default.

    With a cache `folder`, CPU kernels are kept there, `together` of them in a file; the result must
    then be linked by `library_cache.store` before it runs.
    """
    with target, reused_heap():
        module = _run_passes(module, pipeline or vm_pipeline(backend_of(target).plain_passes()))
        if folder is not None:
            with suppress(OSError, CrossKernelCallError):
                return _build_by_kernel(module, target, folder, together)
        return relax.build(module, target, relax_pipeline=None, tir_pipeline=lowering.PIPELINE)


@with_builder_lock
def _run_passes(module: tvm.IRModule, passes: tvm.transform.Pass) -> tvm.IRModule:
    return passes(module)


def _build_by_kernel(
    module: tvm.IRModule, target: tvm.target.Target, folder: Path, together: int
) -> relax.VMExecutable:
    """Build like `relax.build`, with kernels from object files."""
    builder = relax.ExecBuilder()
    kernels = relax.vm_build._vmcodegen(builder, name_by_content(module))
    objects = compile_objects(kernels, target, folder, together)
    return relax.vm_build._vmlink(builder, target, ext_libs=objects)


def create_vm(library: Any, target: tvm.target.Target) -> relax.VirtualMachine:
    """Create the virtual machine that runs the functions of a compiled Relax module, by name.

    Its memory comes from TVM's pool, which keeps a block for every size it has seen: a step of a
    known size allocates nothing. Callers that keep using new sizes must call `limit_pool`.
    """
    threads.mark_pool_started()
    return relax.VirtualMachine(library, device_of(target), memory_cfg="pooled")


def build_relax(
    module: tvm.IRModule, target: tvm.target.Target, pipeline: tvm.transform.Pass | None = None
) -> relax.VirtualMachine:
    """Call `compile_relax` and `create_vm`."""
    return create_vm(compile_relax(module, target, pipeline), target)
