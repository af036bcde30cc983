# SPDX-License-Identifier: Apache-2.0
"""Compiled programs, kept on disk between runs: a second run starts in milliseconds.

A program is found by a digest of everything that decides its code: the module with every operator
replaced by its kernels (so that a user's operator counts with all it is made of), the target, the
versions of TVM and Python, and the sources of this package. A file is named by that digest and by
its own, so a damaged one is never loaded.

A compiled library is code. So the folder belongs to the user (mode 0700), files of other owners or
writable by others are ignored, and nothing is ever loaded from a checkpoint or from data. Writing
is a temporary file and a rename: of two processes that race, either's file serves both. Whatever
goes wrong with the cache, the program is compiled instead.

``SPARSETRAIN_CACHE`` names another folder; empty, it turns the cache off.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from sparsetrain import runtime
from sparsetrain.quiet import without_lines

KEEP_FILES = 200  # programs; a few hundred kilobytes each, the least recently used go first


def folder() -> Path | None:
    """Where compiled programs are kept, or None if the cache is off or the place not private."""
    named = os.environ.get("SPARSETRAIN_CACHE")
    if named == "":
        return None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(named) if named else Path(base) / "sparsetrain"
    with suppress(OSError):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path if _private(path.lstat(), stat.S_ISDIR) else None
    return None


def load_or_build(
    module: tvm.IRModule, target: tvm.target.Target, build: Callable[[], relax.VMExecutable]
) -> relax.VirtualMachine:
    """The virtual machine of `module` on `target`, from the cache or from `build`."""
    place = folder()
    if place is None:
        return runtime.virtual_machine(build(), target)
    key = digest(module, target)
    library = _load(place, key) or _store(place, key, executable := build()) or executable
    return runtime.virtual_machine(library, target)


def digest(module: tvm.IRModule, target: tvm.target.Target) -> str:
    """Hexadecimal digest of everything that decides the compiled code of `module`."""
    with target:
        legal = relax.transform.LegalizeOps()(module)
    parts = [
        legal.script(),
        *_constants(legal),
        str(target),
        tvm.__version__,
        tvm_ffi.__version__,
        platform.python_version(),
        platform.machine(),
        _package_sources(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def machine_digest() -> str:
    """Digest of what figures measured here depend on: processor, versions, this package."""
    parts = [str(runtime.host_target()), tvm.__version__, platform.machine(), _package_sources()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@lru_cache(maxsize=1)
def _package_sources() -> str:
    root = Path(__file__).parent
    return _digest_files(sorted(root.rglob("*.py")))


def _constants(module: tvm.IRModule) -> Iterator[str]:
    """Digests of the tensors in a module, which its script does not show."""
    found: list[tvm.ir.GenericConst] = []
    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(
                function, lambda e: found.append(e) if isinstance(e, tvm.ir.GenericConst) else None
            )
    for constant in found:
        array = constant.value.numpy()
        content = hashlib.sha256(array.tobytes()).hexdigest()
        yield f"{array.dtype} {array.shape} {content}"


def _digest_files(files: list[Path]) -> str:
    total = hashlib.sha256()
    for file in files:
        total.update(file.read_bytes())
    return total.hexdigest()


def _load(place: Path, key: str) -> Any:
    for file in place.glob(f"{key}-*.so"):
        with suppress(OSError, RuntimeError):
            if not _private(file.lstat(), stat.S_ISREG):
                continue
            if file.stem != f"{key}-{_digest_files([file])[:16]}":
                file.unlink()
                continue
            with without_lines(_is_scope_warning):
                library = tvm.runtime.load_module(str(file))
            os.utime(file)
            return library
    return None


def _store(place: Path, key: str, executable: relax.VMExecutable) -> Any:
    """Write the library and load it back: that links it, and spares compiling it twice."""
    with suppress(OSError, RuntimeError), tempfile.TemporaryDirectory(dir=place) as draft:
        drafted = Path(draft) / "program.so"
        with without_lines(_is_scope_warning):
            executable.export_library(str(drafted))
        drafted.chmod(0o600)
        drafted.replace(place / f"{key}-{_digest_files([drafted])[:16]}.so")
        _prune(place)
        return _load(place, key)
    return None


def _prune(place: Path) -> None:
    files = sorted(place.glob("*-*.so"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[KEEP_FILES:]:
        file.unlink(missing_ok=True)


def _private(status: os.stat_result, kind: Callable[[int], bool]) -> bool:
    """Of the right kind (so no link), owned by this user, and writable by nobody else."""
    owned = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    return kind(status.st_mode) and owned and not status.st_mode & 0o022


def _is_scope_warning(line: bytes) -> bool:
    """TVM writes empty "Scope" warnings whenever it saves or loads."""
    return b"executable.cc" in line and b": Warning: Scope " in line
