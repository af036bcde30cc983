# SPDX-License-Identifier: Apache-2.0
"""Dropout: its mask, its gradient, and that the bits depend on seed, step and place alone."""

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain.ad import dropout
from sparsetrain.compiler.program import Program
from sparsetrain.data import Ragged
from sparsetrain.embedding import Embedding
from sparsetrain.errors import ConfigError
from sparsetrain.models import ClickModel, Dropout, Model, SelfAttention, Sequence
from sparsetrain.models.layers import FIRST_ROW, KEY, dropout_inputs
from sparsetrain.runtime.targets import resolve_target
from tests import small_dlrm
from tests.helpers import slow_except


class Dropped(ClickModel):
    """The sum of its inputs, each dropped or doubled, so that the loss shows the mask."""

    def __init__(self, rows, dim=2, num_dense=50, rate=0.5, **rest):
        super().__init__(rows, dim, num_dense, **rest)
        self.rate = rate
        self.last = nn.Linear(num_dense + len(rows) * dim, 1)
        self.drop = Dropout(rate)

    def config(self):
        return {**super().config(), "rate": self.rate}

    def forward(self, dense, embedded):
        flat = nn.op.reshape(embedded, (dense.shape[0], -1))
        return self.last(self.drop(nn.op.concat([dense, flat], dim=1)))


def dropped_dlrm(**options):
    model = st.models.DLRM(
        small_dlrm.ROWS, dim=8, bottom=(16,), top=(16,), dropout=0.3, num_dense=13
    )
    return st.Trainer(model, st.optim.adagrad(0.05), seed=3, **options)


class Tokens(Model):
    """The sum of its tokens, each a number that is dropped or doubled."""

    def __init__(self):
        super().__init__()
        self.item, self.one, self.drop = Embedding(30, 8), nn.Linear(8, 1), Dropout(0.5)
        self.features, self.labels = {"history": Sequence("item")}, {"click": "binary"}

    def forward(self, history):
        return self.item(history).map(self.one).map(self.drop).sum()


class Attended(Tokens):
    """The sum of tokens that see each other, by weights that are dropped or doubled."""

    def __init__(self, rate=0.5):
        super().__init__()
        self.attention = SelfAttention(8, 2, dropout=rate, length=4)

    def forward(self, history):
        return self.attention(self.item(history)).map(self.one).sum()


def dropped_tokens(**options):
    return st.Trainer(Tokens(), st.optim.adagrad(0.05), seed=3, **options)


def dropped_weights(**options):
    return st.Trainer(Attended(), st.optim.adagrad(0.05), seed=3, **options)


def bags(rows, seed):
    rng = np.random.default_rng(seed)
    offsets = np.cumsum([0, *rng.integers(0, 5, rows)])
    ids = Ragged(rng.integers(0, 30, offsets[-1]), offsets)
    return st.Batch(np.empty((rows, 0)), [ids], rng.integers(0, 2, rows))


BATCHES = {dropped_dlrm: small_dlrm.batch, dropped_tokens: bags, dropped_weights: bags}


def losses(make, steps=4, **options):
    trainer = make(**options)
    return [float(trainer.step(BATCHES[make](65, seed=i))) for i in range(steps)], trainer


def module(rows, columns):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, columns), "float32"))
    keys = [relax.Var(name, relax.TensorType((1,), "int64")) for name in (KEY, FIRST_ROW)]
    with builder.function("main", [x, *keys], attrs={"num_input": 3}):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(dropout(x, *keys, rate=0.3)))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize("columns, kernels", [(300, 1), (tirx.Var("width", "int64"), 2)])
def test_no_kernel_is_compiled_for_the_words_of_columns_known_beforehand(columns, kernels):
    legal = relax.transform.LegalizeOps()(module(1000, columns))
    assert sum(isinstance(f, tirx.PrimFunc) for f in legal.functions.values()) == kernels


def test_words_known_beforehand_are_those_computed():
    x = {"x": np.ones((40, 300), np.float32), **dropout_inputs(0, 1, 0)}
    known, computed = (
        Program(module(40, columns), "main", resolve_target("cpu"), None)({}, x)
        for columns in (300, tirx.Var("width", "int64"))
    )
    assert np.array_equal(st.runtime.as_numpy(known), st.runtime.as_numpy(computed))


def test_the_mean_stays_and_the_share_of_zeros_is_the_rate():
    program = Program(module(1000, 300), "main", resolve_target("cpu"), None)

    def drawn(step):
        inputs = {"x": np.ones((1000, 300), np.float32), **dropout_inputs(0, step, 0)}
        return st.runtime.as_numpy(program({}, inputs)).copy()

    first, second = drawn(1), drawn(2)
    kept = first > 0
    assert set(np.unique(first)) == {0, np.float32(1 / 0.7)}
    deviation = np.sqrt(0.3 * 0.7 / first.size)
    assert abs(kept.mean() - 0.7) < 4 * deviation
    for axis in (0, 1):  # rows and columns are dropped alike
        share = kept.mean(axis=axis)
        assert share.std() == pytest.approx(np.sqrt(0.21 / first.shape[axis]), rel=0.15)
    for other in (kept[:, 1:], second[:, :-1] > 0):  # neighbours and steps know nothing of another
        assert abs(np.corrcoef(kept[:, :-1].ravel(), other.ravel())[0, 1]) < 0.01


