# SPDX-License-Identifier: Apache-2.0
"""Promises of the derivatives of indexing, besides agreement with central differences."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.relax import op

import sparsetrain as st
from sparsetrain.ad.dense_rules.by_ids import RULES
from sparsetrain.ad.vjp_rules import DENSE
from sparsetrain.ops.indexing.reads import LEGALIZE
from tests.helpers import assert_same_bits, slow_except
from tests.ops.indexing.programs import TARGETS, module, of_variables

GUIDE = Path(__file__).parents[3] / "docs" / "models.md"


def gradients(body, arrays, wrt, target="cpu"):
    """Of the sum of squares of what the body gives; its ids are computed."""

    def loss(*given):
        y = body(*given)
        return op.sum(op.multiply(y, y))

    program = st.value_and_grad(module(loss, arrays, computed=True), "out", wrt, target=target)
    params = {name: arrays[name] for name in wrt}
    return {n: g.numpy() for n, g in program(params, arrays)[1].items()}


@pytest.mark.parametrize("target", slow_except(["llvm"], TARGETS), indirect=True)
def test_what_take_reads_outside_gets_no_gradient_and_writes_nowhere(target):
    def body(x, ids):
        read = op.take(op.exp(x), ids, axis=1)
        return op.where(op.isnan(read), relax.const(0.0), read)

    given = {"x": np.zeros((3, 3), "float32"), "ids": np.array([0, 2**40, -1, 2, -4])}
    np.testing.assert_array_equal(gradients(body, given, ["x"], target)["x"], [[2, 0, 4]] * 3)


# What is read, and its ids, in a batch that only the call tells.
BATCHES = {
    "take of the last axis": (lambda x, ids: op.take(op.exp(x), ids, axis=2), (4,)),
    "take of a middle axis": (lambda x, ids: op.take(op.exp(x), ids, axis=1), (2, 3)),
    "gather_elements": (lambda x, ids: op.gather_elements(x, ids, axis=1), ("B", 4, 5)),
    "gather_nd by batches": (lambda x, ids: op.gather_nd(x, ids, batch_dims=1), ("B", 6, 1)),
    "gather_nd of one id": (lambda x, ids: op.gather_nd(x, ids, batch_dims=2), ("B", 3, 1)),
}


QUICK = [
    ("take of a middle axis", "llvm"),
    ("gather_elements", "llvm"),
    *(("gather_nd by batches", target) for target in TARGETS),
]


@pytest.mark.parametrize(
    ("name", "target"), slow_except(QUICK, product(BATCHES, TARGETS)), indirect=["target"]
)
def test_a_batch_has_the_gradient_of_each_of_its_parts(name, target):
    body, lead = BATCHES[name]

    def loss(x, ids):
        return op.sum(op.square(body(x, ids)))

    letters = {"B": tirx.Var("B", "int64")}
    shapes = {"x": ("B", 3, 5), "ids": lead}
    types = {"x": "float32", "ids": "int64"}
    arguments = [
        relax.Var(n, relax.TensorType([letters.get(k, k) for k in shape], types[n]))
        for n, shape in shapes.items()
    ]
    program = st.value_and_grad(of_variables(loss, arguments), "out", ["x"], target=target)

    def gradient(size):
        x, ids = (a[:size] if "B" in shapes[n] else a for n, a in arrays.items())
        return program({"x": x}, {"ids": ids})[1]["x"].numpy()

    sizes = [[7 if k == "B" else k for k in shape] for shape in shapes.values()]
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=sizes[0]).astype("float32"), "ids": rng.integers(0, 3, sizes[1])}
    whole = gradient(7)
    assert_same_bits(gradient(1), whole[:1])
    assert gradient(0).shape == (0, 3, 5)


def test_all_that_goes_by_ids_has_a_derivative_and_the_guide_does_not_deny_it():
    assert set(LEGALIZE) <= set(DENSE)
    text = GUIDE.read_text()
    denied = re.search(r"\*\*Derivatives\.\*\*.*?have no derivative", text, re.DOTALL)
    named = {f"relax.{name}" for name in re.findall(r"`([\w*]+)`", denied.group())}
    assert not named & set(RULES)
