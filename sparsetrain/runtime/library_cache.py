# SPDX-License-Identifier: Apache-2.0
"""Disk cache of compiled libraries; the key is a digest of everything that determines their code.

A file name has the key and a digest of the content, so a damaged file is never loaded. A
library is code, so the folder belongs to the user (mode 0700), no one else may write it or its
parents, and it is read through a descriptor. Files that a different user owns or may write are
ignored, and nothing is ever loaded from a checkpoint or from data. Files are written under a
temporary name and renamed: if two processes race, either file serves both. If anything fails here,
the caller compiles instead.

``SPARSETRAIN_CACHE`` sets the folder; if it is empty, the cache is off.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.support import cc
from tvm.target.codegen import llvm_version_major

from sparsetrain.system.private_files import OTHERS, make_private, private_descriptor
from sparsetrain.system.stderr_filter import filter_stderr

KERNEL_PREFIX = "kernel-"  # begins the key of a kernel that is called outside a program
# Numbers of files to keep; the least recently used are deleted first.
MAX_PROGRAMS = 200  # a few hundred kilobytes each
MAX_KERNELS = 1000  # called outside programs; 30 kilobytes on average
MAX_OBJECTS = 2000  # file names of kernels linked into programs; 35 kilobytes each on average
_ROOM = 8 << 20  # bytes that must be free; a library has a few hundred kilobytes
_CLOCK_STEP = 60  # seconds that a file's time may be ahead, for example on a network server
_METADATA = 'metadata["'
# The libraries of mathematics, C, and conversions of half floats. A C++ compiler would also link
# the C++ library, which takes most of the link time.
_C_LIBRARIES = ("-lm", "-lc", "-lgcc")
_NO_CPP = ("-nodefaultlibs",)
# Two processes may have stored the same kernel in two files, together with different kernels.
_FIRST_OF_EQUALS = ("-Wl,--allow-multiple-definition",)


def cache_folder() -> Path | None:
    """Return the cache's folder; None if the cache is off or the folder is not private."""
    found = locate()
    return found if isinstance(found, Path) else None


