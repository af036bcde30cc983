# SPDX-License-Identifier: Apache-2.0
"""Kernels of a program, each compiled by itself and kept: programs share most of them.

With another optimizer, or tables of other sizes, nearly all its kernels are the same to the
letter. LLVM takes most of a compile, so those that were compiled before are linked again.
Where kernels call each other, the program is compiled as a whole; code and results are the same.
A kernel of its own costs about 30 ms more on one core of an EPYC (Zen 3). All cores compile: each
kernel has a module of TVM and a context of LLVM for itself, so its code is the same on any number
of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx.build import codegen_build

from sparsetrain.runtime import library_cache, lowering
from sparsetrain.runtime.together import MOST_THREADS, together


class CrossKernelCallError(Exception):
    """A kernel calls another function."""


def compile_objects(kernels: tvm.IRModule, target: tvm.target.Target, place: Path) -> list[Any]:
    """A library to link for each kernel, from `place` if it is kept there.

    Parameters
    ----------
    kernels : tvm.IRModule
        Scheduled functions for a CPU, which call no function of the module.
    target : tvm.target.Target
        The CPU.
    place : Path
        From `sparsetrain.runtime.library_cache.folder`.

    Raises
    ------
    NotAloneError
        If a kernel calls another.
    OSError
        If what was compiled cannot be written.
    """
    keys = {
        var: library_cache.digest(
            "object", var.name_hint, library_cache.kernel_text(kernel), str(target)
        )
        for var, kernel in kernels.functions.items()
    }
    files = library_cache.list_files(place, ".o", keys.values())
    found = {var: _kept(files[key], key, var.name_hint) for var, key in keys.items()}
    missing = [var for var, kept in found.items() if kept is None]
    for var in missing:
        _require_alone(kernels[var])
    host = target.host or target

    def made(var: tvm.ir.GlobalVar) -> Any:
        code = codegen_build(_lowered(var, kernels[var], target), host)
        file = library_cache.write_file(place, keys[var], ".o", code.write_to_file)
        return _linkable(file, var.name_hint)

    found.update(zip(missing, _each(made, missing, host), strict=True))
    return list(found.values())


def _each(made: Callable[[Any], Any], kernels: list[Any], host: tvm.target.Target) -> list[Any]:
    """What `made` gives of each, on all cores.

    The first comes before the others, which find LLVM set up. Options of LLVM's command line
    belong to the process, so a target that brings some has one thread.
    """
    first = [made(kernel) for kernel in kernels[:1]]
    most = 1 if "cl-opt" in host.attrs else MOST_THREADS
    return first + together([partial(made, kernel) for kernel in kernels[1:]], most)


def _kept(files: Iterable[Path], key: str, name: str) -> Any:
    for file in library_cache.intact_files(files, key):
        with suppress(OSError, RuntimeError):
            return _linkable(file, name)
    return None


def _linkable(file: Path, name: str) -> Any:
    return tvm.runtime.load_static_library(str(file), [name])


def _lowered(
    var: tvm.ir.GlobalVar, kernel: tirx.PrimFunc, target: tvm.target.Target
) -> tvm.IRModule:
    """What of a kernel LLVM compiles. TVM's own `build` would make one piece of all."""
    lower, finish, _ = tirx.get_tir_pipeline(lowering.PIPELINE)
    bound = tirx.transform.BindTarget(target.with_host(target.host or target))
    lowered = finish()(lower(bound(tvm.IRModule({var: kernel}))))
    # Of a kernel by itself TVM says so; its code is to be that of one of many.
    return tvm.IRModule({var: lowered[var].without_attr("tirx.is_entry_func")})


def _require_alone(kernel: tirx.PrimFunc) -> None:
    called: list[tvm.ir.GlobalVar] = []
    tvm_ffi.structural_walk(kernel.body, (tvm.ir.GlobalVar, called.append))
    if called:
        raise CrossKernelCallError(called[0].name_hint)
