# SPDX-License-Identifier: Apache-2.0
"""Libraries of an exported folder: compile the C interface, link kernels, copy TVM's runtime.

Uses the system's C compiler, or the package ziglang (extra `export`).
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tvm_ffi

from sparsetrain.errors import ConfigError
from sparsetrain.runtime import library_cache

NATIVE = Path(__file__).parent / "native"
HEADER, INTERFACE, KERNELS = "sparsetrain.h", "libsparsetrain.so", "model.so"
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off")
_LINKED = ("-ltvm_ffi", "-lm", "-lpthread", "-ldl", "-Wl,-rpath,$ORIGIN")


def compiler() -> list[str]:
    """Return the command of a C compiler.

    Raises
    ------
    ConfigError
        If no compiler is found, or this is not Linux.
    """
    if sys.platform != "linux":
        raise ConfigError("export writes Linux libraries: run it on Linux, or write a FILE.onnx")
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    if find_spec("ziglang"):
        # By default, Zig would require the newest glibc that it knows.
        target = f"{platform.machine()}-linux-gnu.2.28"
        return [sys.executable, "-m", "ziglang", "cc", "-target", target]
    raise ConfigError(
        "export needs a C compiler: install one, or pip install 'sparsetrain[export]'"
    )


def write_interface(folder: Path) -> None:
    """Write the library of the C interface, its header and TVM's runtime."""
    from tvm import libinfo

    for library in (tvm_ffi.libinfo.find_libtvm_ffi(), libinfo.find_libtvm_runtime()):
        shutil.copyfile(library, folder / Path(library).name)
    shutil.copyfile(NATIVE / HEADER, folder / HEADER)
    _write_once(folder / INTERFACE)


def _write_once(library: Path) -> None:
    """Compile the C interface, or copy the cached one: it is the same for all models."""
    sources = sorted(NATIVE.glob("*.[ch]"))
    includes = [f"-I{path}" for path in tvm_ffi.libinfo.include_paths()]
    texts = (source.read_text() for source in sources)
    key = f"interface-{library_cache.digest(*compiler(), *_FLAGS, *_LINKED, *texts)}"
    place = library_cache.cache_folder()
    if place is not None:
        known = library_cache.list_files(place, ".so", [key])[key]
        for file in library_cache.intact_files(known, key):
            shutil.copyfile(file, library)
            return
    where = ["-L", str(library.parent), f"-Wl,-soname,{INTERFACE}", "-o", str(library)]
    compiled = (str(source) for source in sources if source.suffix == ".c")
    _run([*_FLAGS, *includes, *compiled, *where, *_LINKED])
    if place is not None:
        with suppress(OSError):
            library_cache.write_file(place, key, ".so", partial(shutil.copyfile, library))


def write_kernels(folder: Path, executable: Any) -> None:
    """Link the kernels of a compiled program."""
    executable.export_library(str(folder / KERNELS), fcompile=_link)


def _link(file: str, objects: Sequence[str], options: Sequence[str] = ()) -> None:
    # TVM orders objects by address; they are sorted so that equal programs give equal files.
    ordered = sorted(objects, key=lambda name: Path(name).read_bytes())
    _run(["-shared", "-o", file, *ordered, *options, "-lm"])


def _run(arguments: Sequence[str]) -> None:
    command = compiler()
    # Zig needs a cache folder, and the home folder may be read-only.
    with tempfile.TemporaryDirectory() as cache:
        places = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
        try:
            subprocess.run(  # noqa: S603
                [*command, *arguments],
                check=True,
                capture_output=True,
                text=True,
                env={**os.environ, **places},
            )
        except subprocess.CalledProcessError as error:
            lines = [line for line in error.stderr.splitlines() if "error" in line.lower()]
            said = (lines or [f"exit code {error.returncode}"])[0]
            raise ConfigError(f"export: {command[0]} failed: {said}") from None


def versions() -> str:
    """Return the versions of the packages that write a folder."""
    return " ".join(f"{name} {version(name)}" for name in _MADE_WITH)


_MADE_WITH = ("sparsetrain", "apache-tvm", "apache-tvm-ffi")
