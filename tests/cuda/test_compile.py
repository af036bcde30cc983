# SPDX-License-Identifier: Apache-2.0
"""Every kernel compiles for `sm_90` with NVIDIA's compiler, GPU or not, and reads as it must.

One compilation for the hand-written kernels, and one for each program: nvcc is slow to start.
"""

from __future__ import annotations

import re
import shutil
from functools import cache

import pytest
import tvm
from tvm.support.nvcc import compile_cuda

import sparsetrain as st
from sparsetrain import ad
from sparsetrain.backends.cuda import device as gpu
from sparsetrain.compiler import schedule
from sparsetrain.compiler.precision import BFLOAT16, to_half
from sparsetrain.embedding.take import take_as_lookup
from sparsetrain.runtime.compiling import compile_relax
from tests import small_dlrm
from tests.cuda import device, emulator
from tests.cuda.kernels import all_kernels, few_kernels
from tests.helpers import slow_except
from tests.ops.indexing.programs import by_ids

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
pytestmark = pytest.mark.skipif(
    not device.is_real() and emulator.missing() is not None, reason=str(emulator.missing())
)
# Sums of squares for the global norm are taken in float64 on purpose, as on the CPU; the history
# of exact mode keeps its numbers in float64 and rounds them once.
MAY_USE_DOUBLE = re.compile(r"squares|replay")
# What is looked for does not depend on optimisation. Only of the largest program, which is unrolled
# by then, the optimiser leaves less to write than it takes.
QUICKLY = ["--Ofast-compile=max"]
# Name -> gradient program: a usual model, weighted bags in cross layers, products of halves, ids.
PROGRAMS = {
    "full": lambda: _gradient(rows=small_dlrm.FULL_ROWS, dim=16, bottom=(512,), top=(256,)),
    "bags and cross layers": lambda: _gradient(
        rows=small_dlrm.ROWS,
        dim=8,
        bottom=(16,),
        top=(16,),
        dropout=0.2,
        **small_dlrm.KINDS["weighted"],
        **small_dlrm.KINDS["cross"],
    ),
    "half": lambda: _gradient(BFLOAT16, rows=[50], dim=8, bottom=(), top=(72,)),
    "by ids": lambda: ad.gradient(by_ids(), "out", ["x"]).module,
}
KERNELS = {"few kernels": few_kernels, "all kernels": all_kernels}
QUICK = ("few kernels", "half", "by ids")


def _gradient(half=None, **model) -> tvm.IRModule:
    """The gradient program of a DLRM."""
    gradient = ad.gradient(st.models.DLRM(num_dense=13, **model).export(), "loss")
    return to_half(gradient.module, gradient.function, half) if half else gradient.module


@cache
def source_of(which: str) -> str:
    """Text of hand-written kernels, or of a program."""
    target = device.hopper()
    with device.reading_sources() as found:
        if which in KERNELS:
            named = KERNELS[which]().items()
            functions = {name: kernel.with_attr("global_symbol", name) for name, kernel in named}
            gpu.compile_kernels(tvm.IRModule(functions), target)
        else:
            program = take_as_lookup(PROGRAMS[which]())
            compile_relax(program, target, schedule.pipeline(target))
    (source,) = found
    return source


def kernels_of(source: str) -> dict[str, str]:
    """Kernel name -> its text, head included."""
    bodies: dict[str, str] = emulator.bodies(source)
    return bodies


@pytest.mark.parametrize("which", slow_except(QUICK, [*KERNELS, *PROGRAMS]))
def test_kernels_are_spread_over_threads_exact_and_without_atomics(which):
    source = source_of(which)
    for name, body in kernels_of(source).items():
        assert "threadIdx" in body or _is_one_number(body), name
        assert "double" not in body or MAY_USE_DOUBLE.search(name), name
    assert not re.search(r"atomic\w+\(", source)
    assert not re.search(r"__(expf|logf|sinf|cosf|fdividef|powf|tanf)\(", source)


def _is_one_number(body: str) -> bool:
    """A kernel without a loop whose launches do not depend on a length: one thread is enough."""
    arguments = body[: body.index("{")]
    return "for (" not in body and "int64_t ax" not in arguments and "blockIdx" not in body


@pytest.mark.parametrize("width", slow_except([16], [16, 128]))
def test_rows_are_read_and_written_sixteen_bytes_at_a_time(width):
    kernels = kernels_of(source_of("few kernels" if width == 16 else "all kernels"))
    for kernel in (f"lookup{width}", f"rows{width}_adagrad", f"bag{width}_sum"):
        bodies = [body for name, body in kernels.items() if name.startswith(kernel)]
        assert bodies
        assert all(re.search(r"\*\(float4\*\)\(\w+ \+", body) for body in bodies), kernel


def test_every_wide_product_of_halves_runs_on_tensor_cores():
    kernels = kernels_of(source_of("half"))
    products = {name: body for name, body in kernels.items() if "half_matmul" in name}
    assert len(products) == 2 + 2 + 1  # forward, weights, and back: the first layer has no back
    assert all("sparsetrain_multiply_bf16(" in body for body in products.values())


@needs_nvcc
@pytest.mark.parametrize("which", slow_except(["by ids"], ["all kernels", *PROGRAMS]))
def test_nvcc_compiles_them_for_hopper_and_rounds_as_ieee_does(which):
    source = source_of(which)
    with device.hopper():
        options = {"target_format": "ptx", "compiler": "nvcc"}
        options["options"] = None if which == "full" else QUICKLY
        assembly = bytes(compile_cuda(source, **options)).decode()
    assert ".target sm_90" in assembly
    # The exact `expf` ends in an approximate power of two; nothing else may be approximate.
    approximate = set(re.findall(r"\w+\.(?:approx|full)[.\w]*|\w+\.rn\.ftz[.\w]*", assembly))
    assert approximate <= {"ex2.approx.ftz.f32"}
    multiplies = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in assembly
    assert multiplies == (which == "half")
    entries = re.findall(r"\.entry (\w+)\(", assembly)
    assert set(entries) == set(kernels_of(source))
