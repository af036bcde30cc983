# SPDX-License-Identifier: Apache-2.0
"""Products in float32: every form, odd sizes, what follows them, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx

from tests.cuda import device
from tests.cuda.reshaped import RESHAPED
from tests.cuda.test_kernels import in_every_order, there
from tests.helpers import slow_except

BATCH = 131
# Name -> whether left and right are transposed; rows, columns and terms, None for the batch; what
# follows. Large tiles and small, whole vectors and single numbers, one turn of the loop and
# several, pieces of a sum over the batch.
CASES = {
    "nt": ("nt", None, 130, 72, None),
    "nt_narrow": ("nt", None, 5, 13, None),
    "nt_followed": ("nt", None, 68, 33, "bias"),
    "nn_odd": ("nn", None, 67, 9, "mask"),
    "tn": ("tn", 130, 70, None, None),
    "tn_narrow": ("tn", 16, 13, None, None),
    "tt": ("tt", 66, None, 40, None),
    "nn_cut": ("nn", None, 130, 9, "columns"),
    "tn_cut": ("tn", 20, 66, 100, "rows"),
    "nt_more": ("nt", None, 24, 33, "padding"),
}


QUICK = ("nt_followed", "nn_odd", "tn", "tt", "nn_cut")


def add_product(builder: relax.BlockBuilder, name: str) -> None:
    """A function of one product."""
    form, *sizes, followed = CASES[name]
    batch = tirx.Var("B", "int64")
    rows, columns, terms = (batch if extent is None else extent for extent in sizes)
    shapes = [(rows, terms), (terms, columns)]
    arguments = [
        relax.Var(argument, relax.TensorType(shape if letter == "n" else shape[::-1], "float32"))
        for argument, shape, letter in zip("ab", shapes, form, strict=True)
    ]
    bias = relax.Var("bias", relax.TensorType((columns,), "float32"))
    mask = relax.Var("mask", relax.TensorType((rows, columns), "float32"))
    more = {"bias": [bias], "mask": [mask]}.get(followed, [])
    with builder.function(name, arguments + more):
        with builder.dataflow():
            factors = [
                builder.emit(relax.op.permute_dims(argument)) if letter == "t" else argument
                for argument, letter in zip(arguments, form, strict=True)
            ]
            out = builder.emit(relax.op.matmul(*factors))
            if followed == "bias":
                out = builder.emit(relax.op.nn.relu(builder.emit(relax.op.add(out, bias))))
            if followed == "mask":
                zero = relax.const(0.0, "float32")
                out = builder.emit(relax.op.where(relax.op.greater(mask, zero), out, zero))
            if followed in RESHAPED:
                out = builder.emit(RESHAPED[followed].operator(out))
            out = builder.emit_output(out)
        builder.emit_func_output(out)


@pytest.fixture(scope="module")
def machine():
    """Quick products in one program, the others in another."""
    return device.in_two_programs(QUICK, CASES, add_product)


@pytest.mark.parametrize("name", slow_except(QUICK, CASES))
def test_a_product_is_that_of_the_matrices(cuda, machine, name):
    form, *sizes, followed = CASES[name]
    rows, columns, terms = (BATCH if extent is None else extent for extent in sizes)
    rng = np.random.default_rng(len(name))
    given = [rng.standard_normal(s).astype("f4") for s in ((rows, terms), (terms, columns))]
    laid_out = [a.T.copy() if letter == "t" else a for a, letter in zip(given, form, strict=True)]
    shapes = {"bias": [(columns,)], "mask": [(rows, columns)]}.get(followed, [])
    more = [rng.standard_normal(shape).astype("f4") for shape in shapes]
    arguments = [there(array, "cuda") for array in laid_out + more]
    found = in_every_order("cuda", lambda: machine(name)(*arguments).numpy())
    left, right = (array.astype("f8") for array in given)
    expected, scale = left @ right, np.abs(left) @ np.abs(right) + 1
    if followed == "bias":
        expected = np.maximum(expected + more[0], 0)
    if followed == "mask":
        expected = np.where(more[0] > 0, expected, 0)
    if followed in RESHAPED:
        expected, scale = map(RESHAPED[followed].reference, (expected, scale))
    assert (np.abs(found - expected) <= 1e-6 * scale).all()
