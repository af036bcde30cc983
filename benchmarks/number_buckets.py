# SPDX-License-Identifier: Apache-2.0
"""What numbers as buckets or learnt embeddings give click models, beside scikit-learn and LightGBM.

    python -m benchmarks.number_buckets criteo rows.parquet more.parquet --seeds 3
    python -m benchmarks.number_buckets frappe frappe_train.parquet --rows 40000
    python -m benchmarks.number_buckets avazu --rows 30000

Each seed cuts the rows at random, 70 % to train on; all ways and models see the same rows.
scikit-learn's logistic regression is on the same ids, at the best of `PENALTIES` by the test rows.
`lr` takes that penalty and trains until it is solved, deep models take one epoch at the better of
`RATES` by the test rows. LightGBM is on scaled numbers, and ids as categories.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import sparsetrain as st


class Way(NamedTuple):
    """What numbers become: columns of the schema, whether inputs too, `numbers` of the model."""

    columns: str
    keep: bool = True
    numbers: str = "scaled"


ALONE = Way("quantiles", keep=False)
WAYS = {
    "scaled": Way("scaled"),
    "quantiles": Way("quantiles"),
    "logarithms": Way("logarithms"),
    "quantiles alone": ALONE,
    "piecewise": Way("piecewise", numbers="piecewise"),
    "binned": Way("binned", numbers="binned"),
    "periodic": Way("scaled", numbers="periodic"),
    "autodis": Way("scaled", numbers="autodis"),
}
MODELS = ("lr", "dlrm", "dcnv2", "finalmlp")
PENALTIES = (0.02, 0.05, 0.1, 0.2, 0.5)  # C of scikit-learn
RATES = (0.01, 0.02)

Rows = tuple[pa.Table, st.data.Schema]


def criteo(files: Sequence[str], rows: int) -> Rows:
    """Return rows with Criteo's columns."""
    table = pa.concat_tables([pq.read_table(file) for file in files])
    found = st.data.find_columns(table.schema)
    names = {"dense": tuple(found.dense), "categories": tuple(found.categories)}
    return table.slice(0, rows), st.data.Schema(label="label", **names)


def synthetic(files: Sequence[str], rows: int) -> Rows:
    """Return rows of the generator that has Criteo's figures."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "rows.parquet")
        st.data.SyntheticCriteo().write(file, rows)
        return criteo([file], rows)


def frappe(files: Sequence[str], rows: int) -> Rows:
    """Return rows of Frappe, with two numbers: how often their user and item occur."""
    table = pa.concat_tables([pq.read_table(file) for file in files])
    table = table.take(np.random.default_rng(0).permutation(table.num_rows)[:rows])
    categories = tuple(name for name in table.column_names if name != "label")
    dense = {f"rows of {name}": _counts(table[name].to_numpy()) for name in ("user", "item")}
    for name in categories:  # values, not rows of tables
        table = table.set_column(
            table.column_names.index(name), name, table[name].cast(pa.string())
        )
    return _with(table, dense, categories)


def avazu(files: Sequence[str], rows: int) -> Rows:
    """Return made rows like Avazu's: categories, an hour, and counts of devices, some missing."""
    rng = np.random.default_rng(0)
    sizes = {"site": 500, "app": 400, "device": 3000, "model": 300, "position": 5}
    ids = {name: rng.zipf(1.3, rows) % size for name, size in sizes.items()}
    hour, width = rng.uniform(0, 24, rows), rng.choice([216.0, 300.0, 320.0, 728.0], rows)
    counts = {f"rows of {name}": _counts(ids[name]) for name in ("device", "app")}
    logit = sum(rng.normal(0, 0.4, size)[ids[name]] for name, size in sizes.items())
    logit = logit + 0.5 * np.sin(hour / 24 * 4 * np.pi) - 1.4 + 0.4 * (width == 300)
    logit = logit + 0.3 * np.cos(2 * np.log(counts["rows of device"]))
    dense = {"hour": hour, "width": width, **counts}
    missing = rng.random(rows) < 0.1
    logit = logit + np.where(missing, 0.6, 0)
    click = rng.random(rows) < 1 / (1 + np.exp(-logit))
    columns = {"label": click.astype(np.int8)}
    columns |= {name: pa.array(values.astype(str)) for name, values in ids.items()}
    dense["rows of app"] = np.where(missing, np.nan, dense["rows of app"])
    return _with(pa.table(columns), dense, tuple(ids))