def test_the_gradient_is_that_of_what_was_kept():
    trainer = st.Trainer(Dropped([3]), st.optim.sgd(1.0), seed=1)
    before = {name: array.astype(np.float64) for name, array in trainer.state_dict().items()}
    dense = np.random.default_rng(0).normal(size=(1, 50)).astype(np.float32)
    loss = float(trainer.step(st.Batch(dense, [[1]], [1])))
    after = trainer.state_dict()
    slope = after["last.bias"][0] - before["last.bias"][0]  # 1 - p, as the label is 1
    assert loss == pytest.approx(-np.log(1 - slope), rel=1e-5)
    read = np.concatenate([dense[0], before["embeddings.C1.weight"][1]])
    moved = (after["last.weight"] - before["last.weight"])[0] / slope
    kept = np.abs(moved) > 1e-6
    np.testing.assert_allclose(moved, np.where(kept, 2 * read, 0), rtol=1e-3, atol=1e-5)
    assert 10 < kept.sum() < 42
    of_table = (after["embeddings.C1.weight"] - before["embeddings.C1.weight"])[1] / slope
    wanted = np.where(kept[50:], 2 * before["last.weight"][0, 50:], 0)
    np.testing.assert_allclose(of_table, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("make", slow_except([dropped_tokens], BATCHES))
def test_bits_are_those_of_the_seed_for_any_number_of_threads(make):
    found = []
    for threads in (1, 2):
        before = st.runtime.num_threads()
        st.runtime.set_num_threads(threads)
        try:
            numbers, trainer = losses(make)
            found.append((numbers, trainer.state_dict()))
        finally:
            st.runtime.set_num_threads(before)
    for other in found[1:]:
        assert other[0] == found[0][0]
        for name, array in found[0][1].items():
            np.testing.assert_array_equal(other[1][name], array)


@pytest.mark.parametrize("make", slow_except([dropped_dlrm], BATCHES))
def test_parts_of_a_batch_draw_the_mask_of_the_whole(make):
    np.testing.assert_allclose(losses(make, accumulate=4)[0], losses(make)[0], rtol=1e-5)


@pytest.mark.parametrize("make", slow_except([dropped_weights], BATCHES))
def test_a_resumed_run_draws_what_the_whole_one_does(make, tmp_path):
    batches = [BATCHES[make](64, seed=i) for i in range(6)]
    whole, parted = make(), make()
    whole.fit(batches, epochs=2, shuffle=False)
    parted.fit(batches, epochs=1, shuffle=False, run=tmp_path / "run")
    parted = st.load(tmp_path / "run", model=type(parted.model))
    parted.fit(batches, epochs=2, shuffle=False, run=tmp_path / "run", resume=True)
    for name, array in whole.state_dict().items():
        np.testing.assert_array_equal(parted.state_dict()[name], array)


def test_scores_know_no_dropout():
    trainer = dropped_dlrm()
    plain = st.Trainer(
        st.models.DLRM(small_dlrm.ROWS, dim=8, bottom=(16,), top=(16,), num_dense=13),
        st.optim.sgd(0.1),
    )
    plain.load_state_dict(
        {name: array for name, array in trainer.state_dict().items() if ":" not in name}
    )
    batch = small_dlrm.batch(20)
    np.testing.assert_array_equal(trainer.predict([batch]), plain.predict([batch]))


def test_the_weights_of_a_token_alone_are_dropped_or_doubled():
    """So its vector, 1 by then, counts for 0 or 2 in each head."""
    trainer = st.Trainer(Attended(), st.optim.sgd(0.0), seed=3)
    weights = {name: np.zeros_like(array) for name, array in trainer.state_dict().items()}
    weights["attention.value.bias"] += 1
    weights["attention.out.weight"] += np.eye(8, dtype="f4")
    weights["one.weight"] += np.float32([[1, 0, 0, 0, 10, 0, 0, 0]])  # a column of each head
    trainer.load_state_dict(weights)
    batch = st.Batch(np.empty((1, 0)), [Ragged(np.array([5]), np.array([0, 1]))], [0])
    found = [round(float(np.log(np.expm1(float(trainer.step(batch)))))) for _ in range(64)]
    assert set(found) == {-0, 2, 20, 22} and float(trainer.predict([batch])[0]) > 0.9999


def test_dropout_of_weights_has_to_know_the_length_of_rows():
    with pytest.raises(ConfigError, match="dropout needs length="):
        SelfAttention(8, dropout=0.1)


@pytest.mark.parametrize("rate", [1, 1.5, -0.1, float("nan"), "0.5", None])
def test_another_rate_is_refused(rate):
    with pytest.raises(ConfigError, match="rate is .*; it must be at least 0 and below 1"):
        Dropout(rate)
