# SPDX-License-Identifier: Apache-2.0
"""Tiles at the right edge of a result are one vector wide where that is enough."""

import re

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.target import Target

from sparsetrain.compiler.schedule.bf16.matmul import HalfMatmul
from sparsetrain.compiler.schedule.matmul import Matmul
from tests.compiler.schedule.relax_programs import (
    TARGETS,
    assert_exact,
    compile_main,
    function,
    random_arguments,
    run_passes,
)
from tests.compiler.schedule.test_bf16_matmul import half_product, needs_pairs

op = relax.op
AVX512 = Target({"kind": "llvm", "mcpu": "skylake-avx512"})
# Columns, and how many are computed together on a CPU with AVX-512: 32, and 16 of a last panel.
WIDTHS = {16: {16}, 32: {32}, 33: {16, 32}, 48: {16, 32}, 49: {32}, 367: {16, 32}}


def product(columns, multiply):
    return function({"x": ("b", 21), "w": (21, columns)}, multiply)


def scheduled(rule, module, target):
    kernels = run_passes(module, until="ApplyRules").functions.values()
    (kernel,) = (kernel for kernel in kernels if isinstance(kernel, tirx.PrimFunc))
    return rule.apply(kernel, target, False).mod.script()


@pytest.mark.parametrize("columns", WIDTHS)
def test_the_last_panel_is_as_wide_as_what_is_left(columns):
    script = scheduled(Matmul(), product(columns, op.matmul), AVX512)
    update = r'vectorized\(T\.int64\((\d+)\)\):\s+with T\.sblock\("matmul_update"'
    assert {int(width) for width in re.findall(update, script)} == WIDTHS[columns]


@needs_pairs
@pytest.mark.parametrize("columns", WIDTHS)
def test_the_last_panel_of_bfloat16_is_too(columns):
    script = scheduled(HalfMatmul(), product(columns, half_product), TARGETS["host"])
    assert script.count('T.sblock("half_matmul_update') == len(WIDTHS[columns])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("multiply, columns", [(op.matmul, 33), (op.matmul, 9), (half_product, 33)])
def test_both_widths_compute_the_same(target, multiply, columns):
    def layer(x, w, residual):
        zero = relax.const(0.0, "float32")
        forward = multiply(x, w)
        masked = op.where(op.greater(residual, zero), forward, zero)
        return relax.Tuple([masked, multiply(op.permute_dims(x), residual)])

    shapes = {"x": ("b", 21), "w": (21, columns), "residual": ("b", columns)}
    module = function(shapes, layer)
    run = compile_main(module, target)
    for batch in (1, 150):
        arguments = random_arguments(module, batch)
        x, w, residual = (a.astype("float64") for a in arguments)
        assert_exact(run(*arguments), [np.where(residual > 0, x @ w, 0), x.T @ residual])
