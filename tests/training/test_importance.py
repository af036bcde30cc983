# SPDX-License-Identifier: Apache-2.0
"""Importance of columns by shuffling them."""

import numpy as np
import pandas as pd
import pytest

import sparsetrain as st


def rows_of(count, seed):
    rng = np.random.default_rng(seed)
    user, noise, hour = rng.integers(0, 8, (3, count))
    bags = [[f"t{n}" for n in rng.integers(0, 9, size)] for size in rng.integers(0, 4, count)]
    weights = [[1.0] * len(bag) for bag in bags]
    chance = 0.1 + 0.4 * (user < 4) + 0.4 * (hour < 4)
    label = (rng.random(count) < chance).astype(int)
    return pd.DataFrame(
        {"click": label, "user": user, "noise": noise, "tags": bags, "w": weights, "t": hour * 3600}
    )


SCHEMA = st.data.Schema(
    "click",
    categories=("user", "noise", "tags", "hour"),
    columns={"tags": st.data.ColumnRule(weights="w")},
    derived={"hour": st.data.Derived("t", divide=3600)},
)


@pytest.fixture(scope="module")
def trainer():
    encoder = st.data.Encoder.fit(rows_of(4_000, 0), schema=SCHEMA, min_count=1)
    arguments = {**encoder.model_arguments, "dim": 2, "bottom": (4,), "top": (4,)}
    model = st.models.DLRM(**arguments)
    trainer = st.Trainer(model, st.optim.adagrad(0.2), encoder=encoder, target="cpu")
    trainer.fit(rows_of(4_000, 0), epochs=3, batch_size=64, progress=None)
    return trainer


def test_a_column_that_tells_the_label_matters_and_noise_does_not(trainer):
    found = st.permutation_importance(trainer, rows_of(4_000, 1))
    assert set(found) == {"user", "noise", "tags", "t"}
    assert [*found.values()] == sorted(found.values(), reverse=True)
    noise = max(abs(found["noise"]), abs(found["tags"]))
    assert min(found["user"], found["t"]) > 3 * noise


def test_shuffles_repeat_and_rows_are_limited(trainer):
    rows = rows_of(400, 2)
    one = st.permutation_importance(trainer, rows, max_rows=100, seed=5)
    assert one == st.permutation_importance(trainer, rows[:100], seed=5)
    assert one != st.permutation_importance(trainer, rows[:100], seed=6)


def test_batches_and_models_without_an_encoder_are_refused(trainer):
    batch = trainer.encoder.encode(rows_of(10, 3))
    with pytest.raises(st.errors.DataError, match="is read as batches"):
        st.permutation_importance(trainer, [batch])
    bare = st.Trainer(st.models.DLRM([3], 2, (2,), (2,), 0), st.optim.sgd(0.1), target="cpu")
    with pytest.raises(st.errors.ConfigError, match="trained without an encoder"):
        st.permutation_importance(bare, rows_of(10, 3))
