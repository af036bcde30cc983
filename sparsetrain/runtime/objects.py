# SPDX-License-Identifier: Apache-2.0
"""Kernels of a program, each compiled by itself and kept: programs share most of them.

With another optimizer, or tables of other sizes, nearly all its kernels are the same to the
letter. LLVM takes most of a compile, so those that were compiled before are linked again.
Kernels do not call each other: code and results are those of a program that is compiled as a whole.
A kernel of its own costs about 30 ms more on one core of an EPYC (Zen 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.build import codegen_build

from sparsetrain import libraries
from sparsetrain.runtime import on_stack


def objects_of(kernels: tvm.IRModule, target: tvm.target.Target, place: Path) -> list[Any]:
    """A library to link for each kernel, from `place` if it is kept there.

    Parameters
    ----------
    kernels : tvm.IRModule
        Scheduled functions for a CPU, which call no function of the module.
    target : tvm.target.Target
        The CPU.
    place : Path
        From `sparsetrain.libraries.folder`.

    Raises
    ------
    OSError
        If what was compiled cannot be written.
    """
    keys = {
        var: libraries.digest("object", var.name_hint, kernel.script(), str(target))
        for var, kernel in kernels.functions.items()
    }
    found = {var: _kept(place, key, var.name_hint) for var, key in keys.items()}
    missing = tvm.IRModule({var: kernels[var] for var, kept in found.items() if kept is None})
    for var, compiled in _compiled(missing, target):
        file = libraries.keep(place, keys[var], ".o", compiled.write_to_file)
        found[var] = _linkable(file, var.name_hint)
    return list(found.values())


def _kept(place: Path, key: str, name: str) -> Any:
    for file in libraries.kept(place, key, ".o"):
        with suppress(OSError, RuntimeError):
            return _linkable(file, name)
    return None


def _linkable(file: Path, name: str) -> Any:
    return tvm.runtime.load_static_library(str(file), [name])


def _compiled(
    kernels: tvm.IRModule, target: tvm.target.Target
) -> Iterator[tuple[tvm.ir.GlobalVar, Any]]:
    """Each kernel and its code. TVM's own `build` would make one piece of all."""
    lower, finish, _ = tirx.get_tir_pipeline(on_stack.PIPELINE)
    bound = tirx.transform.BindTarget(target.with_host(target))(kernels)
    for var, kernel in finish()(lower(bound)).functions.items():
        yield var, codegen_build(tvm.IRModule({var: kernel}), target)
