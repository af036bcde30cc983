# SPDX-License-Identifier: Apache-2.0
"""Batch norm: float64 NumPy, running statistics as state, and their place in steps and files."""

import numpy as np
import pytest
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain.errors import ConfigError
from sparsetrain.models import BatchNorm, ClickModel
from tests import small_dlrm
from tests.helpers import slow_except

EPS, MOMENTUM = 1e-5, 0.1


class Normed(ClickModel):
    """A linear layer, batch norm of what it gives, and a linear layer."""

    def __init__(self, rows, dim=8, num_dense=13, **rest):
        super().__init__(rows, dim, num_dense, **rest)
        self.mlp = st.models.MLP(
            [num_dense + len(rows) * dim, 6, 1], last_relu=False, batch_norm=True
        )

    def forward(self, dense, embedded):
        flat = nn.op.reshape(embedded, (dense.shape[0], -1))
        return self.mlp(nn.op.concat([dense, flat], dim=1))


def normed(optimizer=None, **options):
    return st.Trainer(Normed(small_dlrm.ROWS), optimizer or st.optim.sgd(0.1), seed=3, **options)


def in_numpy(params, batch, running=None):
    """Logits in float64, mean and variance of the batch; by `running` ones if given."""
    tables = [params[f"embeddings.C{f + 1}.weight"] for f in range(batch.ids.shape[1])]
    embedded = [table[ids] for table, ids in zip(tables, batch.ids.T, strict=True)]
    x = np.concatenate([batch.dense, *embedded], axis=1)
    hidden = x @ params["mlp.layers.0.weight"].T + params["mlp.layers.0.bias"]
    mean, variance = running or (hidden.mean(0), hidden.var(0))
    normal = (hidden - mean) / np.sqrt(variance + EPS)
    active = np.maximum(normal * params["mlp.norms.0.weight"] + params["mlp.norms.0.bias"], 0)
    logits = active @ params["mlp.layers.1.weight"].T + params["mlp.layers.1.bias"]
    return logits[:, 0], mean, variance


def loss_in_numpy(params, batch):
    logits = in_numpy(params, batch)[0]
    return np.mean(np.logaddexp(0, logits) - batch.labels * logits)


def in_float64(trainer):
    return {name: array.astype(np.float64) for name, array in trainer.state_dict().items()}


def test_loss_and_gradients_are_those_of_float64():
    trainer, batch = normed(), small_dlrm.batch(33)
    params = in_float64(trainer)
    loss, gradients = trainer.program(trainer.params, trainer.model.inputs(batch))
    assert float(st.runtime.as_numpy(loss)) == pytest.approx(loss_in_numpy(params, batch), rel=1e-6)
    rng = np.random.default_rng(0)
    for name in ("mlp.layers.0.weight", "mlp.norms.0.weight", "mlp.norms.0.bias"):
        direction, h = rng.normal(size=params[name].shape), 1e-5
        ends = [{**params, name: params[name] + sign * h * direction} for sign in (1, -1)]
        slope = np.subtract(*(loss_in_numpy(end, batch) for end in ends)) / (2 * h)
        found = float((st.runtime.as_numpy(gradients[name]) * direction).sum())
        assert found == pytest.approx(slope, rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize("accumulate", slow_except([4], [1, 4]))
def test_running_statistics_follow_the_batches_and_scores_read_them(accumulate):
    trainer = normed(accumulate=accumulate)
    mean, variance = np.zeros(6), np.ones(6)
    for step in range(3):
        batch, params = small_dlrm.batch(64, seed=step), in_float64(trainer)
        of_parts = [
            in_numpy(params, st.Batch(batch.dense[part], batch.ids[part]))[1:]
            for part in np.split(np.arange(64), accumulate)
        ]
        n = 64 // accumulate
        mean = (1 - MOMENTUM) * mean + MOMENTUM * np.mean([m for m, _ in of_parts], axis=0)
        corrected = np.mean([v for _, v in of_parts], axis=0) * n / (n - 1)
        variance = (1 - MOMENTUM) * variance + MOMENTUM * corrected
        trainer.step(batch)
    state, batch = in_float64(trainer), small_dlrm.batch(5, seed=9)
    np.testing.assert_allclose(state["mlp.norms.0.running_mean"], mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state["mlp.norms.0.running_var"], variance, rtol=1e-5)
    logits = in_numpy(state, batch, (mean, variance))[0]
    np.testing.assert_allclose(trainer.predict([batch]), 1 / (1 + np.exp(-logits)), rtol=1e-4)
    one = st.Batch(batch.dense[:1], batch.ids[:1])  # not by the others of its batch
    np.testing.assert_allclose(trainer.predict([one]), trainer.predict([batch])[:1], rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"clip_norm": 1e9}], ids=["one program", "two"])
def test_a_skipped_step_leaves_running_statistics(options):
    trainer = normed(st.optim.sgd(0.1, on_nonfinite="skip", **options))
    batch = small_dlrm.batch(16)
    trainer.step(batch)
    before = trainer.state_dict()
    dense = batch.dense.copy()
    dense[3, 2] = 3e38  # the variance overflows
    trainer.step(st.Batch(dense, batch.ids, batch.labels))
    assert trainer.state.skipped == 1
    small_dlrm.assert_same_state(trainer.state_dict(), before)


