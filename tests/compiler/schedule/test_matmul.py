# SPDX-License-Identifier: Apache-2.0
"""Products in the three forms, on every kind of CPU, at friendly and unfriendly extents."""

import re

import numpy as np
import pytest
from tvm import relax, tirx

from sparsetrain.compiler.schedule.matmul import Matmul
from tests.compiler.schedule.relax_programs import (
    TARGETS,
    assert_close,
    assert_exact,
    compile_main,
    function,
    linear_forms,
    random_arguments,
    rules_by_kernel,
    run_passes,
)
from tests.helpers import slow_except

BATCHES = (1, 7, 128, 300)
LAYERS = [(13, 64), (367, 40), (64, 1), (1, 33)]


@pytest.mark.parametrize("inputs, outputs", slow_except([(367, 40), (1, 33)], LAYERS))
def test_one_compile_serves_every_batch_size_in_three_forms(inputs, outputs):
    module = linear_forms(inputs, outputs)
    run = compile_main(module)
    for batch in BATCHES:
        x, w, ct = random_arguments(module, batch)
        exact = [a.astype("float64") for a in (x, w, ct)]
        assert_exact(run(x, w, ct), _products(*exact))


OTHER_TARGETS = [
    ("avx2", "float32"),
    ("plain", "float32"),
    ("host", "float64"),
    ("plain", "float64"),
]


@pytest.mark.parametrize(
    "target, dtype", slow_except([("avx2", "float32"), ("plain", "float64")], OTHER_TARGETS)
)
def test_products_are_right_on_every_target_and_dtype(target, dtype):
    module = linear_forms(37, 21, dtype)
    run = compile_main(module, target)
    for batch in (1, 50):
        x, w, ct = random_arguments(module, batch)
        exact = [a.astype("float64") for a in (x, w, ct)]
        assert_exact(run(x, w, ct), _products(*exact))


@pytest.mark.parametrize(("steps", "columns"), [(24, 64), (131, 97)])
def test_an_epilogue_may_read_what_is_as_large_as_the_result(steps, columns):
    def masked(x, w, other):
        zero = relax.const(0.0, "float32")
        return op.where(op.greater(other, zero), op.matmul(x, w), zero)

    module = function({"x": ("b", steps), "w": (steps, columns), "other": ("b", columns)}, masked)
    run = compile_main(module)
    for batch in (1, 150):
        x, w, mask = (a.astype("float64") for a in random_arguments(module, batch))
        result = run(*random_arguments(module, batch))
        assert_exact([result], [np.where(mask > 0, x @ w, 0)])


def test_what_is_not_a_number_stays_in_its_row():
    module = linear_forms(16, 20)
    x, w, ct = random_arguments(module, 9)
    x[3] = np.nan
    forward, _, _ = compile_main(module)(x, w, ct)
    assert np.isnan(forward[3]).all()
    assert np.isfinite(np.delete(forward, 3, axis=0)).all()


op = relax.op


def scheduled(parameters, body, target):
    """The text of the one kernel of a function, as the rule schedules it."""
    kernels = run_passes(function(parameters, body), until="ApplyRules")
    (kernel,) = (f for _, f in kernels.functions_items() if isinstance(f, tirx.PrimFunc))
    return Matmul().apply(kernel, TARGETS[target], False).mod.script()


@pytest.mark.parametrize(
    "weight, body",
    [
        ((600, 128), op.matmul),
        ((128, 600), lambda x, w: op.matmul(x, op.permute_dims(w))),
    ],
    ids=["NN", "NT"],
)
def test_tasks_that_follow_each_other_pack_the_same_columns(weight, body):
    script = scheduled({"x": ("b", 600), "w": weight}, body, "host")
    # Of 600 steps a task takes 256, so three tasks share columns.
    places = re.findall(r"_fused (//|%) T\.int64\(3\) \* T\.int64\((\d+)\)", script)
    assert ("%", "256") in places
    assert any(sign == "//" for sign, _ in places)
    assert ("//", "256") not in places


@pytest.mark.parametrize("target", ["host", "avx2", "plain"])
def test_blocks_of_a_power_of_two_of_rows_are_as_large_as_each_other(target):
    script = scheduled({"x": ("b", 32), "w": (32, 64)}, op.matmul, target)
    (block,) = map(int, re.findall(r"T\.parallel\(.*// T\.int64\((\d+)\) \*", script))
    for rows in (128, 256, 512, 1024, 2048):
        assert rows / (-(-rows // block) * block) > 0.9


@pytest.mark.parametrize("target", ["host", "avx2", "plain"])
def test_columns_that_no_vector_divides_are_packed_as_vectors_all_the_same(target):
    script = scheduled({"x": ("b", 32), "w": (32, 45)}, op.matmul, target)
    # One test of where a vector ends, for all of its numbers.
    assert re.search(r"\(v1 // T\.int64\((\d+)\) \+ T\.int64\(1\)\) \* T\.int64\(\1\) <= ", script)


def test_only_vectors_across_the_last_column_are_stored_number_by_number():
    odd, even = (
        scheduled({"x": ("b", 32), "w": (32, columns)}, op.matmul, "host") for columns in (45, 48)
    )
    # The pass `LoopPartition` gives vectors inside the bounds a loop without checks of numbers.
    assert "loop_partition_hint" in odd and "loop_partition_hint" not in even


STACKED = {"x": ("b", 5, 12), "y": ("b", 12, 9), "w": (12, 9), "q": ("b", 20)}
OTHERS = {
    "a product with a static row count": (
        {"x": (24, 12), "w": (12, 40)},
        lambda x, w: op.matmul(x, w),
        lambda x, w: x @ w,
    ),
    "one weight for a stack of matrices": (
        {"x": STACKED["x"], "w": STACKED["w"]},
        lambda x, w: op.nn.relu(op.matmul(x, w)),
        lambda x, w: np.maximum(x @ w, 0),
    ),
    "a stack of products": (
        {"x": STACKED["x"], "y": STACKED["y"]},
        op.matmul,
        lambda x, y: x @ y,
    ),
    "a product whose columns are the batch": (
        {"q": STACKED["q"]},
        lambda q: op.matmul(q, op.permute_dims(q)),
        lambda q: q @ q.T,
    ),
    "a product followed by its transpose": (
        {"q": STACKED["q"], "w": (20, 24)},
        lambda q, w: op.permute_dims(op.matmul(q, w)),
        lambda q, w: (q @ w).T,
    ),
    "a product scaled, shifted and squashed": (
        {"q": STACKED["q"], "w": (20, 24), "c": (24,)},
        lambda q, w, c: op.tanh(op.add(op.multiply(op.matmul(q, w), c), c)),
        lambda q, w, c: np.tanh((q @ w) * c + c),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_are_scheduled_as_products_too(name):
    parameters, body, reference = OTHERS[name]
    module = function(parameters, body)
    assert "Matmul" in rules_by_kernel(module).values()
    run = compile_main(module)
    for batch in (1, 33):
        arguments = random_arguments(module, batch)
        assert_close([run(*arguments)], [reference(*(a.astype("float64") for a in arguments))])


def _products(x, w, ct):
    return [x @ w.T, ct @ w, ct.T @ x]
