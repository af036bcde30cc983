# SPDX-License-Identifier: Apache-2.0
"""Products whose result is stored as bfloat16: how it is rounded, and by what."""

import numpy as np
import pytest
from tvm import relax, tirx

from sparsetrain.compiler.schedule.bf16.matmul import HalfMatmul
from tests.compiler.schedule.relax_programs import (
    TARGETS,
    compile_main,
    function,
    run_passes,
)
from tests.compiler.schedule.test_bf16_matmul import HALF, half_product, needs_pairs, round_to_half

op = relax.op


def shifted(columns, rectified=False):
    """x w^T + bias as bfloat16; with an identity for w, every sum is a number of x and one more."""

    def body(x, w, bias):
        y = op.add(half_product(x, op.permute_dims(w)), bias)
        return op.astype(op.nn.relu(y) if rectified else y, HALF)

    return function({"x": ("b", columns), "w": (columns, columns), "bias": (columns,)}, body)


@pytest.mark.parametrize("columns", [16, 33, 48, 64])
def test_results_are_rounded_to_nearest_even(columns):
    random = np.random.default_rng(0)
    x = round_to_half(random.standard_normal((37, columns)).astype("float32"))
    halfway = (1 + (2 * random.integers(0, 64, columns) + 1) / 256).astype("float32")
    run = compile_main(shifted(columns))
    for bias in (random.standard_normal(columns).astype("float32"), halfway):
        for left in (x, np.zeros_like(x)):
            found = run(left, np.eye(columns, dtype="float32"), bias)
            np.testing.assert_array_equal(found.astype("float32"), round_to_half(left + bias))


@needs_pairs
@pytest.mark.parametrize("special", [np.inf, -np.inf, 3.4e38, -3.4e38])
def test_what_is_too_large_for_bfloat16_is_infinite(special):
    bias = np.full(32, special, "float32")
    zero = np.zeros((3, 32), "float32")
    found = compile_main(shifted(32))(zero, np.eye(32, dtype="float32"), bias)
    expected = np.full((3, 32), np.sign(special) * np.inf)
    np.testing.assert_array_equal(found.astype("float32"), expected)


@needs_pairs
@pytest.mark.parametrize("columns, helped", [(32, True), (40, False)])
def test_whole_vectors_are_rounded_by_the_instruction(columns, helped):
    kernels = run_passes(shifted(columns, rectified=True), until="ApplyRules")
    (kernel,) = (k for k in kernels.functions.values() if isinstance(k, tirx.PrimFunc))
    scheduled = HalfMatmul().apply(kernel, TARGETS["host"], False).mod.script()
    assert ("sparsetrain_store_half" in scheduled) == helped
