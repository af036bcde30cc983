# SPDX-License-Identifier: Apache-2.0
"""The library in ten seconds: model, trainer, batch, and a loss that falls. Read this first."""

from types import SimpleNamespace

import numpy as np
import pytest

import sparsetrain as st


@pytest.fixture(scope="module")
def trained():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 13))  # 64 rows of 13 dense features
    i = rng.integers(0, [1000, 20, 7], size=(64, 3))  # and 3 ids each, one for each table
    y = i[:, 1] < 10  # who has a low second id clicks

    model = st.models.DLRM(rows=[1000, 20, 7], dim=8, bottom=(16,), top=(16,), num_dense=13)
    trainer = st.Trainer(model, optimizer=st.optim.adagrad(0.05), target="auto", seed=0)
    batch = st.data.Batch(dense=x, ids=i, labels=y)
    before = trainer.state_dict()
    losses = [float(trainer.step(batch)) for _ in range(50)]
    return SimpleNamespace(trainer=trainer, batch=batch, before=before, losses=losses)


def test_the_loss_falls(trained):
    assert trained.losses[-1] < 0.2 < trained.losses[0]


def test_the_scores_separate_clicks_from_the_others(trained):
    assert trained.trainer.evaluate(trained.batch)["auc"] > 0.99
    clicks = trained.batch.labels == 1
    scores = trained.trainer.predict(trained.batch)
    assert scores[clicks].min() > 0.5 > scores[~clicks].max()


def test_only_rows_that_were_looked_up_have_changed(trained):
    before, after = trained.before, trained.trainer.state_dict()
    for name in ("embeddings.C1.weight", "embeddings.C1.weight:sum"):
        changed = (before[name] != after[name]).any(axis=1)
        assert set(np.flatnonzero(changed)) == set(trained.batch.ids[:, 0])
