# SPDX-License-Identifier: Apache-2.0
"""The cross interaction in float64: NumPy's numbers, and gradients by central differences."""

import numpy as np
import pytest
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain.ad import check_grads
from sparsetrain.models import CrossInteraction
from sparsetrain.runtime import as_numpy
from tests.models.interactions import cross_in_numpy

pytestmark = pytest.mark.slow  # `test_dlrm` has both for layers in a model, in float32
FEATURES, DIM, LAYERS, RANK = 3, 5, 2, 4
BATCH, WIDTH = 7, (FEATURES + 1) * DIM


class Probe(nn.Module):
    """The sum of the interaction's results, each times a number."""

    def __init__(self):
        self.cross = CrossInteraction(FEATURES, DIM, LAYERS, RANK, dtype="float64")

    def forward(self, factors, x, e):
        return nn.op.sum(nn.op.multiply(self.cross(x, e), factors))


@pytest.fixture(scope="module")
def probe():
    """The program, parameters by name, and its inputs."""
    made = Probe()
    shapes = {"factors": (WIDTH,), "x": (DIM,), "e": (FEATURES, DIM)}
    specs = {n: nn.spec.Tensor(["B", *shape], "float64") for n, shape in shapes.items()}
    module, parameters = made.export_tvm({"forward": specs})
    rng = np.random.default_rng(0)
    params = {name: rng.standard_normal([*map(int, p.shape)]) for name, p in parameters}
    inputs = {name: rng.standard_normal((BATCH, *shape)) for name, shape in shapes.items()}
    program = st.value_and_grad(module, "forward", [*params, "x", "e"])
    return program, params, inputs


def test_it_is_the_formula_in_numpy(probe):
    program, params, inputs = probe
    parts = ("v.weight", "w.weight", "w.bias")
    layers = [[params[f"cross.layers.{n}.{part}"] for part in parts] for n in range(LAYERS)]
    met = cross_in_numpy(layers, inputs["x"], inputs["e"])
    loss, _ = program(params, inputs)
    assert float(as_numpy(loss)) == pytest.approx((met * inputs["factors"]).sum(), rel=1e-12)


def test_its_gradients_are_central_differences(probe):
    program, params, inputs = probe
    both = {**params, "x": inputs["x"], "e": inputs["e"]}
    check_grads(program, both, {"factors": inputs["factors"]})
