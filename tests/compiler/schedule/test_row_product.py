# SPDX-License-Identifier: Apache-2.0
"""Products summed over the batch: right at every extent, with sums of columns, however cut."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from sparsetrain.compiler.schedule.row_product import kernel as row_product_kernel
from sparsetrain.compiler.schedule.row_product.kernel import row_product
from sparsetrain.compiler.schedule.row_product.tiling import shape_of
from sparsetrain.runtime.compiling import compile_kernel
from tests.compiler.schedule.relax_programs import (
    TARGETS,
    assert_close,
    assert_exact,
    compile_main,
    function,
    random_arguments,
    rules_by_kernel,
)
from tests.helpers import slow_except

op = relax.op
# One chunk and none, half a one and a whole one of 128 rows, several with a rest.
BATCHES = (0, 1, 64, 128, 150, 300)


def _gradients(x, y):
    return relax.Tuple([op.matmul(op.permute_dims(y), x), op.sum(y, axis=0)])


# Inputs, outputs, target, dtype.
CASES = [
    (45, 70, "host", "float32"),
    (13, 37, "host", "float32"),
    (70, 13, "host", "float32"),
    (300, 8, "host", "float64"),
    (100, 70, "host", "float32"),
    (48, 16, "host", "float32"),
    (45, 70, "avx2", "float32"),
    (70, 8, "avx2", "float32"),
    (40, 30, "avx2", "float64"),
    (37, 13, "plain", "float32"),
]
QUICK = [CASES[0], CASES[3], CASES[7], CASES[9]]


@pytest.mark.parametrize("inputs, outputs, target, dtype", slow_except(QUICK, CASES))
def test_gradients_of_weight_and_bias_are_one_kernel(inputs, outputs, target, dtype):
    module = function({"x": ("b", inputs), "y": ("b", outputs)}, _gradients, dtype)
    assert rules_by_kernel(module, target) == {"matmul_tn": None}
    run = compile_main(module, target)
    for batch in BATCHES:
        x, y = random_arguments(module, batch)
        assert_exact(run(x, y), [y.T @ x, y.sum(0)])


def _both_sums(x, y):
    return relax.Tuple([op.sum(x, axis=0), op.collapse_sum_to(y, (37,)), _product(x, y)])


def _both_products(x, y):
    return relax.Tuple([_product(x, y), _product(y, x), op.sum(x, axis=0)])


def _product(x, y):
    return op.matmul(op.permute_dims(x), y)


# What is computed of x (b, 40) and y (b, 37), how many kernels it takes, and the same in NumPy.
TOGETHER = {
    "sums of both operands, before the product": (
        _both_sums,
        1,
        lambda x, y: [x.sum(0), y.sum(0), x.T @ y],
    ),
    "a product alone": (_product, 1, lambda x, y: [x.T @ y]),
    "a sum of rows": (
        lambda x, y: relax.Tuple([op.sum(y, axis=1), _product(x, y)]),
        2,
        lambda x, y: [y.sum(1), x.T @ y],
    ),
    "a sum that keeps its axis": (
        lambda x, y: relax.Tuple([op.sum(y, axis=0, keepdims=True), _product(x, y)]),
        2,
        lambda x, y: [y.sum(0, keepdims=True), x.T @ y],
    ),
    "a sum of everything": (
        lambda x, y: relax.Tuple([op.collapse_sum_to(y, (1,)), _product(x, y)]),
        2,
        lambda x, y: [y.sum(keepdims=True)[0], x.T @ y],
    ),
    "two products with one operand": (
        _both_products,
        2,
        lambda x, y: [x.T @ y, y.T @ x, x.sum(0)],
    ),
    "a matrix times itself": (
        lambda x, _: relax.Tuple([op.sum(x, axis=0), _product(x, x)]),
        1,
        lambda x, _: [x.sum(0), x.T @ x],
    ),
    "a sum that its product's other operand is made of": (
        lambda x, y: _product(x, op.add(y, op.sum(y, axis=0))),
        3,
        lambda x, y: [x.T @ (y + y.sum(0))],
    ),
}


JOINED = {"x": ("b", 40), "y": ("b", 37)}


@pytest.mark.parametrize("name", TOGETHER)
def test_a_product_takes_along_the_sums_that_it_can(name):
    body, kernels, _ = TOGETHER[name]
    rules = rules_by_kernel(function(JOINED, body))
    assert len(rules) == kernels
    assert "matmul_tn" in rules


APART = {"a sum of rows", "a sum that keeps its axis", "a sum of everything"}


@pytest.mark.parametrize("name", slow_except({*TOGETHER} - APART, TOGETHER))
def test_together_or_apart_they_are_numpys(name):
    body, _, reference = TOGETHER[name]
    module = function(JOINED, body)
    arguments = random_arguments(module, 70)
    found = compile_main(module)(*arguments)
    found = [found] if isinstance(found, np.ndarray) else found
    assert_exact(found, reference(*(a.astype("float64") for a in arguments)))


@pytest.mark.parametrize(
    "parameters",
    [
        {"x": ("b", 3), "y": ("b", 5)},  # less than a vector
        {"x": (30, 40), "y": (30, 40)},  # a short sum
        {"x": (300, "b"), "y": (300, 40)},  # rows that only a call knows
    ],
)
def test_other_products_are_left_to_the_rules(parameters):
    module = function(parameters, _product)
    assert set(rules_by_kernel(module).values()) <= {"Matmul", "SingleReduction"}


@pytest.mark.parametrize(
    ("rows", "target", "window"),
    [(45, "avx2", 8), (8, "avx2", 8), (7, "avx2", 6), (4, "avx2", 4), (7, "plain", 6)],
)
def test_a_tile_reads_a_power_of_two_of_numbers_if_there_are_as_many(rows, target, window):
    assert shape_of(rows, 64, "float32", TARGETS[target]).window == window


def test_tiles_of_avx512_read_what_they_multiply():
    wide = tvm.target.Target({"kind": "llvm", "mcpu": "znver5"})
    shapes = [shape_of(rows, 64, "float32", wide) for rows in range(4, 40)]
    assert all(shape.window == shape.height and shape.chunk == 128 for shape in shapes)


@pytest.mark.parametrize("target", ["avx2", "plain"])
def test_products_of_many_sizes_share_a_kernel(target):
    sizes = [(64, 128), (50, 50), (512, 367), (13, 1000)]
    assert len({shape_of(*size, "float32", TARGETS[target]) for size in sizes}) == 1


@pytest.mark.parametrize("flipped", slow_except([True], [False, True]))
def test_bits_do_not_depend_on_how_a_product_is_cut(flipped, monkeypatch):
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((200, n)).astype("f") for n in (70, 141))
    shape = shape_of(70, 141, "float32", TARGETS["host"])
    results = []
    for cut in ((1, 1), (4, 3)):
        blocks = [tirx.const(number, "int64") for number in cut]
        monkeypatch.setattr(row_product_kernel, "cut", lambda *_, blocks=blocks: blocks)
        results.append(_computed(shape, left, right, flipped))
    assert_exact(*results)
    exact = [a.astype("f8") for a in (left, right)]
    product = exact[0].T @ exact[1]
    wanted = [exact[0].sum(0), exact[1].sum(0), product.T if flipped else product]
    assert_close(results[0], wanted)


def _computed(shape, left, right, flipped):
    kernel = row_product(shape, "float32", flipped=flipped, sums=(True, True))
    size = (left.shape[1], right.shape[1])
    outs = [size[:1], size[1:], size[::-1] if flipped else size]
    outs = [tvm.runtime.tensor(np.full(out, np.nan, "f")) for out in outs]
    run = compile_kernel(kernel, TARGETS["host"])
    run(tvm.runtime.tensor(left), tvm.runtime.tensor(right), *outs)
    return [out.numpy() for out in outs]
