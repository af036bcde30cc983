# SPDX-License-Identifier: Apache-2.0
"""Inputs of an epilogue are prefetched if they are as large as the result."""

import numpy as np
import pytest
from tvm import relax, tirx

from sparsetrain.compiler.schedule.matmul import Matmul
from tests.compiler.schedule.relax_programs import (
    TARGETS,
    assert_exact,
    compile_main,
    function,
    random_arguments,
    run_passes,
)

op = relax.op
SHAPES = {"x": ("b", 24), "w": (24, 64)}


def masked(x, w, other):
    product = op.matmul(x, w)
    zero = relax.const(0.0, "float32")
    return op.where(op.greater(other, zero), product, op.zeros_like(product))


def shifted(x, w, other):
    return op.add(op.matmul(x, w), other)


CASES = {
    "a mask of the result's shape": (masked, ("b", 64), True),
    "a residual of the result's shape": (shifted, ("b", 64), True),
    "a bias": (shifted, (64,), False),
}


@pytest.mark.parametrize("name", CASES)
def test_only_operands_that_lie_like_the_result_are_prefetched(name):
    body, shape, wanted = CASES[name]
    kernels = run_passes(function(SHAPES | {"other": shape}, body), until="ApplyRules")
    target = TARGETS["host"]
    products = [
        Matmul().apply(kernel, target, False).mod.script()
        for name, kernel in kernels.functions_items()
        if isinstance(kernel, tirx.PrimFunc)
    ]
    assert len(products) == 1
    assert products[0].count("T.prefetch(T.address_of(other[") == wanted


@pytest.mark.parametrize("target", TARGETS)
def test_prefetching_changes_no_value_on_any_target(target):
    module = function(SHAPES | {"other": ("b", 64)}, masked)
    run = compile_main(module, target)
    for batch in (1, 19):
        x, w, mask = (a.astype("float64") for a in random_arguments(module, batch))
        result = run(*random_arguments(module, batch))
        assert_exact([result], [np.where(mask > 0, x @ w, 0)])
