# SPDX-License-Identifier: Apache-2.0
"""Compiled libraries, kept on disk between runs, each under a digest of what decides its code.

A file is named by that digest and by its own, so a damaged one is never loaded. A compiled library
is code. So the folder belongs to the user (mode 0700), files of other owners or writable by others
are ignored, and nothing is ever loaded from a checkpoint or from data. Writing is a temporary file
and a rename: of two processes that race, either's file serves both. Whatever goes wrong here, the
caller compiles instead.

``SPARSETRAIN_CACHE`` names another folder; empty, it turns all of this off.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.support import cc
from tvm.target.codegen import llvm_version_major

from sparsetrain.system.stderr_filter import filter_stderr

KERNEL_PREFIX = "kernel-"  # begins the key of a kernel that is called by itself, not by a program
# The least recently used of each go first.
MAX_PROGRAMS = 200  # programs; a few hundred kilobytes each
MAX_KERNELS = 1000  # kernels that are called by themselves; 30 kilobytes on average
MAX_OBJECTS = 2000  # kernels to be linked into programs; 35 kilobytes on average
_METADATA = 'metadata["'
# Mathematics, C, and what makes floats of halves where no instruction does. A C++ compiler would
# read the library of C++ too, most of what linking takes.
_C_LIBRARIES = ("-lm", "-lc", "-lgcc")
_C_ALONE = ("-nodefaultlibs",)


def cache_folder() -> Path | None:
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


def digest(*parts: str) -> str:
    """Hexadecimal digest of these texts, of versions, machine and the sources of this package.

    A TVM of one version may come with another LLVM. What the user tells TVM about compiling for
    CUDA counts too.
    """
    settings = (f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("TVM_CUDA_"))
    everything = [
        *parts,
        *settings,
        tvm.__version__,
        tvm_ffi.__version__,
        f"LLVM {llvm_version_major(allow_none=True)}",
        platform.python_version(),
        platform.machine(),
        package_sources(),
    ]
    return hashlib.sha256("\0".join(everything).encode()).hexdigest()[:32]


def kernel_text(kernel: tirx.PrimFunc | tvm.IRModule) -> str:
    """All that decides the code of a kernel: its script, and the text of LLVM that it imports.

    The script shows such text as metadata, which is not printed; and to print that ends the process
    for some modules.
    """
    script = str(kernel.script())
    return "\0".join([script, *imported_llvm(kernel)]) if _METADATA in script else script


def imported_llvm(code: Any) -> list[str]:
    """The text of LLVM that a kernel, or those of a module, bring along."""
    found: list[str] = []

    def look(statement: tirx.AttrStmt) -> None:
        if isinstance(statement.value, tvm.ir.StringImm):
            found.append(str(statement.value.value))

    tvm_ffi.structural_walk(code, (tirx.AttrStmt, look))
    return found


@lru_cache(maxsize=1)
def package_sources() -> str:
    """Digest of every source of this package."""
    root = Path(__file__).parents[1]
    return _digest_files(sorted(root.rglob("*.py")))


def _digest_files(files: list[Path]) -> str:
    total = hashlib.sha256()
    for file in files:
        total.update(file.read_bytes())
    return total.hexdigest()


def load(place: Path, key: str) -> Any:
    """The library kept under `key`, or None."""
    for file in intact_files(list_files(place, ".so", [key])[key], key):
        with suppress(OSError, RuntimeError), filter_stderr(_is_scope_warning):
            return tvm.runtime.load_module(str(file))
    return None


def list_files(place: Path, suffix: str, keys: Collection[str]) -> dict[str, list[Path]]:
    """The files of a kind under each of these keys, for `whole`.

    By one look at a folder that may hold thousands, of which few become paths.
    """
    files: dict[str, list[Path]] = {key: [] for key in keys}
    with suppress(OSError):
        for name in os.listdir(place):
            key = name.rpartition("-")[0]
            if key in files and name.endswith(suffix):
                files[key].append(place / name)
    return files


def intact_files(files: Iterable[Path], key: str) -> Iterator[Path]:
    """Those of the files under `key` that are whole and this user's; those that are damaged go."""
    for file in files:
        with suppress(OSError):
            if not _private(file.lstat(), stat.S_ISREG):
                continue
            if file.stem != f"{key}-{_digest_files([file])[:16]}":
                file.unlink()
                continue
            os.utime(file)
            yield file


def store(place: Path, key: str, executable: Any) -> Any:
    """Write the library and load it back: that links it, and spares compiling it twice."""
    with suppress(OSError, RuntimeError):
        try:
            with filter_stderr(_is_scope_warning):
                write_file(place, key, ".so", partial(executable.export_library, fcompile=_link))
        finally:
            with suppress(OSError):  # another process may drop the same files
                _prune(place)
        return load(place, key)
    return None


def _link(file: str, objects: list[str], options: Sequence[str] = ()) -> None:
    """Make a library that names what C may call; a compiler that cannot does as it would."""
    if sys.platform.startswith("linux"):
        with suppress(RuntimeError):
            # Behind the objects: of a library before what calls it some linkers take nothing.
            cc.create_shared(file, [*objects, *_C_LIBRARIES], options=[*options, *_C_ALONE])
            return
    cc.create_shared(file, objects, options=list(options))


# TVM asks for it by this name, for every program: it runs the compiler.
_link.get_target_triple = cache(cc.create_shared.get_target_triple)  # type: ignore[attr-defined]


def can_link() -> bool:
    """Whether there is a compiler to link with; without one every process compiles anew."""
    return cc.get_cc() is not None


def write_file(place: Path, key: str, suffix: str, write: Callable[[str], Any]) -> Path:
    """Let `write` fill a file, and keep that under `key`.

    It writes where the system keeps what is temporary: LLVM ends the process where a disk is full.

    Raises
    ------
    OSError
        If the file cannot be kept.
    """
    with (
        tempfile.TemporaryDirectory() as elsewhere,
        tempfile.TemporaryDirectory(dir=place) as draft,
    ):
        written, drafted = (Path(where) / f"program{suffix}" for where in (elsewhere, draft))
        write(str(written))
        shutil.copyfile(written, drafted)
        drafted.chmod(0o600)
        return drafted.replace(place / f"{key}-{_digest_files([drafted])[:16]}{suffix}")


def _prune(place: Path) -> None:
    """Drop the least recently used.

    Of names alone, until there are too many: when each file was used last is not asked before. Then
    one in ten goes, so that the next programs ask for it no more.
    """
    names = os.listdir(place)
    libraries = [name for name in names if name.endswith(".so")]
    for found, most in (
        ([name for name in libraries if not name.startswith(KERNEL_PREFIX)], MAX_PROGRAMS),
        ([name for name in libraries if name.startswith(KERNEL_PREFIX)], MAX_KERNELS),
        ([name for name in names if name.endswith(".o")], MAX_OBJECTS),
    ):
        if len(found) > most:  # rarely
            files = sorted((place / n for n in found), key=lambda f: f.stat().st_mtime)
            for file in files[: len(files) - most + most // 10]:
                file.unlink(missing_ok=True)


def _private(status: os.stat_result, kind: Callable[[int], bool]) -> bool:
    """Of the right kind (so no link), owned by this user, and writable by nobody else."""
    owned = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    return kind(status.st_mode) and owned and not status.st_mode & 0o022


def _is_scope_warning(line: bytes) -> bool:
    """TVM writes empty "Scope" warnings whenever it saves or loads."""
    return b"executable.cc" in line and b": Warning: Scope " in line
