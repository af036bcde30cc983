# SPDX-License-Identifier: Apache-2.0
"""Temporary arrays of a function become its arguments: the same results, no allocation."""

import numpy as np
import pytest
import tvm
from tvm import relax

from sparsetrain import runtime
from sparsetrain.compiler.program import Program
from sparsetrain.compiler.schedule import pipeline
from tests.compiler.schedule.relax_programs import (
    TARGETS,
    compile_main,
    function,
    mlp,
    random_arguments,
)
from tests.helpers import slow_except

op = relax.op
SHAPES = {"x": ("b", 6), "w": (4, 6)}


def _hidden(x, w):
    return op.nn.relu(op.matmul(x, op.permute_dims(w)))


def _shown_in_another_shape(x, w):
    hidden = op.matmul(_hidden(x, w), w)  # (b, 6)
    pairs = op.reshape(hidden, (x.ty.shape[0] * 3, 2))
    return op.matmul(op.reshape(pairs, (x.ty.shape[0], 6)), op.permute_dims(w))


def _leaves_in_another_shape(x, w):
    hidden = op.matmul(_hidden(x, w), w)
    return relax.Tuple([op.sum(hidden), op.reshape(hidden, (x.ty.shape[0] * 3, 2))])


def _leaves_twice(x, w):
    hidden = _hidden(x, w)
    return relax.Tuple([hidden, op.matmul(hidden, w), hidden])


PROGRAMS = {  # what it computes, and how many arrays leave it
    "layers": (mlp(5, 32, 3), 6),
    "shown in another shape": (function(SHAPES, _shown_in_another_shape), 1),
    "leaves in another shape": (function(SHAPES, _leaves_in_another_shape), 2),
    "leaves twice": (function(SHAPES, _leaves_twice), 2),
    "only its argument": (function({"x": ("b", 6)}, lambda x: op.reshape(x, (-1,))), 0),
}


def _called(function):
    """The operators and runtime functions that a lowered function calls."""
    names = []
    relax.analysis.post_order_visit(
        function,
        lambda e: (
            names.append(str(getattr(e.op, "name", getattr(e.op, "global_symbol", ""))))
            if isinstance(e, relax.Call)
            else None
        ),
    )
    return names


@pytest.mark.parametrize("name", PROGRAMS)
def test_only_what_leaves_a_function_is_allocated_in_it(name):
    module, leaving = PROGRAMS[name]
    lowered = pipeline(TARGETS["host"], "main")(module)["main"]
    called = _called(lowered)
    assert called.count("relax.vm.alloc_tensor") == leaving


@pytest.mark.parametrize("name", slow_except({*PROGRAMS} - {"layers"}, PROGRAMS))
def test_results_are_those_of_a_function_that_allocates_whatever_sizes_follow(name):
    module, _ = PROGRAMS[name]
    program, plain = Program(module, "main"), compile_main(module)
    for batch in (5, 40, 1, 41, 5):
        arrays = random_arguments(module, batch, seed=batch)
        given = dict(zip(program.arguments.by_name, arrays, strict=True))
        found, wanted = _all(program(given, {})), _all(plain(*arrays))
        for mine, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(mine, other)


def _all(result):
    several = isinstance(result, (list, tvm.ir.Array))
    return [a.numpy() if hasattr(a, "numpy") else a for a in (result if several else [result])]


def _all_but_the_last_row(x, w):
    hidden = op.matmul(x, op.permute_dims(w))
    shorter = op.strided_slice(hidden, [0], [0], [x.ty.shape[0] - 1])
    return op.matmul(op.nn.relu(shorter), w)


def test_a_slice_may_end_where_a_letter_says():
    program = Program(function(SHAPES, _all_but_the_last_row), "main", "cpu")
    for batch in (5, 1, 40):
        x, w = random_arguments(program.module, batch, seed=batch)
        expected = np.maximum(x[:-1] @ w.T, 0) @ w
        found = program({"x": x, "w": w}, {}).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_next_call_does_not_write_into_results():
    module, _ = PROGRAMS["leaves twice"]
    program = Program(module, "main", "cpu")
    first, second = (
        program(dict(zip("xw", random_arguments(module, 9, seed), strict=True)), {})
        for seed in (1, 2)
    )
    kept = [runtime.as_numpy(array).copy() for array in first]
    program(dict(zip("xw", random_arguments(module, 9, 3), strict=True)), {})
    for array, copy in zip(first, kept, strict=True):
        np.testing.assert_array_equal(runtime.as_numpy(array), copy)
    assert first[0].data_ptr() != second[0].data_ptr()
