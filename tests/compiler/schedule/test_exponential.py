# SPDX-License-Identifier: Apache-2.0
"""exp of float32 as arithmetic: accurate, with the same bits wherever an element stands."""

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain import runtime
from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import host_target


def compiled(function, lanes):
    """`function` of every element: of whole vectors, then of single numbers."""
    with kernel() as built:
        (length,) = extents(1)
        x, out = (buffer(name, (length,), "float32") for name in ("x", "out"))
        whole, zero = tirx.floordiv(length, lanes), tirx.const(0, "int64")
        with T.serial(zero, whole) as v, T.vectorized(zero, tirx.const(lanes, "int64")) as lane:
            T.buffer_store(out, function(x[v * lanes + lane]), [v * lanes + lane])
        with T.serial(zero, length - whole * lanes) as n:
            T.buffer_store(out, function(x[whole * lanes + n]), [whole * lanes + n])
    run = compile_kernel(built.get(), host_target())

    def apply(x):
        out = runtime.empty(x.shape, "float32")
        run(runtime.as_tensor(x), out)
        return out.numpy()

    return apply


@pytest.fixture(scope="module")
def exp():
    return compiled(tirx.exp, 8)


def test_its_relative_error_is_below_that_of_one_unit_after_1(exp):
    x = np.linspace(-87.3, 88.7, 400_001, dtype="float32")
    exact = np.exp(x.astype("float64"))
    assert (np.abs(exp(x) / exact - 1) < 2**-23).all()


def test_what_is_too_large_too_small_or_no_number_is_as_in_numpy(exp):
    x = np.array([89, 1e30, np.inf, -104, -1e30, -np.inf, 0, -0.0, np.nan, -np.nan], "float32")
    expected = np.array([np.inf] * 3 + [0] * 3 + [1, 1, np.nan, np.nan], "float32")
    np.testing.assert_array_equal(exp(x), expected)
    np.testing.assert_array_equal(exp(x[5:]), expected[5:])


def test_between_the_smallest_normal_number_and_zero_it_is_within_a_unit_there(exp):
    x = np.linspace(-103, -87.4, 10_001, dtype="float32")
    exact = np.exp(x.astype("float64"))
    assert np.abs(exp(x) - exact).max() <= np.spacing(np.float32(0))


def test_an_element_has_the_same_bits_in_a_vector_and_alone(exp):
    x = np.random.default_rng(0).normal(size=8 * 500).astype("float32") * 20
    one_by_one = np.concatenate([exp(x[n : n + 5]) for n in range(0, x.size, 5)])
    np.testing.assert_array_equal(exp(x), one_by_one)


@pytest.mark.parametrize(
    ("function", "reference"),
    [(tirx.sigmoid, lambda x: 1 / (1 + np.exp(-x))), (tirx.tanh, np.tanh)],
    ids=["sigmoid", "tanh"],
)
def test_sigmoid_and_tanh_are_made_of_it(function, reference):
    x = np.linspace(-30, 30, 10_003, dtype="float32")
    difference = compiled(function, 8)(x) - reference(x.astype("float64"))
    assert np.abs(difference).max() < 2e-7


def test_outside_of_this_package_tvm_lowers_exp_its_own_way():
    with kernel() as built:
        x = buffer("x", (1,), "float32")
        T.buffer_store(x, tirx.exp(x[tirx.const(0, "int64")]), [tirx.const(0, "int64")])
    code = tvm.compile(built.get().with_attr("global_symbol", "main"), host_target())
    assert "expf" in code.mod.inspect_source("asm") or "exp" in code.mod.inspect_source("ll")