def test_clipping_does_not_count_or_scale_running_statistics():
    plain, clipped = normed(), normed(st.optim.sgd(0.1, clip_norm=1e-3, weight_decay=0.1))
    for trainer in (plain, clipped):
        trainer.step(small_dlrm.batch(16))
    gradients = plain.program(plain.params, plain.model.inputs(small_dlrm.batch(16)))[1]
    assert "mlp.norms.0.running_var" in gradients
    for name in ("running_mean", "running_var"):
        name = f"mlp.norms.0.{name}"
        np.testing.assert_array_equal(clipped.state_dict()[name], plain.state_dict()[name])


def test_a_resumed_run_has_the_bits_of_the_whole_one(tmp_path):
    batches = [small_dlrm.batch(64, seed=i) for i in range(4)]
    whole, parted = normed(st.optim.adam(0.01)), normed(st.optim.adam(0.01))
    whole.fit(batches, epochs=2, shuffle=False)
    parted.fit(batches, epochs=1, shuffle=False, run=tmp_path / "run")
    parted = st.load(tmp_path / "run", model=Normed)
    parted.fit(batches, epochs=2, shuffle=False, run=tmp_path / "run", resume=True)
    small_dlrm.assert_same_state(parted.state_dict(), whole.state_dict())


def test_a_program_for_scores_holds_no_training_part():
    trainer = normed()
    trainer.predict([small_dlrm.batch(3)])
    assert "batch_norm" not in trainer._logits.module.script()
    assert "batch_norm" in trainer.program.module.script()


SINGLE = {  # options of the trainer, and of a fit of 9 rows
    "batches of one row": ({}, {"batch_size": 1}),
    "parts of one row": ({"accumulate": 4}, {"batch_size": 7}),
    "more parts than rows": ({"accumulate": 4}, {"batch_size": 3}),
}


@pytest.mark.parametrize("name", SINGLE)
def test_parts_of_one_row_are_refused_before_the_first_step(name):
    options, fit = SINGLE[name]
    trainer = normed(encoder=small_dlrm.encoder(), **options)
    with pytest.raises(ConfigError, match="mlp.norms.0: batch norm .* one row: .* 2 rows or more"):
        trainer.fit(small_dlrm.raw_rows(9), progress=None, **fit)
    batches = [small_dlrm.batch(fit["batch_size"])] * 2
    for train in (trainer.step, lambda _: trainer.fit(batches, progress=None)):
        with pytest.raises(ConfigError, match="mlp.norms.0: batch norm"):
            train(batches[0])
    assert trainer.steps == 0


def test_ranks_refuse_parts_of_one_row():
    trainer = normed(parallel=st.parallel.local(2))
    for train in (trainer.step, lambda batch: trainer.fit([batch], progress=None)):
        with pytest.raises(ConfigError, match="mlp.norms.0: batch norm"):
            train(small_dlrm.batch(3))
    trainer.step(small_dlrm.batch(4))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_last_batch_with_parts_of_one_row_leaves_the_statistics(accumulate):
    trainer = normed(encoder=small_dlrm.encoder(), accumulate=accumulate)
    data = small_dlrm.raw_rows(4 * accumulate + accumulate)
    states = []
    trainer.fit(
        data,
        batch_size=4 * accumulate,
        progress=None,
        stop=lambda: states.append(trainer.state_dict()),
    )
    assert trainer.steps == len(states) == 2
    before, after = states
    for name in ("running_mean", "running_var"):
        np.testing.assert_array_equal(after[f"mlp.norms.0.{name}"], before[f"mlp.norms.0.{name}"])
    assert not np.array_equal(after["mlp.layers.1.bias"], before["mlp.layers.1.bias"])


def test_columns_of_one_row_that_several_numbers_share_are_normalized():
    class Shared(ClickModel):
        def __init__(self, rows, dim=8, num_dense=13, **rest):
            super().__init__(rows, dim, num_dense, **rest)
            self.norm, self.last = BatchNorm(dim), nn.Linear(dim, 1)

        def forward(self, dense, embedded):
            return self.last(nn.op.sum(self.norm(embedded), axis=1))

    trainer = st.Trainer(Shared(small_dlrm.ROWS), st.optim.sgd(0.1))
    trainer.step(small_dlrm.batch(1))
    assert (trainer.state_dict()["norm.running_var"] != 1).all()


@pytest.mark.slow
def test_layer_norm_begins_as_the_identity_and_learns():
    class LayerNormed(ClickModel):
        def __init__(self, rows, dim=8, num_dense=13, **rest):
            super().__init__(rows, dim, num_dense, **rest)
            self.norm = nn.LayerNorm(num_dense)
            self.last = nn.Linear(num_dense + len(rows) * dim, 1)

        def forward(self, dense, embedded):
            flat = nn.op.reshape(embedded, (dense.shape[0], -1))
            return self.last(nn.op.concat([self.norm(dense), flat], dim=1))

    trainer = st.Trainer(LayerNormed(small_dlrm.ROWS), st.optim.adagrad(0.05))
    before = trainer.state_dict()
    assert (before["norm.weight"] == 1).all() and (before["norm.bias"] == 0).all()
    losses = [float(trainer.step(small_dlrm.batch(256, seed))) for seed in range(30)]
    assert np.mean(losses[-5:]) < losses[0] - 0.1
    assert (trainer.state_dict()["norm.weight"] != 1).all()


@pytest.mark.parametrize("options", [{"eps": 0}, {"momentum": 1.5}, {"eps": "1"}])
def test_wrong_numbers_are_refused(options):
    with pytest.raises(ConfigError, match="BatchNorm: .* it must be above 0 and at most 1"):
        BatchNorm(3, **options)
