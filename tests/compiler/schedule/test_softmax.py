# SPDX-License-Identifier: Apache-2.0
"""Softmax in whole vectors: the numbers of NumPy in float64, whatever the length of a row."""

import numpy as np
import pytest
from tvm import relax

from tests.compiler.schedule.relax_programs import compile_main, function, run_passes

op = relax.op


def _log_softmax(x):
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _softmax(x):
    return np.exp(_log_softmax(x))


@pytest.mark.parametrize("shape", [("b", 50), ("b", 64), ("b", 2, 3, 5), ("b", 1), (19,)])
@pytest.mark.parametrize(
    ("operator", "reference"), [(op.nn.softmax, _softmax), (op.nn.log_softmax, _log_softmax)]
)
def test_rows_of_any_length_and_rank(shape, operator, reference):
    run = compile_main(function({"x": shape}, operator))
    x = np.random.default_rng(0).normal(size=[7 if n == "b" else n for n in shape]) * 9
    result = run(x.astype("float32"))
    expected = reference(x.astype("float32").astype("float64"))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("operator", [op.nn.softmax, op.nn.log_softmax])
def test_rows_of_nothing(operator):
    x = np.zeros((3, 0), "float32")
    assert compile_main(function({"x": ("b", 0)}, operator))(x).shape == (3, 0)


def test_what_is_minus_infinity_weighs_nothing_and_what_is_no_number_stays_in_its_row():
    x = np.zeros((3, 11), "float32")
    x[0, 5:] = -np.inf
    x[1, 9] = np.nan
    result = compile_main(function({"x": ("b", 11)}, op.nn.softmax))(x)
    np.testing.assert_allclose(result[0], [0.2] * 5 + [0] * 6, rtol=1e-6)
    assert np.isnan(result[1]).all()
    np.testing.assert_allclose(result[2], 1 / 11, rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "axis", "by_hand"), [((4, 8), 1, True), ((4, 8), 0, False), ((4, "b"), 1, False)]
)
def test_along_another_axis_or_of_an_unknown_length_the_schedule_rules_take_it(
    shape, axis, by_hand
):
    module = function({"x": shape}, lambda x: op.nn.softmax(x, axis))
    kernels = run_passes(module, until="ApplyRules")
    (kernel,) = (f for name, f in kernels.functions_items() if name.name_hint == "softmax")
    assert bool(kernel.attrs.get("tirx.is_scheduled")) is by_hand
