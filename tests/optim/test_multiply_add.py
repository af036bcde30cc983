# SPDX-License-Identifier: Apache-2.0
"""Sums of products are fused where the formula says, not where a compiler finds it handy."""

import numpy as np
import pytest
from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.target import Target

from sparsetrain import runtime
from sparsetrain.kernels.builder import buffer, kernel
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import host_target
from sparsetrain.tables.multiply_add import fuse_multiply_adds

A, B, C, D = (tirx.Var(name, "float32") for name in "abcd")

CASES = {
    "F(a, b, c)": A * B + C,
    "F(b, c, a)": A + B * C,
    "F(a, b, c * d)": A * B + C * D,
    "F(a, b, c * T.float32(-1.0))": A * B - C,
    "F(b * T.float32(-1.0), c, a)": A - B * C,
    "T.sqrt(F(a, a, b)) / c": tirx.sqrt(A * A + B) / C,
    "T.max(F(a, b, c), d)": tirx.max(A * B + C, D),
    "T.Select(F(a, b, c) < d, a, F(c, d, b))": tirx.Select(A * B + C < D, A, B + C * D),
    "a * b / c + d": A * B / C + D,
}


@pytest.mark.parametrize("wanted", CASES)
def test_sums_of_products_become_one_call(wanted):
    assert (
        str(fuse_multiply_adds(CASES[wanted])).replace("T.sparsetrain_multiply_add", "F") == wanted
    )


@pytest.mark.parametrize(
    "target", [None, Target("llvm"), Target({"kind": "llvm", "mcpu": "haswell"})]
)
def test_vectors_and_single_numbers_have_the_same_bits(target):
    """Two products that could each be the fused one, by 16, by 3, and by one."""
    with kernel() as built:
        x, y, out = (buffer(name, (20,), "float32") for name in ("x", "y", "out"))

        def write(i):
            T.buffer_store(out, fuse_multiply_adds(x[i] * y[i] + y[i] * y[i]), [i])

        with T.vectorized(0, 16) as lane:
            write(lane)
        with T.serial(0, 4) as n:
            write(16 + n)
    run = compile_kernel(built.get(), target or host_target())
    rng = np.random.default_rng(0)
    for _ in range(50):
        numbers = [np.resize(rng.standard_normal(4).astype("f4"), 20) for _ in range(2)]
        found = runtime.empty((20,), "float32")
        run(*map(runtime.as_tensor, numbers), found)
        assert len(np.unique(runtime.as_numpy(found))) == 4


def test_integers_stay_as_they_are():
    n = tirx.Var("n", "int32")
    assert (
        str(fuse_multiply_adds(tirx.Cast("float32", n * 2 + 1))) == 'T.Cast("float32", n * 2 + 1)'
    )


def test_conditions_are_seen():
    found = str(fuse_multiply_adds(tirx.Select(tirx.And(A * B + C > D, C > D), A, B)))
    assert "a * b +" not in found


def test_what_is_bound_to_a_name_stays():
    assert fuse_multiply_adds(A).same_as(A)
    assert str(fuse_multiply_adds(A * B)) == "a * b"
