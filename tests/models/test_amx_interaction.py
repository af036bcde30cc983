# SPDX-License-Identifier: Apache-2.0
"""The interaction's kernels by AMX tiles against float64 NumPy on operands rounded beforehand."""

import os
import subprocess
import sys

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.compiler.precision import policy_for, to_half
from sparsetrain.models.interaction import amx
from sparsetrain.runtime import as_numpy, as_tensor, empty
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import has_amx_tiles, host_target
from tests.models.interactions import in_numpy, module, vjp_in_numpy

HAS_TILES = has_amx_tiles(host_target())
pytestmark = pytest.mark.skipif(not HAS_TILES, reason="the CPU has no AMX_BF16")
# Features and width: around one and two vectors of 16, a step of 32 columns, the registers' rows.
SIZES = [(1, 16), (2, 32), (15, 48), (16, 80), (17, 16), (26, 16), (31, 128), (32, 16), (40, 32)]
SIZES.append((63, 48))
EACH = pytest.mark.parametrize(("features", "width"), SIZES)
BATCHES = [1, 7, 33]  # around a task's samples


def rounded(array):
    """float32 numbers to the nearest bfloat16, ties to even, in float64."""
    bits = array.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def draw(features, width, batch):
    rng = np.random.default_rng(features)
    shapes = [(batch, width), (batch, features, width)]
    shapes.append((batch, width + features * (features + 1) // 2))
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def run(kernel, arguments, outputs):
    """The results, in memory that held NaN."""
    results = [empty(shape, "float32") for shape in outputs]
    for result in results:
        as_numpy(result, writable=True)[...] = np.nan
    kernel(*map(as_tensor, arguments), *results)
    return [as_numpy(result) for result in results]


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-5)


def assert_cotangents(found, x, e, cotangent, as_read=rounded):
    width = x.shape[1]
    through = cotangent.copy()
    through[:, :width] = 0
    expected = vjp_in_numpy(*map(as_read, (x, e, through)))
    assert_close(found[0], expected[0] + cotangent[:, :width])
    assert_close(found[1], expected[1])


@EACH
def test_pairs_are_products_of_rounded_vectors_and_the_dense_one_is_kept(features, width):
    kernel = compile_kernel(amx.forward_kernel(features, width, "float32"), host_target())
    for batch in BATCHES:
        x, e, cotangent = draw(features, width, batch)
        (found,) = run(kernel, (x, e), [cotangent.shape])
        assert_close(found[:, width:], in_numpy(rounded(x), rounded(e))[:, width:])
        np.testing.assert_array_equal(found[:, :width], x)


@EACH
def test_cotangents_are_sums_over_rounded_pairs(features, width):
    kernel = compile_kernel(amx.backward_kernel(features, width, "float32"), host_target())
    for batch in BATCHES:
        x, e, cotangent = draw(features, width, batch)
        found = run(kernel, (x, e, cotangent), [x.shape, e.shape])
        assert_cotangents(found, x, e, cotangent)


def test_cotangents_that_go_past_the_caches_are_the_same(monkeypatch):
    x, e, cotangent = draw(17, 32, 21)
    results = []
    for bytes_ in (0, 1 << 60):
        monkeypatch.setattr(amx, "STREAMED", bytes_)
        kernel = compile_kernel(amx.backward_kernel(17, 32, "float32"), host_target())
        results.append(run(kernel, (x, e, cotangent), [x.shape, e.shape]))
    assert_cotangents(results[0], x, e, cotangent)
    for found, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("special", [np.inf, np.nan])
def test_a_number_that_is_not_finite_stays_among_its_pairs(special):
    x, e, cotangent = draw(17, 16, 3)
    e[1, 4, 3] = special
    kernel = compile_kernel(amx.forward_kernel(17, 16, "float32"), host_target())
    (found,) = run(kernel, (x, e), [cotangent.shape])
    with np.errstate(invalid="ignore"):
        expected = in_numpy(x.astype("f8"), e.astype("f8"))
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))


HASHES = """
import hashlib, numpy as np
import tests.models.test_amx_interaction as t
from sparsetrain.models.interaction import amx
x, e, cotangent = t.draw(26, 16, 101)
for make, arguments, outputs in [
    (amx.forward_kernel, (x, e), [cotangent.shape]),
    (amx.backward_kernel, (x, e, cotangent), [x.shape, e.shape]),
]:
    kernel = t.compile_kernel(make(26, 16, "float32"), t.host_target())
    for found in t.run(kernel, arguments, outputs):
        print(hashlib.sha256(np.ascontiguousarray(found)).hexdigest())
"""


def test_bits_are_those_of_any_number_of_threads():
    found = set()
    for threads in ("1", "2", "3"):
        environment = os.environ | {"TVM_NUM_THREADS": threads, "TVM_BIND_THREADS": "0"}
        command = [sys.executable, "-c", HASHES]
        found.add(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    assert len(found) == 1


@pytest.mark.cpu("the interaction of CUDA computes in float32")
def test_a_program_under_the_policy_runs_them():
    # Programs keep the whole widths alone; elsewhere the float32 kernels stay.
    policy = policy_for("bf16", host_target())
    for width, rounds in [(32, True), (24, False)]:
        half = to_half(module(5, width, "float32"), "forward", policy)
        x, e, _ = draw(5, width, 19)
        found = as_numpy(st.Program(half, "forward")({"x": x, "e": e}, {}))
        expected = in_numpy(*((rounded(a) if rounds else a.astype("f8")) for a in (x, e)))
        assert_close(found[:, width:], expected[:, width:])


@pytest.mark.cpu("the interaction of CUDA computes in float32")
def test_where_there_are_tiles_the_backward_of_wide_vectors_rounds_too():
    policy = policy_for("bf16", host_target())
    for width, rounds in [(64, True), (32, False)]:
        x, e, cotangent = draw(5, width, 19)
        both = module(5, width, "float32")
        program = st.value_and_grad(both, "probe", ["x", "e"], precision=policy)
        _, gradients = program({"x": x, "e": e}, {"cotangent": cotangent})
        found = [as_numpy(gradients[name]) for name in ("x", "e")]
        assert_cotangents(found, x, e, cotangent, rounded if rounds else lambda a: a.astype("f8"))
