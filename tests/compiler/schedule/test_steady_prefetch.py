# SPDX-License-Identifier: Apache-2.0
"""Float32 products ask for lines between the steps of their sums, and compute what they did."""

import re

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.target import Target

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


def masked(x, w, other):
    zero = relax.const(0.0, "float32")
    return op.where(op.greater(other, zero), op.matmul(x, w), zero)


def shifted(x, w, other):
    return op.add(op.matmul(x, w), other)


AVX512 = Target({"kind": "llvm", "mcpu": "skylake-avx512"})
ZEN = Target({"kind": "llvm", "mcpu": "znver5"})


def scheduled(module, target=AVX512):
    kernels = run_passes(module, until="ApplyRules").functions.values()
    scripts = [
        Matmul().apply(kernel, target, False).mod.script()
        for kernel in kernels
        if isinstance(kernel, tirx.PrimFunc)
    ]
    assert len(scripts) == 1
    return scripts[0]


def asked_for(script):
    """Of every prefetch of a product: the array, and whether it will be written."""
    hints = re.findall(r"T\.prefetch\(T\.address_of\((\w+)\[.*\]\), (\d), \d, \d\)", script)
    return sorted({(name, wanted == "1") for name, wanted in hints if name != "w"})


CASES = {
    "a mask of the result's shape": (masked, ("b", 64), {("other", False), ("x", False)}),
    "a residual of the result's shape": (shifted, ("b", 64), {("other", False), ("x", False)}),
    "a bias": (shifted, (64,), {("x", False)}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_tile_reads_and_writes_and_the_next_rows_are_asked_for(name):
    body, shape, wanted = CASES[name]
    script = scheduled(function({"x": ("b", 160), "w": (160, 64), "other": shape}, body))
    asked = asked_for(script)
    assert {one for one in asked if not one[1]} == wanted
    assert len([one for one in asked if one[1]]) == 1


@pytest.mark.parametrize("steps, is_cut", [(13, False), (63, False), (64, True), (100, True)])
def test_a_long_sum_is_cut_into_as_many_pieces_as_a_tile_has_rows(steps, is_cut):
    module = function({"x": ("b", steps), "w": (steps, 64), "other": (64,)}, shifted)
    assert ("for piece in range(T.int64(8))" in scheduled(module)) == is_cut


@pytest.mark.parametrize("name", CASES)
def test_on_zen_only_what_the_epilogue_reads_is_asked_for(name):
    body, shape, wanted = CASES[name]
    script = scheduled(function({"x": ("b", 160), "w": (160, 64), "other": shape}, body), ZEN)
    assert asked_for(script) == sorted(wanted - {("x", False)})


# Sums that pieces divide and do not, one step included; batches that tiles divide and do not.
@pytest.mark.parametrize(
    ("columns", "steps", "target"),
    [
        *((97, 131, target) for target in TARGETS if target != "no tiles"),
        *((64, steps, "host") for steps in (1, 24, 64)),
    ],
)
def test_prefetching_changes_no_value(columns, steps, target):
    shapes = {"x": ("b", steps), "w": (steps, columns), "other": ("b", columns)}
    module = function(shapes, masked)
    run = compile_main(module, target)
    for batch in (1, 16, 150):
        x, w, mask = (a.astype("float64") for a in random_arguments(module, batch))
        result = run(*random_arguments(module, batch))
        assert_exact([result], [np.where(mask > 0, x @ w, 0)])


def test_a_left_operand_of_unknown_width_is_not_asked_for():
    script = scheduled(function({"x": (40, "b"), "w": ("b", 64), "other": (64,)}, shifted))
    assert "next_rows" not in script