def locate() -> Path | str:
    """Return the cache's folder, or the reason why there is none.

    On Linux the path goes through a descriptor, so no one can swap a folder of the path between
    the check of a library and its loading.
    """
    named = os.environ.get("SPARSETRAIN_CACHE")
    if named == "":
        return "SPARSETRAIN_CACHE is empty"
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        path = Path(named) if named else Path(base) / "sparsetrain"
        make_private(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        path = path.resolve()
        handle = private_descriptor(path)
    # Path.home() raises RuntimeError for a user without HOME who is not in the user database.
    except (OSError, RuntimeError) as error:
        return str(error)
    status = os.fstat(handle)
    kept = _handles.setdefault((status.st_dev, status.st_ino), handle)
    if kept != handle:
        os.close(handle)
    if not _private(status, stat.S_ISDIR):
        return f"{path} is not private to this user: it needs mode 0700"
    through = Path(f"/proc/self/fd/{kept}")
    return through if through.exists() else path


_handles: dict[tuple[int, int], int] = {}  # open cache folders, by device and inode


def digest(*parts: str) -> str:
    """Return a hex digest of texts, versions, machine, CUDA settings and this package's sources."""
    settings = (f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("TVM_CUDA_"))
    everything = [
        *parts,
        *settings,
        tvm.__version__,
        tvm_ffi.__version__,
        f"LLVM {llvm_version_major(allow_none=True)}",
        platform.python_version(),
        platform.machine(),
        _digest_sources(),
    ]
    return hashlib.sha256("\0".join(everything).encode()).hexdigest()[:32]


def kernel_text(kernel: tirx.PrimFunc | tvm.IRModule) -> str:
    """Return everything that determines a kernel's code: its script, and the LLVM IR it imports.

    The printed script omits this IR, because it is metadata, and printing metadata crashes the
    process for some modules.
    """
    script = str(kernel.script())
    return "\0".join([script, *imported_llvm(kernel)]) if _METADATA in script else script


def imported_llvm(code: Any) -> list[str]:
    """Return the LLVM IR imported by a kernel, or by the kernels of a module."""
    texts: list[str] = []

    def collect(statement: tirx.AttrStmt) -> None:
        if isinstance(statement.value, tvm.ir.StringImm):
            texts.append(str(statement.value.value))

    tvm_ffi.structural_walk(code, (tirx.AttrStmt, collect))
    return texts


@cache
def _digest_sources() -> str:
    """Return a digest of all sources of this package."""
    return _digest_files(sorted(Path(__file__).parents[1].rglob("*.py")))


def _digest_files(files: list[Path]) -> str:
    total = hashlib.sha256()
    for file in files:
        total.update(file.read_bytes())
    return total.hexdigest()


def load(folder: Path, key: str) -> Any:
    """Load the library under `key`; None if there is none."""
    for file in intact_files(list_files(folder, ".so", [key])[key], key):
        with suppress(OSError, RuntimeError), filter_stderr(_is_scope_warning):
            return tvm.runtime.load_module(str(file))
    return None


def list_files(folder: Path, suffix: str, keys: Collection[str]) -> dict[str, list[Path]]:
    """Find the files with a suffix under each key, by one scan of the folder."""
    files: dict[str, list[Path]] = {key: [] for key in keys}
    with suppress(OSError):
        for name in os.listdir(folder):
            key = name.rpartition("-")[0]
            if key in files and name.endswith(suffix):
                files[key].append(folder / name)
    return files


def intact_files(files: Iterable[Path], key: str) -> Iterator[Path]:
    """Yield the files under `key` that are undamaged and this user's; delete the damaged ones."""
    for file in files:
        with suppress(OSError):
            if not _private(file.lstat(), stat.S_ISREG):
                continue
            if file.stem != f"{key}-{_digest_files([file])[:16]}":
                file.unlink()
                continue
            os.utime(file)
            yield file


def store(folder: Path, key: str, executable: Any) -> Any:
    """Write a library and load it back, which links it; None if that fails."""
    with suppress(OSError, RuntimeError):
        try:
            with filter_stderr(_is_scope_warning):
                write_file(folder, key, ".so", partial(executable.export_library, fcompile=_link))
        finally:
            with suppress(OSError):  # another process may delete the same files
                _prune(folder)
        return load(folder, key)
    return None


def _link(file: str, objects: list[str], options: Sequence[str] = ()) -> None:
    """Link a library against C only or, if that fails, with the compiler's defaults."""
    with suppress(RuntimeError):
        # Libraries follow the objects: some linkers ignore a library that precedes its callers.
        cc.create_shared(
            file, [*objects, *_C_LIBRARIES], options=[*options, *_NO_CPP, *_FIRST_OF_EQUALS]
        )
        return
    cc.create_shared(file, objects, options=list(options))


# TVM calls this for every program, and it would run the compiler each time.
_link.get_target_triple = cache(cc.create_shared.get_target_triple)  # type: ignore[attr-defined]


def can_link() -> bool:
    """Return whether there is a compiler to link with; without one every process recompiles."""
    return cc.get_cc() is not None


def write_file(folder: Path, key: str, suffix: str, write: Callable[[str], Any]) -> Path:
    """Store the file that `write` fills under `key`; raise OSError if it cannot be written.

    The file is filled in the system's temporary folder, and only if there is room: on a full disk
    LLVM ends the process.
    """
    with (
        tempfile.TemporaryDirectory() as system,
        tempfile.TemporaryDirectory(dir=folder) as beside,
    ):
        written, draft = (Path(parent) / f"program{suffix}" for parent in (system, beside))
        _require_room(written)
        write(str(written))
        shutil.copyfile(written, draft)
        draft.chmod(0o600)
        return draft.replace(folder / f"{key}-{_digest_files([draft])[:16]}{suffix}")


def link_under(keys: Iterable[str], file: Path) -> None:
    """Link a file of the cache under more keys; raise OSError if that fails."""
    content = file.name.rpartition("-")[2]
    for key in keys:
        with suppress(FileExistsError):  # another process linked it first
            os.link(file, file.with_name(f"{key}-{content}"))


def _require_room(file: Path) -> None:
    """Raise OSError unless the disk has room for a library at `file`."""
    with open(file, "wb") as taken:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(taken.fileno(), 0, _ROOM)
    file.unlink()


def _prune(folder: Path) -> None:
    """Delete the least recently used files beyond the limits, and a tenth more.

    Times of last use are read only if there are too many files.
    """
    names = os.listdir(folder)
    libraries = [name for name in names if name.endswith(".so")]
    for kind, most in (
        ([name for name in libraries if not name.startswith(KERNEL_PREFIX)], MAX_PROGRAMS),
        ([name for name in libraries if name.startswith(KERNEL_PREFIX)], MAX_KERNELS),
        ([name for name in names if name.endswith(".o")], MAX_OBJECTS),
    ):
        if len(kind) > most:  # rarely
            files = sorted((folder / n for n in kind), key=_last_use)
            for file in files[: len(files) - most + most // 10]:
                file.unlink(missing_ok=True)


def _last_use(file: Path) -> tuple[bool, float]:
    """Order by time of last use; times in the future (a clock was set back) come first."""
    used = file.stat().st_mtime
    return used <= time.time() + _CLOCK_STEP, used


def _private(status: os.stat_result, kind: Callable[[int], bool]) -> bool:
    """Return whether a file is of a kind, this user's, and writable by no one else."""
    owned = status.st_uid == os.geteuid()
    return kind(status.st_mode) and owned and not status.st_mode & OTHERS


def _is_scope_warning(line: bytes) -> bool:
    """Recognize the empty "Scope" warnings that TVM writes on every save and load."""
    return b"executable.cc" in line and b": Warning: Scope " in line
