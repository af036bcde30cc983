# SPDX-License-Identifier: Apache-2.0
"""An exported model with embeddings of numbers predicts what its trainer does."""

import numpy as np

import sparsetrain as st
from sparsetrain.serving.model import Model


def rows_of(seed=0, count=40):
    rng = np.random.default_rng(seed)
    return {
        "y": rng.integers(0, 2, count).tolist(),
        "age": [None, *rng.integers(0, 90, count - 1).tolist()],
        "user": rng.integers(0, 9, count).tolist(),
    }


def test_an_export_reads_boundaries_and_missing_numbers_as_the_trainer(exporting):
    schema = st.data.with_buckets(st.data.Schema("y", ("age",), ("user",)), "piecewise")
    encoder = st.data.Encoder.fit(rows_of(), schema=schema, min_count=1, missing_flags=True)
    model = st.models.LR.for_encoder(encoder, numbers="piecewise")
    trainer = st.Trainer(model, st.optim.adagrad(0.1), encoder=encoder)
    rows = rows_of(1)
    served = Model(exporting(trainer))
    np.testing.assert_array_equal(served.predict(rows), trainer.predict(rows))
    assert {*served.columns} == {"age", "user"}
