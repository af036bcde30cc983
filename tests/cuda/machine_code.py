# SPDX-License-Identifier: Apache-2.0
"""Machine code of every kernel, for each architecture, as NVIDIA's compiler describes it.

The kernels are those of the step and of every other function of each model, in both precisions, and
those written by hand, with every optimizer among them. What two programs share is compiled once. No
device is needed: TVM writes the text, as for a device, and nvcc is called as TVM calls it.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import tvm
from tvm.support.nvcc import compile_cuda

import sparsetrain as st
from sparsetrain.backends.cuda import device as gpu
from sparsetrain.runtime import cuda_wheels
from tests.cuda import device, emulator
from tests.cuda.kernels import all_kernels
from tests.golden import programs

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
PRECISIONS = ("float32", "bf16")
_DECLARED = re.compile(r'extern "C" __global__ void [^{;]*;\n?|\n\s*(?=\n)')
_USED = re.compile(
    r"entry function '(\w+)' for .*?(\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers(?:[^\n]*?(\d+) bytes smem)?",
    re.DOTALL,
)


class Usage(NamedTuple):
    """What one thread of a kernel takes, and what its block shares; none of it may grow."""

    registers: int
    spilled: int  # bytes, written and read
    shared: int  # bytes

    def __str__(self) -> str:
        return ",".join(map(str, self))


class Compiled(NamedTuple):
    """Kernel -> what it uses and how it reads, on one architecture."""

    usage: dict[str, Usage]
    assembly: dict[str, str]  # PTX


def found() -> dict[str, object]:
    """What is recorded: columns as `ARCHITECTURES`, each the three numbers of `Usage`."""
    columns = [compiled(arch).usage for arch in ARCHITECTURES]
    rows = {name: " ".join(str(column[name]) for column in columns) for name in sorted(columns[0])}
    return {"nvcc": version(), "architectures": ARCHITECTURES, "kernels": rows}


def version() -> str:
    """The release of nvcc; another one allots registers in another way."""
    command = [str(shutil.which("nvcc", path=_path())), "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.findall(r", V([\d.]+)", said)[0]


def _path() -> str:
    """PATH with the wheels' nvcc first: its version is in constraints.txt."""
    folder = cuda_wheels.folder()
    before = [] if folder is None else [str(folder / "bin")]
    return os.pathsep.join([*before, os.environ["PATH"]])


@cache
def compiled(arch: str) -> Compiled:
    """All kernels for one architecture."""
    sources = _sources()
    said: list[str] = []

    class Heard(subprocess.Popen):
        """TVM throws away what the compiler says."""

        def communicate(self, *arguments, **named):
            output = super().communicate(*arguments, **named)
            said.append(output[0].decode())
            return output

    with (
        patch.dict(os.environ, PATH=_path()),
        patch("tvm.support.nvcc.subprocess.Popen", Heard),
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        assembly = "".join(pool.map(lambda text: _assembly(text, arch), sources))
    usage = {}
    for name, stores, loads, registers, shared in _USED.findall("".join(said)):
        usage[_names()[name]] = Usage(int(registers), int(stores) + int(loads), int(shared or 0))
    parts = re.split(r"\.entry (\w+)\(", assembly)
    named = (_names()[name] for name in parts[1::2])
    return Compiled(usage, dict(zip(named, parts[2::2], strict=True)))


def _assembly(text: str, arch: str) -> str:
    """Compile a file as TVM does, for one architecture."""
    number = arch.removeprefix("sm_")
    generate = ["-gencode", f"arch=compute_{number},code={arch}"]
    with tempfile.TemporaryDirectory() as folder, device.hopper():
        options = ["--keep", f"--keep-dir={folder}"]
        compile_cuda(text, "fatbin", generate, options, compiler="nvcc")
        (assembly,) = Path(folder).glob("*.ptx")
        return assembly.read_text()


@cache
def _sources() -> list[str]:
    """Texts that hold each kernel once, under the names of `_names`."""
    files: dict[str, list[str]] = {}
    for _name, head, body in _kernels():
        files.setdefault(head, []).append(body)
    return [head + "".join(bodies) for head, bodies in files.items()]


@cache
def _names() -> dict[str, str]:
    """Name in the text -> kernel."""
    return {f"k{number}": name for number, (name, _head, _body) in enumerate(_kernels())}


@cache
def _kernels() -> list[tuple[str, str, str]]:
    """Kernel, the text before the first of its program, and its own; each once."""
    known: dict[str, tuple[str, str]] = {}
    for program, text in _programs():
        bodies = emulator.bodies(text)
        head = _DECLARED.sub("", text[: min(text.index(body) for body in bodies.values())])
        for name in sorted(bodies):
            body = re.sub(rf"\b{name}\b", "kernel", bodies[name])
            known.setdefault(body, (f"{program}: {name.removesuffix('_kernel')}", head))
    return [
        (name, head, re.sub(r"\bkernel\b", f"k{number}", body))
        for number, (body, (name, head)) in enumerate(known.items())
    ]


def _programs() -> Iterator[tuple[str, str]]:
    """Program -> its CUDA text, of those that have kernels."""
    with device.reading_sources() as texts:
        for name, compile_program in _compilations():
            compile_program()
            if texts:
                yield name, texts.pop()


def _compilations() -> Iterator[tuple[str, Callable[[], object]]]:
    functions = {n: k.with_attr("global_symbol", n) for n, k in all_kernels().items()}
    yield "by hand", lambda: gpu.compile_kernels(tvm.IRModule(functions), device.hopper())
    for name, precision in itertools.product(st.models.MODELS, PRECISIONS):
        made, _batch = programs.trainer(name, target=device.hopper(), precision=precision)
        yield f"{name}, {precision}, step", made.program.executable
        for function in sorted({*made.model.functions} - {"loss"}):
            yield f"{name}, {precision}, {function}", made._program(function).executable
