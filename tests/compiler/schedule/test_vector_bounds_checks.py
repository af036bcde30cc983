# SPDX-License-Identifier: Apache-2.0
"""Packing guards a vector, not each of its elements."""

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


def product(columns):
    return function({"x": ("b", 24), "w": (24, columns)}, relax.op.matmul)


def scheduled(module):
    kernels = run_passes(module, until="ApplyRules")
    (kernel,) = (f for _, f in kernels.functions_items() if isinstance(f, tirx.PrimFunc))
    return Matmul().apply(kernel, TARGETS["host"], False).mod.script()


def test_only_an_operand_that_is_padded_is_copied_in_two_ways():
    assert 'T.sblock("copy")' in scheduled(product(77))
    assert 'T.sblock("copy")' not in scheduled(product(64))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [2, 15, 17, 31, 33, 47, 77])
def test_products_with_a_part_of_a_vector_at_the_end_are_right(columns, target):
    module = product(columns)
    x, w = random_arguments(module, 11)
    assert_exact([compile_main(module, target)(x, w)], [x @ w])
