# SPDX-License-Identifier: Apache-2.0
"""Object files of a program's kernels, each compiled by itself and kept on disk.

With a different optimizer or table size nearly all kernels of a program stay the same. LLVM takes
most of the compile time, so kernels that were compiled before are only linked. If kernels call each
other, the program is compiled as a whole, to the same code. A separate kernel costs about 30 ms
more on one core of an EPYC (Zen 3).

All cores compile; each kernel has its own TVM module and LLVM context, so its code does not depend
on the number of threads. Most of LLVM's work releases Python's lock. Each thread has the caller's
target and a pass context like the caller's, since TVM keeps both by thread. Passes with instruments
run on the caller's thread: an instrument expects one at a time.
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
    """A kernel calls a function of its module."""


def compile_objects(kernels: tvm.IRModule, target: tvm.target.Target, folder: Path) -> list[Any]:
    """Compile each kernel to a static library, or load it from `folder`.

    Raises
    ------
    CrossKernelCallError
        If a kernel calls a function of the module.
    OSError
        If an object file cannot be written.
    """
    keys = {
        var: library_cache.digest(
            "object", var.name_hint, library_cache.kernel_text(kernel), str(target)
        )
        for var, kernel in kernels.functions.items()
    }
    files = library_cache.list_files(folder, ".o", keys.values())
    libraries = {var: _load(files[key], key, var.name_hint) for var, key in keys.items()}
    missing = [var for var, library in libraries.items() if library is None]
    for var in missing:
        _require_alone(kernels[var])
    host = target.host or target

    def compile_(var: tvm.ir.GlobalVar) -> Any:
        code = codegen_build(_lower(var, kernels[var], target), host)
        file = library_cache.write_file(folder, keys[var], ".o", code.write_to_file)
        return _load_static(file, var.name_hint)

    libraries.update(zip(missing, _compile_each(compile_, missing, host), strict=True))
    return list(libraries.values())


def _compile_each(
    compile_: Callable[[Any], Any], kernels: list[Any], host: tvm.target.Target
) -> list[Any]:
    """Compile kernels on all cores.

    The first one alone, since it initialises LLVM. A target with options of LLVM's command line has
    one thread, since these are global.
    """
    first = [compile_(kernel) for kernel in kernels[:1]]
    most = 1 if "cl-opt" in host.attrs else MAX_THREADS
    return first + run_parallel([partial(compile_, kernel) for kernel in kernels[1:]], most)


def _load(files: Iterable[Path], key: str, name: str) -> Any:
    for file in library_cache.intact_files(files, key):
        with suppress(OSError, RuntimeError):
            return _load_static(file, name)
    return None


def _load_static(file: Path, name: str) -> Any:
    return tvm.runtime.load_static_library(str(file), [name])


def _lower(var: tvm.ir.GlobalVar, kernel: tirx.PrimFunc, target: tvm.target.Target) -> tvm.IRModule:
    """Lower a kernel for LLVM, without the parts of TVM's `build` that join all kernels."""
    lower, finish, _ = tirx.get_tir_pipeline(lowering.PIPELINE)
    bound = tirx.transform.BindTarget(target.with_host(target.host or target))
    lowered = finish()(lower(bound(tvm.IRModule({var: kernel}))))
    # TVM marks a single kernel; its code must be the same as among many.
    return tvm.IRModule({var: lowered[var].without_attr("tirx.is_entry_func")})


def _require_alone(kernel: tirx.PrimFunc) -> None:
    called: list[tvm.ir.GlobalVar] = []
    tvm_ffi.structural_walk(kernel.body, (tvm.ir.GlobalVar, called.append))
    if called:
        raise CrossKernelCallError(called[0].name_hint)


MAX_THREADS = 8  # LLVM holds some ten megabytes for each

Result = TypeVar("Result")


def run_parallel(tasks: Sequence[Callable[[], Result]], most: int = MAX_THREADS) -> list[Result]:
    """Return the tasks' results in order; no thread is left behind.

    Tasks run no kernel and do not wait for each other. There are at most `most` threads, and never
    more than kernels may have. The first error is raised, and tasks not begun are dropped.
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
    """Start a task and return the function that waits for its result; the task if no thread can."""
    try:
        return pool.submit(copy_context().run, task).result
    except RuntimeError:  # the main thread has ended and waits for this one, or there are too many
        return task


def _run(task: Callable[[], Result], context: PassContext, target: Target | None) -> Result:
    # A copy of the context, since passes write into theirs.
    own = PassContext(
        context.opt_level, context.required_pass, context.disabled_pass, None, context.config
    )
    with own, target or nullcontext():
        return task()
