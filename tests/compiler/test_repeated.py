# SPDX-License-Identifier: Apache-2.0
"""Equal rows of numbers are computed once, and the rows of a batch have the same bits."""

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.relax import op

from sparsetrain.compiler.dead_rows import (
    ROW_NUMBERS,
    compute_repeated_once,
    repeated_arguments,
)
from sparsetrain.compiler.program import Program
from sparsetrain.ops.operand_shapes import name_of

B, U = 12, 5
NUMBERS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 4, 4])
FLOATS = {"x": ["B", 4], "y": ["B", 3], "vectors": ["B", 2, 6]}
PARAMS = {"weight": [4, 6], "bias": [6], "scale": [1, 6], "square": [6, 6]}


def values(rows):
    rng = np.random.default_rng(0)
    found = {name: rng.normal(size=[rows, *shape[1:]]) for name, shape in FLOATS.items()}
    found |= {name: rng.normal(size=shape) for name, shape in PARAMS.items()}
    return {name: array.astype("f4") for name, array in found.items()}


class Scope(dict):
    """The arguments by name, as attributes."""

    __getattr__ = dict.__getitem__


def module_of(make, letters=("B", "B", "B")):
    builder, given = relax.BlockBuilder(), Scope(emit=None)
    extents = {letter: tirx.Var(letter, "int64") for letter in letters}
    for (name, shape), letter in zip(
        (FLOATS | PARAMS).items(), (*letters, *[""] * len(PARAMS)), strict=True
    ):
        sizes = [extents[letter] if size == "B" else size for size in shape]
        given[name] = relax.Var(name, relax.TensorType(sizes, "float32"))
    arguments = [given[name] for name in (*FLOATS, *PARAMS)]
    given["emit"] = builder.emit
    with builder.function("main", arguments, attrs={"num_input": len(FLOATS)}):
        with builder.dataflow():
            output = builder.emit_output(make(given))
        builder.emit_func_output(output)
    return builder.get()


def layer(s):
    return s.emit(op.add(s.emit(op.matmul(s.x, s.weight)), s.bias))


def beside_vectors(s, rows):
    """Rows beside a value of all rows, which ends the work on few."""
    return op.add(s.vectors, s.emit(op.expand_dims(rows, 1)))


def halves(s):
    parts = s.emit(op.split(layer(s), 2, axis=1))
    left, right = (s.emit(relax.TupleGetItem(parts, n)) for n in range(2))
    return beside_vectors(s, s.emit(op.concat([right, left], axis=1)))


def tuple_beside(s):
    """Both a tuple and its parts are read by an operator without a rule."""
    parts = s.emit(op.split(layer(s), 2, axis=1))
    left = s.emit(relax.TupleGetItem(parts, 0))
    both = s.emit(op.concat(parts, axis=0))
    return op.concat([both, left], axis=0)


def of_two_inputs(s):
    rows = s.emit(op.concat([layer(s), s.y], axis=1))
    return op.concat([rows, s.emit(op.reshape(s.vectors, [s.x.ty.shape[0], 12]))], axis=1)


CASES = {
    "a product": lambda s: beside_vectors(s, layer(s)),
    "elementwise": lambda s: beside_vectors(
        s, s.emit(op.multiply(s.scale, s.emit(op.tanh(layer(s)))))
    ),
    "norm": lambda s: beside_vectors(s, s.emit(op.nn.softmax(layer(s), axis=-1))),
    "split and concat": halves,
    "a tuple": tuple_beside,
    "two inputs": of_two_inputs,
    "the result": layer,
    "rows and all rows": lambda s: op.add(
        layer(s), s.emit(op.sum(layer(s), axis=[0], keepdims=True))
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_of_the_batch_have_the_same_bits(case):
    module, few = module_of(CASES[case]), values(U)
    whole = (
        few | {name: few[name][NUMBERS] for name in ("x", "y")} | {"vectors": values(B)["vectors"]}
    )
    program = Program(compute_repeated_once(module, "main"), "main", "cpu")
    assert repeated_arguments(program.arguments) == ["x", "y"]
    expected = Program(module, "main", "cpu")({}, whole).numpy()
    inputs = whole | {"x": few["x"], "y": few["y"], ROW_NUMBERS: NUMBERS}
    assert program({}, inputs).numpy().tobytes() == expected.tobytes()


def test_products_run_on_the_rows_of_the_inputs():
    module = compute_repeated_once(module_of(CASES["split and concat"]), "main")
    shapes = {
        binding.value.op.name: str(binding.var.ty.shape[0])
        for binding in module["main"].body.blocks[0].bindings
        if name_of(binding.value) in ("relax.matmul", "relax.concat", "relax.take")
    }
    assert shapes["relax.matmul"] == shapes["relax.concat"] == "distinct_rows"
    assert shapes["relax.take"] == "B"


UNCHANGED = {
    "no product": lambda s: op.concat([s.x, s.y], axis=1),
    "a product of vectors": lambda s: op.matmul(s.emit(op.sum(s.vectors, axis=[1])), s.square),
}


@pytest.mark.parametrize("case", UNCHANGED)
def test_a_function_without_products_of_such_rows_stays(case):
    module = module_of(UNCHANGED[case])
    assert compute_repeated_once(module, "main") is module


def test_inputs_of_different_numbers_of_rows_stay():
    module = module_of(layer, letters=("A", "B", "B"))
    assert compute_repeated_once(module, "main") is module
