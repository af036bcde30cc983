# SPDX-License-Identifier: Apache-2.0
"""The interaction's bfloat16 kernels against float64 NumPy on operands rounded beforehand."""

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.models import bf16_interaction
from sparsetrain.precision import BFLOAT16, to_half
from sparsetrain.runtime import as_numpy, as_tensor, compile_kernel, empty, host_target
from tests.models.interactions import in_numpy, module, vjp_in_numpy

pytestmark = pytest.mark.skipif(
    not bf16_interaction.runs_on(host_target()), reason="the CPU has no AVX512_BF16"
)
# Features and width: around one and two vectors of 16, a step of 32 columns, the registers' rows.
SIZES = [(1, 16), (2, 32), (15, 48), (16, 80), (26, 16), (31, 128), (40, 32)]
EACH = pytest.mark.parametrize(("features", "width"), SIZES)
BATCH = 19  # more than a task's samples, and no multiple of them


def rounded(array):
    """float32 numbers to the nearest bfloat16, ties to even, in float64."""
    bits = array.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def draw(features, width):
    rng = np.random.default_rng(features)
    shapes = [(BATCH, width), (BATCH, features, width)]
    shapes.append((BATCH, width + features * (features + 1) // 2))
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def run(make, features, width, arguments, outputs):
    """The results, in memory that held NaN."""
    results = [empty(shape, "float32") for shape in outputs]
    for result in results:
        as_numpy(result, writable=True)[...] = np.nan
    kernel = compile_kernel(make(features, width, "float32"), host_target())
    kernel(*map(as_tensor, arguments), *results)
    return [as_numpy(result) for result in results]


@EACH
def test_pairs_are_products_of_rounded_vectors_and_the_dense_one_is_kept(features, width):
    x, e, cotangent = draw(features, width)
    kernel = bf16_interaction.forward_kernel
    (found,) = run(kernel, features, width, (x, e), [cotangent.shape])
    expected = in_numpy(rounded(x), rounded(e))
    np.testing.assert_allclose(found[:, width:], expected[:, width:], rtol=1e-5, atol=2e-5)
    np.testing.assert_array_equal(found[:, :width], x)


@EACH
def test_cotangents_are_sums_over_rounded_pairs(features, width):
    x, e, cotangent = draw(features, width)
    kernel = bf16_interaction.backward_kernel
    found = run(kernel, features, width, (x, e, cotangent), [x.shape, e.shape])
    through = cotangent.copy()
    through[:, :width] = 0
    expected = vjp_in_numpy(*map(rounded, (x, e, through)))
    np.testing.assert_allclose(found[0], expected[0] + cotangent[:, :width], rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=2e-5)


def test_a_program_under_the_policy_runs_them():
    # Programs keep the whole widths alone; elsewhere the float32 kernels stay.
    for width, rounds in [(32, True), (24, False)]:
        half = to_half(module(5, width, "float32"), "forward", BFLOAT16)
        x, e, _ = draw(5, width)
        found = as_numpy(st.Program(half, "forward")({"x": x, "e": e}, {}))
        expected = in_numpy(*((rounded(a) if rounds else a.astype("f8")) for a in (x, e)))
        np.testing.assert_allclose(found[:, width:], expected[:, width:], rtol=1e-5, atol=2e-5)
