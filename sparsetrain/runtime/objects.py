# SPDX-License-Identifier: Apache-2.0
"""Kernels of a program, each compiled by itself and kept: programs share most of them.

With another optimizer, or tables of other sizes, nearly all its kernels are the same to the
letter. LLVM takes most of a compile, so those that were compiled before are linked again.
Where kernels call each other, the program is compiled as a whole; code and results are the same.
A kernel of its own costs about 30 ms more on one core of an EPYC (Zen 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx.build import codegen_build

from sparsetrain import libraries
from sparsetrain.runtime import lowering


class NotAloneError(Exception):
    """A kernel calls another function."""


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
    NotAloneError
        If a kernel calls another.
    OSError
        If what was compiled cannot be written.
    """
    keys = {
        var: libraries.digest("object", var.name_hint, libraries.text_of(kernel), str(target))
        for var, kernel in kernels.functions.items()
    }
    files = libraries.listed(place, ".o")
    found = {var: _kept(files.get(key, ()), key, var.name_hint) for var, key in keys.items()}
    missing = tvm.IRModule({var: kernels[var] for var, kept in found.items() if kept is None})
    for var, compiled in _compiled(missing, target):
        file = libraries.keep(place, keys[var], ".o", compiled.write_to_file)
        found[var] = _linkable(file, var.name_hint)
    return list(found.values())


def _kept(files: Iterable[Path], key: str, name: str) -> Any:
    for file in libraries.whole(files, key):
        with suppress(OSError, RuntimeError):
            return _linkable(file, name)
    return None


def _linkable(file: Path, name: str) -> Any:
    return tvm.runtime.load_static_library(str(file), [name])


def _compiled(
    kernels: tvm.IRModule, target: tvm.target.Target
) -> Iterator[tuple[tvm.ir.GlobalVar, Any]]:
    """Each kernel and its code. TVM's own `build` would make one piece of all."""
    for kernel in kernels.functions.values():
        _require_alone(kernel)
    host = target.host or target
    lower, finish, _ = tirx.get_tir_pipeline(lowering.PIPELINE)
    bound = tirx.transform.BindTarget(target.with_host(host))(kernels)
    for var, kernel in finish()(lower(bound)).functions.items():
        alone = kernel.without_attr("tirx.is_entry_func")  # set where it was the only one missing
        yield var, codegen_build(tvm.IRModule({var: alone}), host)


def _require_alone(kernel: tirx.PrimFunc) -> None:
    called: list[tvm.ir.GlobalVar] = []
    tvm_ffi.structural_walk(kernel.body, (tvm.ir.GlobalVar, called.append))
    if called:
        raise NotAloneError(called[0].name_hint)
