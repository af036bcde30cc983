# SPDX-License-Identifier: Apache-2.0
"""Tables of halves and of int8 on CUDA: read exactly, rounded by the random bits of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx

import sparsetrain as st
from sparsetrain.embedding import embedding_bag, lookup
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.kernels.table_formats.half import HALVES
from sparsetrain.kernels.table_formats.noise import keys_of
from sparsetrain.kernels.table_formats.uint8 import EXTRA, quantize_rows_
from sparsetrain.runtime import as_numpy
from tests import small_dlrm
from tests.cuda import device
from tests.cuda.device import on_gpu
from tests.cuda.test_kernels import in_every_order, sparse, there
from tests.cuda.test_training import assert_close
from tests.helpers import assert_same_bits, slow_except
from tests.kernels.table_formats.in_numpy import dequantized, random_bits, rounded
from tests.optim import references
from tests.optim.formulas import OPTIMIZERS
from tests.small_dlrm import assert_same_state

ROWS = 40


def table(dtype: str, width: int, rows: int = ROWS) -> np.ndarray:
    """Normal numbers, as they are stored."""
    drawn = np.random.default_rng(width).standard_normal((rows, width)).astype("f4")
    if dtype != "int8":
        return drawn.astype(format_of(dtype).array)
    stored = np.empty((rows, width + EXTRA), "u1")
    assert quantize_rows_(stored, drawn) is None
    return stored


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint16) if array.dtype.itemsize == 2 else array


# --- Reading ------------------------------------------------------------------------------------

# Name -> dtype and width of a table: whole vectors, parts of them, single numbers.
READ = {
    "bfloat16": ("bfloat16", 8),
    "float16": ("float16", 8),
    "bfloat16_3": ("bfloat16", 3),
    "int8": ("int8", 6),
}


def add_reading(builder: relax.BlockBuilder, name: str) -> None:
    """A lookup of each id, and weighted bags of the ids."""
    like, height, count = table(*READ[name]), tirx.Var("V", "int64"), tirx.Var("N", "int64")
    stored = relax.Var("table", relax.TensorType((height, like.shape[1]), str(like.dtype)))
    ids = relax.Var("ids", relax.TensorType((count,), "int32"))
    offsets = relax.Var("offsets", relax.TensorType((tirx.Var("K", "int64"),), "int64"))
    weights = relax.Var("weights", relax.TensorType((count,), "float32"))
    with builder.function(name, [stored, ids, offsets, weights]):
        with builder.dataflow():
            found = builder.emit(lookup(stored, ids))
            pooled = builder.emit(embedding_bag(stored, ids, offsets, weights))
            out = builder.emit_output(relax.Tuple([found, pooled]))
        builder.emit_func_output(out)


@pytest.fixture(scope="module")
def machine():
    with device.one_program(READ, add_reading) as built:
        yield built


def widened(stored: np.ndarray) -> np.ndarray:
    return dequantized(stored) if stored.dtype == np.uint8 else stored.astype("f4")


@pytest.mark.parametrize("name", READ)
def test_rows_are_read_exactly(cuda, machine, name):
    dtype, width = READ[name]
    stored = table(dtype, width)
    if dtype in HALVES:  # every number of the format
        every = np.arange(65_536, dtype="u2")
        stored = np.resize(every, (65_536 // width + 1, width)).view(format_of(dtype).array)
    count = len(stored)
    ids = np.append(np.arange(count), count).astype("i4")  # the last is of no row
    others = np.zeros(1, "i8"), np.ones(count + 1, "f4")
    arguments = [there(a, "cuda") for a in (stored, ids, *others)]
    found = in_every_order("cuda", lambda: machine[name](*arguments)[0].numpy())
    expected = np.append(widened(stored), np.full((1, width), np.nan, "f4"), axis=0)
    assert (np.isnan(found) == np.isnan(expected)).all()
    assert_same_bits(np.nan_to_num(found), np.nan_to_num(expected))


@pytest.mark.parametrize("name", READ)
def test_bags_are_sums_of_rows(cuda, machine, name):
    stored, rng = table(*READ[name]), np.random.default_rng(0)
    ids, offsets = rng.integers(0, ROWS, 50).astype("i4"), np.array([0, 20, 20, 50], "i8")
    weights = rng.standard_normal(50).astype("f4")
    arguments = [there(a, "cuda") for a in (stored, ids, offsets, weights)]
    found = in_every_order("cuda", lambda: machine[name](*arguments)[1].numpy())
    terms = widened(stored)[ids].astype("f8") * weights[:, None]
    expected = np.stack([terms[:20].sum(0), terms[20:20].sum(0), terms[20:].sum(0)])
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-5, atol=1e-5)


# --- Updating -----------------------------------------------------------------------------------


class Run:
    """A table and its optimizer on a target."""

    def __init__(self, optimizer: st.optim.Optimizer, weight: np.ndarray, target: str) -> None:
        self.optimizer, self.target = optimizer, target
        self.params = {"w": there(weight, target)}
        self.state = optimizer.init(self.params, seed=5)

    def step(self, ids: np.ndarray, values: np.ndarray) -> Run:
        self.optimizer.catch_up_(self.params, {"w": ids}, self.state)
        gradient = sparse(self.target, ids, values, self.params["w"].shape[0])
        self.optimizer.apply_(self.params, {"w": gradient}, self.state)
        return self

    def train(self, steps: int) -> Run:
        height, width = map(int, self.params["w"].shape)
        rng = np.random.default_rng(1)
        for _ in range(steps):
            ids = rng.integers(0, height, 15)
            self.step(ids, rng.standard_normal((15, width)).astype("f4"))
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        """Weight and slots."""
        slots = {name: slot for name, slot in self.state["w"].items() if name != "last"}
        return {name: as_numpy(t).copy() for name, t in {"w": self.params["w"], **slots}.items()}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, array in expected.items():
        assert_same_bits(bits(found[name]), bits(array))


CASES = [
    *((name, dtype, 8) for name in ("sgd", "adagrad", "rowwise_adagrad") for dtype in HALVES),
    *((name, "bfloat16", 6) for name in ("sgd", "mixed")),
]
QUICK = [("adagrad", "float16", 8), ("mixed", "bfloat16", 6)]


@pytest.mark.parametrize(("name", "dtype", "width"), slow_except(QUICK, CASES))
def test_a_step_is_that_of_float32_rounded_by_the_bits_of_its_step_row_and_column(
    cuda, name, dtype, width
):
    half = Run(OPTIMIZERS[name], table(dtype, width), "cuda")
    rng = np.random.default_rng(1)
    for step in (1, 2):
        before = half.arrays()
        wide = Run(OPTIMIZERS[name], before["w"].astype("f4"), "cuda")
        for slot, tensor in wide.state["w"].items():
            tensor.copyfrom(half.state["w"][slot])
        ids, values = rng.integers(0, ROWS, 60), rng.standard_normal((60, width)).astype("f4")
        expected = wide.step(ids, values).arrays()
        random = random_bits(keys_of(5, "w", step), np.arange(ROWS), width)
        expected["w"] = rounded(expected["w"], random, dtype).astype(format_of(dtype).array)
        untouched = np.setdiff1d(np.arange(ROWS), ids)
        expected["w"][untouched] = before["w"][untouched]
        assert_same(half.step(ids, values).arrays(), expected)


MADE = {
    "sgd": lambda **o: st.optim.sgd(0.1, **o),
    "adagrad": lambda **o: st.optim.adagrad(0.1, **o),
    "rowwise_adagrad": lambda **o: st.optim.rowwise_adagrad(0.1, **o),
    "adam": lambda **o: st.optim.adam(0.1, **o),
    "adam exact": lambda **o: st.optim.adam(0.1, mode="exact", update="sparse", **o),
    "adamw capped": lambda **o: st.optim.adamw(
        0.1, mode="exact", update="sparse", weight_decay=0.1, max_replayed_steps=1, **o
    ),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    slow_except([("adam exact", "bfloat16")], [(n, d) for n in MADE for d in HALVES]),
)
def test_tables_have_the_numbers_of_the_cpu(cuda, name, dtype):
    """One number of a thousand may be rounded in another way: sums of products are."""
    made = {t: Run(MADE[name](), table(dtype, 8), t).train(4) for t in ("cuda", "cpu")}
    for run in made.values():
        run.optimizer.flush_(run.params, run.state)
    found, expected = (run.arrays() for run in made.values())
    assert found["w"].dtype == format_of(dtype).array
    differs = bits(found["w"]) != bits(expected["w"])
    assert differs.mean() < 0.01
    step = float(np.ldexp(1.0, -7 if dtype == "bfloat16" else -10))
    wide = found["w"].astype("f4"), expected["w"].astype("f4")
    np.testing.assert_allclose(*wide, rtol=2 * step, atol=1e-6)
    del found["w"], expected["w"]
    assert_close(found, expected)


@pytest.mark.parametrize(
    "name", slow_except(["adamw"], ["adamw", "rowwise_adagrad, coupled decay"])
)
def test_exact_mode_gives_the_bits_of_the_dense_optimizer(cuda, name):
    exact, dense = (
        Run(references.made(name, 0.1, mode=mode), table("bfloat16", 3), "cuda").train(4)
        for mode in ("exact", "dense")
    )
    exact.optimizer.flush_(exact.params, exact.state)
    assert_same(exact.arrays(), dense.arrays())


# --- Whole models -------------------------------------------------------------------------------


def model(dtype: str = "bfloat16") -> st.models.DLRM:
    return st.models.DLRM(
        rows=small_dlrm.ROWS, dim=8, bottom=(), top=(), table_dtype=dtype, num_dense=13
    )


def trained(target: str = "cuda", dtype: str = "bfloat16", **options) -> st.Trainer:
    made = st.Trainer(model(dtype), st.optim.adam(0.05, mode="exact"), target=target, **options)
    for step in range(3):
        made.step(small_dlrm.batch(37, seed=step))
    return made


@pytest.fixture(scope="module")
def trainer():
    with pytest.MonkeyPatch.context() as patch, device.as_gpu(patch):
        yield trained()


def test_a_model_trains_and_scores_as_on_the_cpu(cuda, trainer):
    expected = trained("cpu")
    found, batch = trainer.state_dict(), small_dlrm.batch(50, seed=9)
    assert all(map(on_gpu, trainer.params.values()))
    for name, array in expected.state_dict().items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(
            found[name].astype("f4"), array.astype("f4"), rtol=0.02, atol=1e-3, err_msg=name
        )
    np.testing.assert_allclose(trainer.predict(batch), expected.predict(batch), rtol=0, atol=1e-3)


def test_what_one_target_saved_the_other_loads(cuda, trainer, tmp_path):
    trainer.save(tmp_path / "a")
    st.load(tmp_path / "a", target="cpu").save(tmp_path / "b")
    back = st.load(tmp_path / "b", target="cuda")
    assert all(map(on_gpu, back.params.values()))
    before = trainer.state_dict()
    assert_same_state(back.state_dict(), before)
    for made in (trainer, back):
        made.step(small_dlrm.batch(37, seed=8))
    assert_same_state(back.state_dict(), trainer.state_dict())
    trainer.load_state_dict(before)
    assert_same_state(trainer.state_dict(), before)


def test_its_scores_in_int8_are_computed_there(cuda, trainer, tmp_path):
    quantized, batch = trainer.quantized(), small_dlrm.batch(50, seed=9)
    assert all(map(on_gpu, quantized.params.values()))
    scores = quantized.predict(batch)
    np.testing.assert_allclose(scores, trainer.predict(batch), rtol=0, atol=0.01)
    quantized.save(tmp_path / "small")
    for target in ("cpu", "cuda"):
        again = st.load_predictor(tmp_path / "small", target=target)
        np.testing.assert_allclose(again.predict(batch), scores, rtol=1e-5)