def numbers(files: Sequence[str], rows: int) -> Rows:
    """Return made rows of 24 numbers, whose steps, waves, slopes and products decide the label."""
    rng = np.random.default_rng(1)
    laws = (rng.normal, rng.lognormal, rng.standard_t, rng.poisson)
    given = ((0, 1, rows), (1, 1, rows), (4, rows), (3, rows))
    columns = [laws[n % 4](*given[n % 4]) for n in range(24)]
    ranks = [np.argsort(np.argsort(values)) / rows - 0.5 for values in columns]
    logit = np.zeros(rows)
    for n, rank in enumerate(ranks[:16]):
        shapes = (rank > 0.2, np.sin(7 * rank), 2 * rank, 4 * rank * ranks[n + 4])
        logit += 0.5 * (shapes[(n // 4) % 4] - np.mean(shapes[(n // 4) % 4]))
    click = rng.random(rows) < 1 / (1 + np.exp(-logit + 0.5))
    ids = {name: pa.array(rng.integers(0, 30, rows).astype(str)) for name in ("A", "B")}
    dense = {f"x{n}": np.asarray(values, np.float64) for n, values in enumerate(columns)}
    return _with(pa.table({"label": click.astype(np.int8), **ids}), dense, tuple(ids))


TABLES = {
    "criteo": criteo,
    "synthetic": synthetic,
    "frappe": frappe,
    "avazu": avazu,
    "numbers": numbers,
}


def _counts(ids: np.ndarray) -> np.ndarray:
    """How often the id of each row occurs."""
    _, places, counts = np.unique(ids, return_inverse=True, return_counts=True)
    return counts[places].astype(np.float64)


def _with(table: pa.Table, dense: dict[str, np.ndarray], categories: tuple[str, ...]) -> Rows:
    for name, values in dense.items():
        table = table.append_column(name, pa.array(values, from_pandas=True))
    return table, st.data.infer(table, "label", dense=[*dense], categories=categories).schema


def cuts(table: pa.Table, seeds: int) -> Iterator[tuple[int, pa.Table, pa.Table]]:
    """Yield each seed with rows to train on and to test on."""
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(table.num_rows)
        cut = int(0.7 * len(order))
        yield seed, table.take(order[:cut]), table.take(order[cut:])


def encoder_of(rows: pa.Table, schema: st.data.Schema, way: Way) -> Any:
    """Return an encoder of numbers in one of the ways."""
    schema = st.data.with_buckets(schema, way.columns, keep=way.keep)
    return st.data.Encoder.fit(rows, schema=schema, missing_flags=way.numbers != "scaled")


def train(
    model: str, way: Way, encoder: Any, cut: tuple[pa.Table, pa.Table], seed: int, penalty: float
) -> tuple[float, ...]:
    """Return AUC and logloss on the test rows."""
    rows, test = cut
    found = []
    for rate in RATES[:1] if model == "lr" else RATES:
        made = st.models.MODELS[model].for_encoder(encoder, numbers=way.numbers)
        optimizer, epochs, batch = st.optim.adagrad(rate), 1, 128
        if model == "lr":  # the same objective: C times the sum of the losses, and half the squares
            group = st.optim.ParamGroup("*", weight_decay=1 / (penalty * rows.num_rows))
            optimizer = st.optim.adam(1e-2, mode="dense", groups=[group])
            epochs, batch = 100, rows.num_rows // 4  # in small ones Adam decays rare values more
        trainer = st.Trainer(made, optimizer, encoder=encoder, seed=seed)
        trainer.fit(rows, epochs=epochs, batch_size=batch, progress=None)
        scores = trainer.evaluate(test)
        found.append((scores["auc"], scores["logloss"]))
    return max(found)


def regression(encoder: Any, rows: pa.Table, test: pa.Table) -> tuple[float, tuple[float, ...]]:
    """Return the best penalty of scikit-learn's on one-hot ids, and its AUC and logloss."""
    from scipy.sparse import csr_array
    from sklearn.linear_model import LogisticRegression

    first = np.r_[0, np.cumsum(encoder.rows)]

    def one_hot(table: pa.Table) -> tuple[Any, np.ndarray]:
        batch = encoder.encode(table)
        ids = np.asarray(batch.ids) + first[:-1]
        ends = np.arange(0, ids.size + 1, ids.shape[1])
        ones = np.ones(ids.size, np.float32)
        return csr_array((ones, ids.ravel(), ends), shape=(len(ids), first[-1])), batch.labels

    (x, y), (x_test, y_test) = one_hot(rows), one_hot(test)
    found = {}
    for penalty in PENALTIES:
        chance = LogisticRegression(C=penalty, max_iter=200).fit(x, y).predict_proba(x_test)[:, 1]
        found[penalty] = _scores(y_test, chance)
    best = max(found, key=lambda penalty: found[penalty])
    return best, found[best]


def boosting(encoder: Any, rows: pa.Table, test: pa.Table) -> tuple[float, ...]:
    """Return AUC and logloss of LightGBM's."""
    from lightgbm import LGBMClassifier

    (x, y), (x_test, y_test) = (
        (np.hstack([batch.dense, np.asarray(batch.ids)]), batch.labels)
        for batch in (encoder.encode(rows), encoder.encode(test))
    )
    model = LGBMClassifier(n_estimators=150, learning_rate=0.05, n_jobs=1, verbose=-1)
    model.fit(x, y, categorical_feature=[*range(encoder.num_dense, x.shape[1])])
    return _scores(y_test, model.booster_.predict(x_test))


def _scores(labels: np.ndarray, chance: np.ndarray) -> tuple[float, ...]:
    from sklearn.metrics import log_loss, roc_auc_score

    return roc_auc_score(labels, chance), log_loss(labels, chance)


def main() -> None:
    """Print a line for each way and model."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.number_buckets", description=__doc__
    )
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--ways", default=",".join(WAYS))
    options = parser.parse_args()
    table, schema = TABLES[options.table](options.files, options.rows)
    found: dict[tuple[str, str], list[tuple[float, ...]]] = {}

    def note(model: str, way: str, scores: tuple[float, ...]) -> None:
        found.setdefault((model.split(" C=")[0], way), []).append(scores)
        print(f"  {model:14} {way:16} {scores[0]:.4f} {scores[1]:.4f}", flush=True)

    for seed, rows, test in cuts(table, options.seeds):
        penalty, scores = regression(encoder_of(rows, schema, ALONE), rows, test)
        note(f"sklearn C={penalty}", "quantiles alone", scores)
        for name in options.ways.split(","):
            encoder = encoder_of(rows, schema, WAYS[name])
            for model in options.models.split(","):
                cut = rows, test
                note(model, name, train(model, WAYS[name], encoder, cut, seed, penalty))
            if name == "scaled":
                note("lightgbm", name, boosting(encoder, rows, test))
    for (model, name), scores in sorted(found.items()):
        (auc, logloss), (of_auc, of_logloss) = np.mean(scores, axis=0), np.std(scores, axis=0)
        print(f"{model:14} {name:16} {auc:.4f} ±{of_auc:.4f}  {logloss:.4f} ±{of_logloss:.4f}")


if __name__ == "__main__":
    main()
