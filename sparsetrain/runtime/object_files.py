# SPDX-License-Identifier: Apache-2.0
"""Object files of a program's kernels, compiled a few at a time and kept on disk.

If only the optimizer or table sizes change, nearly all kernels of a program stay the same. LLVM
takes most of the compile time, so kernels that were compiled before are only linked. If kernels
call each other, the program is compiled as a whole, to the same code.

An LLVM module costs about 25 ms on one core of an EPYC (Zen 4), whatever is in it: TVM puts
conversions of half floats and debug information into each. So a few kernels share a module, and
its object file has a name for each of them. A program links the files that have its kernels, and
with them a few kernels that it does not call.

All cores compile; each module has its own LLVM context, so its code does not depend on the number
of threads. Most of LLVM's work releases the GIL. Each thread has the caller's target and a pass
context like the caller's, since TVM keeps both per thread. Passes with instruments run on the
caller's thread: an instrument expects one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.transform import PassContext
from tvm.target import Target
from tvm.tirx.build import codegen_build

from sparsetrain.runtime import library_cache, lowering, threads


class CrossKernelCallError(Exception):
    """A kernel calls another function of its module."""


TOGETHER = 4  # kernels per module; 16 would save LLVM a few percent, but use fewer cores


def compile_objects(
    kernels: tvm.IRModule, target: tvm.target.Target, folder: Path, together: int = TOGETHER
) -> list[Any]:
    """Return static libraries with all kernels, compiled or loaded from `folder`.

    With ``together=1`` a file depends on its kernel alone, not on earlier compilations.

    Raises
    ------
    CrossKernelCallError
        If a kernel calls a function of the module.
    OSError
        If an object file cannot be written.
    """
    keys = {
        var: library_cache.digest(
            f"object of {together}",
            var.name_hint,
            library_cache.kernel_text(kernel),
            str(target),
        )
        for var, kernel in kernels.functions.items()
    }
    files = library_cache.list_files(folder, ".o", keys.values())
    found = {var: _load(files[key], key, var.name_hint) for var, key in keys.items()}
    # Sorted by name, since a module orders its functions by address.
    missing = sorted(
        (var for var, library in found.items() if library is None), key=lambda var: var.name_hint
    )
    for var in missing:
        _require_alone(kernels[var])
    host = lowering.for_llvm(target.host or target)

    def compile_(group: list[tvm.ir.GlobalVar]) -> tuple[str, Any]:
        code = codegen_build(_lower({var: kernels[var] for var in group}, target), host)
        first, *others = (keys[var] for var in group)
        file = library_cache.write_file(folder, first, ".o", code.write_to_file)
        library_cache.link_under(others, file)
        return file.name, _load_static(file, *(var.name_hint for var in group))

    # Two kernels that import LLVM IR may define the same names, so each has its own file.
    own = [var for var in missing if library_cache.imported_llvm(kernels[var])]
    groups = [[var] for var in own]
    groups += _groups([var for var in missing if var not in own], together)
    libraries = [library for library in found.values() if library is not None]
    libraries += _compile_each(compile_, groups, host)
    return list({name.rpartition("-")[2]: library for name, library in libraries}.values())


def _groups(kernels: list[Any], size: int) -> list[list[Any]]:
    """Divide kernels into groups of nearly equal length, at most `size`."""
    count = -(-len(kernels) // size)
    return [kernels[first::count] for first in range(count)]


def _compile_each(
    compile_: Callable[[Any], Any], groups: list[Any], host: tvm.target.Target
) -> list[Any]:
    """Compile groups of kernels on all cores.

    The first group is compiled alone, since it initializes LLVM. A target with options for LLVM's
    command line uses one thread, since these are global.
    """
    first = [compile_(group) for group in groups[:1]]
    most = 1 if "cl-opt" in host.attrs else MAX_THREADS
    return first + run_parallel([partial(compile_, group) for group in groups[1:]], most)


def _load(files: Iterable[Path], key: str, name: str) -> tuple[str, Any] | None:
    """Return the name of a kernel's file, which ends with a digest, and its library."""
    for file in library_cache.intact_files(files, key):
        with suppress(OSError, RuntimeError):
            return file.name, _load_static(file, name)
    return None


def _load_static(file: Path, *names: str) -> Any:
    return tvm.runtime.load_static_library(str(file), [*names])


def _lower(kernels: dict[Any, tirx.PrimFunc], target: tvm.target.Target) -> tvm.IRModule:
    """Lower kernels for LLVM, without the parts of TVM's `build` that join all kernels."""
    lower, finish, _ = tirx.get_tir_pipeline(lowering.PIPELINE)
    bound = tirx.transform.BindTarget(target.with_host(target.host or target))
    lowered = finish()(lower(bound(tvm.IRModule(kernels))))
    # TVM marks a kernel that is alone in its module as the entry function. Without the mark, its
    # code is the same alone or beside others.
    return tvm.IRModule({v: lowered[v].without_attr("tirx.is_entry_func") for v in kernels})


def _require_alone(kernel: tirx.PrimFunc) -> None:
    called: list[tvm.ir.GlobalVar] = []
    tvm_ffi.structural_walk(kernel.body, (tvm.ir.GlobalVar, called.append))
    if called:
        raise CrossKernelCallError(called[0].name_hint)


MAX_THREADS = 8  # LLVM holds about ten megabytes per thread

Result = TypeVar("Result")


def run_parallel(tasks: Sequence[Callable[[], Result]], most: int = MAX_THREADS) -> list[Result]:
    """Run tasks on threads that end with the call; return their results in order.

    Tasks must not run kernels or wait for each other. There are at most `most` threads, and never
    more than kernels may use. The first error is raised, and tasks not yet begun are dropped.
    """
    count, context = min(threads.max_worker_threads(), most, len(tasks)), PassContext.current()
    if count < 2 or context.instruments:
        return [task() for task in tasks]
    target = Target.current(allow_none=True)
    with ThreadPoolExecutor(count, thread_name_prefix="sparsetrain-compile") as pool:
        try:
            results = [_submit(pool, partial(_run, task, context, target)) for task in tasks]
            return [result() for result in results]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _submit(pool: ThreadPoolExecutor, task: Callable[[], Result]) -> Callable[[], Result]:
    """Start a task; return a function that waits for its result, or the task if it cannot start."""
    try:
        return pool.submit(copy_context().run, task).result
    except RuntimeError:  # the interpreter shuts down, or there are too many threads
        return task


def _run(task: Callable[[], Result], context: PassContext, target: Target | None) -> Result:
    # A copy of the context, since passes write to it.
    own = PassContext(
        context.opt_level, context.required_pass, context.disabled_pass, None, context.config
    )
    with own, target or nullcontext():
        return task()
