# SPDX-License-Identifier: Apache-2.0
"""Models of sequences on CUDA: the weights, the scores and the recommendations of the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.models import DIN, HSTU, BERT4Rec, SASRec, TwoTowers
from tests.cuda.device import on_gpu
from tests.helpers import slow_except
from tests.models.test_named_features import frame, trainer_for

# Model -> arguments that leave few layers to compile.
MODELS = {
    DIN: {"top": [8], "attention": [8]},
    SASRec: {"blocks": 1},
    HSTU: {"blocks": 1},
    BERT4Rec: {"blocks": 1},
    TwoTowers: {"hidden": []},
}
STEPS = 3


@pytest.fixture(scope="module")
def rows():
    return frame()


@pytest.mark.parametrize("cls", slow_except([DIN], MODELS))
def test_a_model_of_sequences_is_trained_to_the_weights_of_the_cpu(cuda, cls, rows):
    both = [trained(cls, rows, on) for on in ("cuda", "cpu")]
    assert all(map(on_gpu, both[0].params.values()))
    found, expected = (made.state_dict() for made in both)
    for name, weights in expected.items():
        np.testing.assert_allclose(found[name], weights, rtol=1e-4, atol=1e-4, err_msg=name)
    scores = [made.predict(rows) if cls is DIN else made.recommend(rows, 3) for made in both]
    np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-4)


def trained(cls, rows, on: str) -> st.Trainer:
    """A trainer after a few steps, which did not leave the weights where they were."""
    trainer = trainer_for(cls, rows, MODELS[cls], optimizer=st.optim.sgd(1.0), target=on)
    batch = trainer.encoder.encode(rows, require_label=bool(trainer.model.all_labels))
    before = trainer.state_dict()
    for _ in range(STEPS):
        float(trainer.step(batch))
    assert any(np.abs(w - before[name]).max() > 1e-3 for name, w in trainer.state_dict().items())
    return trainer
