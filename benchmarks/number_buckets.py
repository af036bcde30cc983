# SPDX-License-Identifier: Apache-2.0
"""What numbers as buckets give click models, beside scikit-learn's logistic regression on buckets.

    python -m benchmarks.number_buckets rows.parquet more.parquet --seeds 5
    python -m benchmarks.number_buckets --synthetic 60000

Columns have Criteo's names. Each seed cuts the rows at random, 70 % to train on for one epoch; all
ways and models see the same rows. Logistic regression is on the same ids, with the best of several
penalties by the test rows, which favours it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import sparsetrain as st

# Way -> the kind of buckets, and whether the numbers are inputs as well.
WAYS = {
    "scaled": ("scaled", True),
    "quantiles": ("quantiles", True),
    "logarithms": ("logarithms", True),
    "quantiles alone": ("quantiles", False),
}
MODELS = ("lr", "dlrm", "dcnv2", "finalmlp")
DECAY = 8e-4  # of lr: about the best penalty of logistic regression by the number of rows


def cuts(table: pa.Table, seeds: int) -> Iterator[tuple[int, pa.Table, pa.Table]]:
    """Yield each seed with rows to train on and to test on."""
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(table.num_rows)
        cut = int(0.7 * len(order))
        yield seed, table.take(order[:cut]), table.take(order[cut:])


def train(model: str, encoder: Any, rows: pa.Table, test: pa.Table, seed: int) -> tuple[float, ...]:
    """Return AUC and logloss on the test rows."""
    made = st.models.MODELS[model](**encoder.model_arguments)
    optimizer, epochs = st.optim.adagrad(0.01), 1
    if model == "lr":
        group = st.optim.ParamGroup("*", weight_decay=DECAY)
        optimizer, epochs = st.optim.adam(1e-3, mode="dense", groups=[group]), 15
    trainer = st.Trainer(made, optimizer, encoder=encoder, seed=seed)
    trainer.fit(rows, epochs=epochs, batch_size=128, progress=None)
    found = trainer.evaluate(test)
    return found["auc"], found["logloss"]


def regression(encoder: Any, rows: pa.Table, test: pa.Table) -> dict[float, tuple[float, ...]]:
    """Return AUC and logloss of scikit-learn's on one-hot ids, by penalty."""
    from scipy.sparse import csr_array
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss, roc_auc_score

    first = np.r_[0, np.cumsum(encoder.rows)]

    def one_hot(table: pa.Table) -> tuple[Any, np.ndarray]:
        batch = encoder.encode(table)
        ids = np.asarray(batch.ids) + first[:-1]
        ends = np.arange(0, ids.size + 1, ids.shape[1])
        ones = np.ones(ids.size, np.float32)
        return csr_array((ones, ids.ravel(), ends), shape=(len(ids), first[-1])), batch.labels

    (x, y), (x_test, y_test) = one_hot(rows), one_hot(test)
    found = {}
    for penalty in (0.02, 0.05, 0.1):
        chance = LogisticRegression(C=penalty, max_iter=200).fit(x, y).predict_proba(x_test)[:, 1]
        found[penalty] = roc_auc_score(y_test, chance), log_loss(y_test, chance)
    return found


def main() -> None:
    """Print a line for each way and model."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.number_buckets", description=__doc__
    )
    parser.add_argument("files", nargs="*")
    parser.add_argument("--synthetic", type=int, metavar="ROWS")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = options.files
        if options.synthetic:
            files = [str(Path(folder) / "rows.parquet")]
            st.data.SyntheticCriteo().write(files[0], options.synthetic)
        table = pa.concat_tables([pq.read_table(file) for file in files])
    columns = st.data.find_columns(table.schema)
    found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for seed, rows, test in cuts(table, options.seeds):
        for way, (numbers, scaled) in WAYS.items():
            schema = st.data.with_buckets(
                st.data.Schema(), numbers, columns.dense, columns.categories, keep=scaled
            )
            encoder = st.data.Encoder.fit(rows, schema=schema)
            for model in options.models.split(","):
                scores = train(model, encoder, rows, test, seed)
                found.setdefault((model, way), []).append(scores)
            if not scaled:
                for penalty, scores in regression(encoder, rows, test).items():
                    found.setdefault((f"sklearn C={penalty}", way), []).append(scores)
    for (model, way), scores in sorted(found.items()):
        (auc, logloss), (of_auc, of_logloss) = np.mean(scores, axis=0), np.std(scores, axis=0)
        print(f"{model:14} {way:16} {auc:.4f} ±{of_auc:.4f}  {logloss:.4f} ±{of_logloss:.4f}")


if __name__ == "__main__":
    main()
