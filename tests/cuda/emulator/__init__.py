# SPDX-License-Identifier: Apache-2.0
"""Run generated CUDA kernels without a GPU: the source that TVM writes, compiled for the CPU.

`install` gives this process a CUDA device that keeps its memory in the host's. Everything else is
the real thing: the same target, passes, host code, virtual machine and launches. What TVM would
hand to the driver, the text of the kernels, goes to the C++ compiler instead, with `cuda.h` beside
this file in place of CUDA's and `blocks.cc` to run the blocks.

What it shows: values, missing barriers (`ORDER` changes who runs first), reads of shared memory
that nobody wrote, launches of too many threads. What it cannot show: speed, the
memory model within a warp, and code that only NVIDIA's compiler would refuse.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from tests.cuda.emulator.streams import LateCopies as LateCopies
from tests.cuda.emulator.streams import Refusing as Refusing

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
_own = tempfile.TemporaryDirectory(prefix="emulated-cuda-")
_loaded: list[Any] = []
_order = 0
_sources: list[str] | None = None

# What a warp or a block must come to together, and helpers of ours that hold such.
_BARRIERS = r"_sync|__shfl|sparsetrain_(multiply|sum|rank|votes)"
_SIGNATURE = r'extern "C" __global__ void (?:__launch_bounds__\([\d, ]+\) )?(\w+)\('


def missing() -> str | None:
    """Say why kernels cannot be emulated, if they cannot."""
    return None if COMPILER else "no g++ to compile generated kernels with"


@functools.cache
def install() -> None:
    """Make ``tvm.cuda(0)`` an emulated device, for the rest of this process."""
    for name in ("cuda", "cuda_host"):  # the device's memory, and what it may read of the host's
        tvm_ffi.register_global_func(f"device_api.{name}", tvm.get_global_func("device_api.cpu"))
    tvm_ffi.register_global_func("ffi.Module.create.cuda", _create)


def is_installed() -> bool:
    """Whether `install` was called in this process."""
    return install.cache_info().currsize > 0


def set_order(order: int) -> None:
    """Take threads and blocks rising (0), falling (1), or shuffled by a seed."""
    global _order
    _order = order
    for module in _loaded:
        module["emulated_order"](order)


@contextmanager
def reading_sources() -> Iterator[list[str]]:
    """Collect the text of kernels that are built meanwhile, which then cannot be run."""
    global _sources
    install()
    _sources = []
    yield _sources
    _sources = None


def _create(code: Any, _kind: str, functions: Mapping[str, Any], *_rest: Any) -> Any:
    text = bytes(code).decode() if not isinstance(code, str) else code
    if _sources is not None:
        _sources.append(text)
        text, functions = '#include "cuda.h"\n', {}
    text = emulated_assembly(text) + _entries(text, functions)
    module = tvm_ffi.load_module(str(_compile(text)))
    module["emulated_order"](_order)
    _loaded.append(module)
    return module


def emulated_assembly(text: str) -> str:
    """The text with calls of C++ functions in place of instructions, named after them."""

    def call(found: re.Match[str]) -> str:
        name = found[1].replace(".", "_")
        operands = re.findall(r'"[=+]?\w"\(([^()]*)\)', found[2])
        return f"emulated_{name}({', '.join(operands)});"

    return re.sub(r'\basm(?:\s+volatile)?\s*\(\s*"([a-z][\w.]*) ([^;]*?;"[^;]*)\);', call, text)


def _entries(text: str, functions: Mapping[str, Any]) -> str:
    """One function for each kernel, under the name by which the host code looks it up."""
    lines = [
        "\n__shared__ __attribute__((used)) char emulated_byte;\n"
    ]  # the linker knows no empty section
    for name, body in bodies(text).items():
        tags = ", ".join(f'"{tag}"' for tag in functions[name].launch_param_tags)
        barriers = "true" if re.search(_BARRIERS, body) else "false"
        lines.append(
            f"ENTRY int __tvm_ffi_{name}(void*, const TVMFFIAny* args, int32_t, TVMFFIAny*) {{"
            f" return emulated::launch({name}, args, {{{tags}}}, {barriers}); }}\n"
        )
    return "".join(lines)


def bodies(text: str) -> dict[str, str]:
    """Kernel name -> its text."""
    starts = [m for m in re.finditer(_SIGNATURE + r"[^;{]*\{", text)]
    ends = [*(m.start() for m in starts[1:]), len(text)][: len(starts)]
    return {m[1]: text[m.start() : end] for m, end in zip(starts, ends, strict=True)}


def _compile(text: str) -> Path:
    name = hashlib.sha256(text.encode()).hexdigest()[:24]
    library = _folder() / f"{name}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=_folder()) as draft:
            source, made = Path(draft) / f"{name}.cc", Path(draft) / library.name
            source.write_text(text)
            built = _built()
            flags = ["-shared", "-include", "halves.h", str(source), str(built / "blocks.o")]
            _run([*_flags(built), *flags, "-o", str(made)])
            made.replace(library)
    return library


@functools.cache
def _folder() -> Path:
    """Where libraries are kept: for all workers of a session, or for this process."""
    shared = os.environ.get("SPARSETRAIN_TEST_FOLDER")
    folder = Path(shared or _own.name) / "emulated-cuda"
    folder.mkdir(exist_ok=True)
    return folder


@functools.cache
def _built() -> Path:
    """A folder with what all kernels share, compiled: it is most of a build."""
    built = _folder() / "shared"
    if not built.exists():
        draft = Path(tempfile.mkdtemp(dir=_folder()))
        for file in [*HERE.glob("*.h"), HERE / "blocks.cc"]:
            shutil.copy(file, draft)
        _run([*_flags(draft), "-x", "c++-header", str(draft / "halves.h")])
        _run([*_flags(draft), "-c", str(draft / "blocks.cc"), "-o", str(draft / "blocks.o")])
        with suppress(OSError):  # another worker was first
            draft.rename(built)
    return built


def _flags(folder: Path) -> list[str]:
    flags = [str(COMPILER), "-std=c++17", "-O1", "-w", "-fPIC"]
    flags += ["-fvisibility=hidden", "-ffp-contract=off"]  # a library's memory is its own
    find = tvm_ffi.libinfo
    folders = [folder, find.find_include_path(), find.find_dlpack_include_path()]
    return [*flags, *(f"-I{each}" for each in folders)]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[:4000]}")
