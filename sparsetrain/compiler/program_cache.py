# SPDX-License-Identifier: Apache-2.0
"""Program cache on disk, so that a second run loads its programs in milliseconds.

The key is a digest of everything that the compiled code depends on: the module with every operator
replaced by its kernels (which covers user-defined operators), the target, the versions of TVM and
Python, and the sources of this package. `sparsetrain.runtime.library_cache` manages the files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from sparsetrain import runtime
from sparsetrain.backend import backend_of
from sparsetrain.compiler.compile_errors import naming_operators
from sparsetrain.ops.legalize import LEGALIZE
from sparsetrain.runtime import library_cache
from sparsetrain.runtime.compiling import create_vm
from sparsetrain.system.locks import with_builder_lock

_tell: ContextVar[Callable[[bool], None]] = ContextVar("_tell", default=lambda kept: None)


@contextmanager
def announcing(tell: Callable[[bool], None]) -> Iterator[None]:
    """Call `tell` before each compilation of a program, with whether the result will be cached."""
    token = _tell.set(tell)
    try:
        yield
    finally:
        _tell.reset(token)


def load_or_build(
    module: tvm.IRModule,
    target: tvm.target.Target,
    build: Callable[[Path | None], relax.VMExecutable],
) -> relax.VirtualMachine:
    """Return a virtual machine for `module` on `target`, from the cache or from `build`.

    `build` takes the folder of compiled kernels that programs share, or None.
    """
    backend = backend_of(target)
    place = library_cache.cache_folder() if backend.caches else None
    if place is None:
        _tell.get()(False)
        return create_vm(build(None), target)
    key = digest(module, target)
    library = library_cache.load(place, key)
    if library is None:
        kept = library_cache.can_link()
        _tell.get()(kept)
        if not kept:
            return create_vm(build(None), target)
        kernels = place if backend.hoists else None
        executable = build(kernels)
        library = library_cache.store(place, key, executable)
        if library is None:  # not stored; code with shared kernels cannot run before linking
            library = executable if kernels is None else build(None)
    return create_vm(library, target)


@with_builder_lock
def digest(module: tvm.IRModule, target: tvm.target.Target) -> str:
    """Return a hexadecimal digest of everything that the compiled code of `module` depends on."""
    with naming_operators(module, target), target:
        legal = relax.transform.LegalizeOps(LEGALIZE)(module)
    return library_cache.digest(
        legal.script(), *library_cache.imported_llvm(legal), *_constants(legal), str(target)
    )


def _constants(module: tvm.IRModule) -> Iterator[str]:
    """Return digests of a module's constant tensors, which its script does not show."""
    found: list[tvm.ir.GenericConst] = []
    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(
                function, lambda e: found.append(e) if _is_tensor(e) else None
            )
    for constant in found:
        array = constant.value.numpy()
        content = hashlib.sha256(array.tobytes()).hexdigest()
        yield f"{array.dtype} {array.shape} {content}"


def _is_tensor(expression: Any) -> bool:
    constant = isinstance(expression, tvm.ir.GenericConst)
    return constant and isinstance(expression.value, runtime.NDArray)  # not a dtype
