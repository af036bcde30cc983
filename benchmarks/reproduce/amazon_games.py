# SPDX-License-Identifier: Apache-2.0
"""Amazon's games, as SASRec's authors rank them (https://github.com/kang205/SASRec, "Video").

The folder holds amazon_games.txt: a line "user item" for each of 287,107 events, in time order.

Protocol: of each user the last item is the test, the one before the validation. The test item is
ranked among 100 drawn ones that the user has not chosen. Histories of at most 50 items, vectors of
50 numbers, two blocks of one head, dropout 0.5, batches of 128 users, Adam at 0.001 with a second
decay of 0.98, dense as the authors'. 200 epochs, as their code takes by default; the validation
items are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any, NamedTuple

import sparsetrain as st

EPOCHS, BATCH, NEGATIVES = 200, 128, 100


class Setting(NamedTuple):
    """A model with its options, and what was published."""

    kind: str
    options: Mapping[str, Any]
    published: Mapping[str, float]


SETTINGS = {
    "sasrec": Setting(
        "sasrec",
        {"dim": 50, "blocks": 2, "heads": 1, "length": 50, "dropout": 0.5},
        {"hr@10": 0.7410, "ndcg@10": 0.5360},
    ),
    "bert4rec": Setting(
        "bert4rec", {"dim": 50, "blocks": 2, "heads": 2, "length": 50, "dropout": 0.2}, {}
    ),
}
SCORES = ("hr@10", "ndcg@10", "full hr@10", "full ndcg@10", "full s")


def prepare(folder: str) -> st.data.Split:
    """Split the log."""
    return st.data.Interactions.read(f"{folder}/amazon_games.txt").leave_one_out()


def train(setting: Setting, split: st.data.Split, seed: int) -> dict[str, Any]:
    """Train by the protocol; return test scores, epochs, seconds and rows/s."""
    encoder = split.encoder()
    begin = perf_counter()
    rows = dict(zip(encoder.columns, encoder.rows, strict=True))
    model = st.models.MODELS[setting.kind](rows, **setting.options)
    adam = st.optim.adam(1e-3, beta2=0.98, mode="exact")
    trainer = st.Trainer(model, adam, encoder=encoder, seed=seed)
    history = trainer.fit(split.train, epochs=EPOCHS, batch_size=BATCH, progress=None)
    seconds = perf_counter() - begin
    found = trainer.evaluate(split.test, negatives=NEGATIVES)
    begin = perf_counter()
    full = trainer.evaluate(split.test)
    return {
        **{name: found[name] for name in ("hr@10", "ndcg@10")},
        **{f"full {name}": full[name] for name in ("hr@10", "ndcg@10")},
        "full s": perf_counter() - begin,
        "epochs": EPOCHS,
        "seconds": seconds,
        "rows_per_s": float(history["rows_per_s"]),
    }
