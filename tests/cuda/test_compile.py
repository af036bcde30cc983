# SPDX-License-Identifier: Apache-2.0
"""Every kernel compiles for `sm_90` with NVIDIA's compiler, GPU or not, and reads as it must.

One compilation for all hand-written kernels, and one for each program: nvcc is slow to start.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest
import tvm
from tvm.support.nvcc import compile_cuda

import sparsetrain as st
from sparsetrain import ad
from sparsetrain.compiler import schedule
from sparsetrain.compiler.precision import BFLOAT16, to_half
from sparsetrain.embedding.take import take_as_lookup
from sparsetrain.runtime import gpu
from sparsetrain.runtime.compiling import compile_relax
from tests import small_dlrm
from tests.cuda import device, emulator
from tests.cuda.kernels import all_kernels
from tests.ops.indexing.programs import by_ids

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
pytestmark = pytest.mark.skipif(
    not device.is_real() and emulator.missing() is not None, reason=str(emulator.missing())
)
# Sums of squares for the global norm are taken in float64 on purpose, as on the CPU; the history
# of exact mode keeps its numbers in float64 and rounds them once.
MAY_USE_DOUBLE = re.compile(r"squares|replay")
WHICH = ("kernels", "full", "bags and cross layers", "half", "by ids")
# What is looked for does not depend on optimisation. Only of generated programs, which are unrolled
# by then, the optimiser leaves less to write than it takes.
OPTIONS = dict.fromkeys(set(WHICH) - {"full"}, ["--Ofast-compile=max"])


def programs() -> Iterator[tvm.IRModule]:
    """Gradient programs: a usual model, weighted bags in cross layers, products of halves, ids."""
    full = st.models.DLRM(rows=small_dlrm.FULL_ROWS, dim=16, bottom=(512,), top=(256,))
    kinds = small_dlrm.KINDS["weighted"] | small_dlrm.KINDS["cross"]
    kinds |= {"dropout": 0.2}
    others = st.models.DLRM(rows=small_dlrm.ROWS, dim=8, bottom=(16,), top=(16,), **kinds)
    for model in (full, others):
        yield ad.gradient(model.export(), "loss").module
    layers = st.models.DLRM(rows=[50], dim=8, bottom=(), top=(72,))
    gradient = ad.gradient(layers.export(), "loss")
    yield to_half(gradient.module, gradient.function, BFLOAT16)
    yield ad.gradient(by_ids(), "out", ["x"]).module


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """Text of the hand-written kernels, and of the programs of a model."""
    target = device.hopper()
    functions = {n: k.with_attr("global_symbol", n) for n, k in all_kernels().items()}
    with device.reading_sources() as found:
        gpu.compile_kernels(tvm.IRModule(functions), target)
        for program in programs():
            pipeline = schedule.pipeline(target)
            compile_relax(take_as_lookup(program), target, pipeline)
    return dict(zip(WHICH, found, strict=True))


def kernels_of(source: str) -> dict[str, str]:
    """Kernel name -> its text, head included."""
    bodies: dict[str, str] = emulator.bodies(source)
    return bodies


@pytest.mark.parametrize("which", WHICH)
def test_every_kernel_is_spread_over_threads(sources, which):
    for name, body in kernels_of(sources[which]).items():
        assert "threadIdx" in body or _is_one_number(body), name


def _is_one_number(body: str) -> bool:
    """A kernel without a loop whose launches do not depend on a length: one thread is enough."""
    arguments = body[: body.index("{")]
    return "for (" not in body and "int64_t ax" not in arguments and "blockIdx" not in body


@pytest.mark.parametrize("which", WHICH)
def test_no_kernel_computes_in_float64_by_accident(sources, which):
    for name, body in kernels_of(sources[which]).items():
        assert "double" not in body or MAY_USE_DOUBLE.search(name), name


@pytest.mark.parametrize("which", WHICH)
def test_there_are_no_atomics_and_no_approximate_functions(sources, which):
    assert not re.search(r"atomic\w+\(", sources[which])
    assert not re.search(r"__(expf|logf|sinf|cosf|fdividef|powf|tanf)\(", sources[which])


@pytest.mark.parametrize("width", [16, 128])
def test_rows_are_read_and_written_sixteen_bytes_at_a_time(sources, width):
    kernels = kernels_of(sources["kernels"])
    for kernel in (f"lookup{width}", f"rows{width}_adagrad", f"bag{width}_sum"):
        bodies = [body for name, body in kernels.items() if name.startswith(kernel)]
        assert bodies
        assert all(re.search(r"\*\(float4\*\)\(\w+ \+", body) for body in bodies), kernel


def test_every_wide_product_of_halves_runs_on_tensor_cores(sources):
    kernels = kernels_of(sources["half"])
    products = {name: body for name, body in kernels.items() if "half_matmul" in name}
    assert len(products) == 2 + 2 + 1  # forward, weights, and back: the first layer has no back
    assert all("sparsetrain_multiply_bf16(" in body for body in products.values())


@needs_nvcc
@pytest.mark.parametrize("which", WHICH)
def test_nvcc_compiles_them_for_hopper_and_rounds_as_ieee_does(sources, which):
    with device.hopper():
        options = {"target_format": "ptx", "compiler": "nvcc", "options": OPTIONS.get(which)}
        assembly = bytes(compile_cuda(sources[which], **options)).decode()
    assert ".target sm_90" in assembly
    # The exact `expf` ends in an approximate power of two; nothing else may be approximate.
    approximate = set(re.findall(r"\w+\.(?:approx|full)[.\w]*|\w+\.rn\.ftz[.\w]*", assembly))
    assert approximate <= {"ex2.approx.ftz.f32"}
    multiplies = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in assembly
    assert multiplies == (which == "half")
    entries = re.findall(r"\.entry (\w+)\(", assembly)
    assert set(entries) == set(kernels_of(sources[which]))
