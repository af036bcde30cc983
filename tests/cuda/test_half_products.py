# SPDX-License-Identifier: Apache-2.0
"""Products of halves on tensor cores: every form, odd sizes, stored or rounded, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import sparsetrain as st
from sparsetrain.backends.cuda import device as gpu
from sparsetrain.compiler.precision import BFLOAT16
from sparsetrain.data import Batch
from sparsetrain.errors import ConfigError
from sparsetrain.runtime.tensors import to_device
from tests.cuda import device
from tests.cuda.reshaped import RESHAPED
from tests.cuda.test_kernels import in_every_order, there
from tests.helpers import slow_except
from tests.small_dlrm import assert_same_state

BATCH = 131
# Name -> dtype; whether left and right are transposed, and whether memory holds them as halves;
# rows, columns and terms, None for the batch. Large tiles and small, whole vectors and single
# numbers, one turn of the loop and several, pieces of a sum over the batch.
CASES = {
    "nt": ("bfloat16", "nt", "hf", None, 130, 72),
    "nt_narrow": ("bfloat16", "nt", "ff", None, 5, 13),
    "nn_odd": ("bfloat16", "nn", "hf", None, 67, 9),
    "tn": ("bfloat16", "tn", "hh", 130, 70, None),
    "tn_narrow": ("bfloat16", "tn", "hf", 16, 13, None),
    "tt": ("bfloat16", "tt", "ff", 66, None, 40),
    "nt_f16": ("float16", "nt", "hf", None, 66, 40),
    "nn_f16": ("float16", "nn", "hh", None, 67, 12),
    "tn_f16": ("float16", "tn", "fh", 36, 40, None),
    "nn_cut": ("float16", "nn", "ff", None, 130, 9),
    "tn_cut": ("bfloat16", "tn", "hf", 20, 66, 100),
    "nt_more": ("bfloat16", "nt", "ff", None, 24, 33),
}
FOLLOWED = ("nt_f16", "nn_f16")  # by a ReLU, and by rounding
OTHERS = {"nn_cut": "columns", "tn_cut": "rows", "nt_more": "padding"}


QUICK = ("nt", "nn_f16", "tn_f16", "tt", "tn_cut")


def add_product(builder: relax.BlockBuilder, name: str) -> None:
    """A function of one product; what memory is to hold as halves is computed first."""
    half, form, held, *sizes = CASES[name]
    batch = tirx.Var("B", "int64")
    rows, columns, terms = (batch if extent is None else extent for extent in sizes)
    shapes = [(rows, terms), (terms, columns)]
    arguments = [
        relax.Var(argument, relax.TensorType(shape if letter == "n" else shape[::-1], "float32"))
        for argument, shape, letter in zip("ab", shapes, form, strict=True)
    ]
    with builder.function(name, arguments, attrs={"num_input": 2}):
        with builder.dataflow():
            factors = []
            for argument, hold, letter in zip(arguments, held, form, strict=True):
                value = builder.emit(relax.op.nn.relu(argument)) if hold == "h" else argument
                rounded = builder.emit(relax.op.astype(value, half))
                flipped = builder.emit(relax.op.permute_dims(rounded)) if letter == "t" else rounded
                factors.append(flipped)
            out = builder.emit(relax.op.matmul(*factors, out_dtype="float32"))
            if name in FOLLOWED:
                out = builder.emit(relax.op.astype(relax.op.nn.relu(out), half))
            if name in OTHERS:
                out = builder.emit(RESHAPED[OTHERS[name]].operator(out))
            out = builder.emit_output(out)
        builder.emit_func_output(out)


@pytest.fixture(scope="module")
def machine():
    """Quick products in one program, the others in another."""
    return device.in_two_programs(QUICK, CASES, add_product)


def rounded(array: np.ndarray, half: str) -> np.ndarray:
    """The nearest halves, ties to even, in float64."""
    if half == "float16":
        return array.astype("f2").astype("f8")
    bits = array.view("u4")
    bits = (bits + ((bits >> 16) & 1) + 0x7FFF) & 0xFFFF0000
    return bits.astype("u4").view("f4").astype("f8")


@pytest.mark.parametrize("name", slow_except(QUICK, CASES))
def test_a_product_is_that_of_the_rounded_matrices(cuda, machine, name):
    half, form, held, *sizes = CASES[name]
    rows, columns, terms = (BATCH if extent is None else extent for extent in sizes)
    rng = np.random.default_rng(len(name))
    given = [rng.standard_normal(s).astype("f4") for s in ((rows, terms), (terms, columns))]
    laid_out = [a.T.copy() if letter == "t" else a for a, letter in zip(given, form, strict=True)]
    arguments = [there(array, "cuda") for array in laid_out]
    found = in_every_order("cuda", lambda: machine(name)(*arguments).numpy())
    seen = [np.maximum(a, 0) if hold == "h" else a for a, hold in zip(given, held, strict=True)]
    left, right = (rounded(array, half) for array in seen)
    expected, scale = left @ right, np.abs(left) @ np.abs(right)
    if name in FOLLOWED:
        expected = np.maximum(expected, 0)
    if name in OTHERS:
        expected, scale = map(RESHAPED[OTHERS[name]].reference, (expected, scale))
    close = 1e-3 if name in FOLLOWED else 1e-6
    assert (np.abs(found.astype("f8") - expected) <= close * scale).all()


def model() -> st.models.DLRM:
    """A layer with large tiles, one with small, and one of a column, which is not rounded."""
    return st.models.DLRM(rows=[50, 20], dim=8, bottom=(), top=(72,), num_dense=13)


def batch(size: int) -> Batch:
    rng = np.random.default_rng(size)
    dense = rng.standard_normal((size, 13), dtype=np.float32)
    return Batch(dense, rng.integers(0, 20, (size, 2)), dense[:, 0] + dense[:, 1] > 0)


def trainer(**options) -> st.Trainer:
    return st.Trainer(model(), st.optim.adagrad(0.05), target="cuda", **options)


@pytest.mark.slow
def test_loss_and_gradients_are_those_of_the_same_rounding_on_the_cpu(cuda):
    dlrm = model()
    params, inputs = dlrm.initialize(0), dlrm.inputs(batch(70))
    expected = values(
        st.value_and_grad(dlrm.export(), "loss", target="cpu", precision=BFLOAT16)(params, inputs)
    )
    there = {name: to_device(param, tvm.cuda()) for name, param in params.items()}
    found = values(trainer(precision="bf16").program(there, inputs))
    for name, array in expected.items():
        # Sums in another order may round to another half further on: an ulp of a few numbers.
        assert np.linalg.norm(found[name] - array) < 1e-2 * np.linalg.norm(array), name


def values(result) -> dict[str, np.ndarray]:
    loss, gradients = result
    arrays = {name: getattr(g, "values", g).numpy() for name, g in gradients.items()}
    return {"loss": loss.numpy(), **arrays}


@pytest.mark.slow
def test_training_in_fp16_learns_and_repeats_its_bits_whoever_runs_first(cuda):
    trainers = [trainer(precision="fp16") for _ in range(2)]
    losses = []
    for one, order in zip(trainers, (0, 7), strict=True):
        one.program = trainers[0].program
        with device.threads_in_order(order):
            losses.append([float(one.step(batch(50))) for _ in range(4)])
    assert losses[0][-1] < losses[0][0]
    assert losses[0] == losses[1]
    assert trainers[0].scaling.value == 65536
    assert_same_state(*(one.state_dict() for one in trainers))


def test_a_device_without_such_tensor_cores_is_named():
    old = gpu.with_host(tvm.target.Target({"kind": "cuda", "arch": "sm_75"}))
    with pytest.raises(ConfigError, match="sm_75 has no tensor cores for bfloat16"):
        st.Trainer(model(), st.optim.sgd(0.1), target=old, precision="bf16")
