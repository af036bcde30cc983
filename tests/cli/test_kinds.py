# SPDX-License-Identifier: Apache-2.0
"""Commands with a schema of learnt quantiles and vectors, or inferred with shared tables."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparsetrain as st
from sparsetrain.cli import main
from tests.cli.commands import told

SCHEMA = """
label = "click"
categories = ["site", "bucket"]
[derived.bucket]
from = "price"
quantiles = 8
[vectors]
embedding = 4
"""
SMALL = ["--set", "model.dim=4", "--set", "model.bottom=8", "--set", "model.top=8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Raw rows, the schema, and a run on them."""
    path, random = tmp_path_factory.mktemp("kinds"), np.random.default_rng(0)
    rows = {
        "click": random.integers(0, 2, 1200),
        "site": random.choice(["a", "b"], 1200),
        "price": random.lognormal(2, 1, 1200),
        "embedding": random.normal(size=(1200, 4)).tolist(),
    }
    pq.write_table(pa.table(rows), path / "raw.parquet")
    (path / "log.toml").write_text(SCHEMA)
    options = ["--schema", str(path / "log.toml"), "--out", str(path / "run"), "--min-count", "1"]
    assert main(["train", str(path / "raw.parquet"), *options, *SMALL]) == 0
    return path


def test_a_run_goes_on_by_the_same_schema(folder, capsys):
    schema, raw = ["--schema", folder / "log.toml"], folder / "raw.parquet"
    learnt = st.load(folder / "run").encoder.schema
    resumed = told(capsys, "train", "--resume", folder / "run", "--epochs", "2")
    assert len(resumed["epochs"]) == 2
    told(capsys, "train", raw, "--start-from", folder / "run", *schema, "--out", folder / "next")
    assert len(learnt.derived["bucket"].boundaries) == 7
    for name in ("run", "next"):
        assert st.load(folder / name).encoder.schema == learnt


def test_converted_data_train_evaluate_and_predict_as_raw_ones(folder, capsys):
    schema, out = ["--schema", folder / "log.toml", "--min-count", "1"], folder / "converted"
    summary = told(capsys, "convert", folder / "raw.parquet", *schema, "--out", out)
    assert len(summary["schema"]["derived"]["bucket"]["boundaries"]) == 7
    scores = [
        told(capsys, "evaluate", folder / "run", data) for data in (out, folder / "raw.parquet")
    ]
    assert scores[0]["auc"] == scores[1]["auc"]
    found = told(capsys, "inspect", folder / "raw.parquet", *schema[:2])
    assert found["dense"][0]["column"] == "embedding"
    told(capsys, "predict", folder / "run", out, "--out", folder / "predictions.parquet")
    assert "embedding" in told(capsys, "inspect", out / "_encoder.parquet")["dense"]


@pytest.fixture(scope="module")
def visits(tmp_path_factory):
    """Rows with the items of a history and a wanted item, which have values in common."""
    path = tmp_path_factory.mktemp("visits") / "visits.parquet"
    rows = {
        "click": [row % 2 for row in range(300)],
        "item": [1000 + row % 7 for row in range(300)],
        "history": [[1000 + row % 5] * (row % 3) for row in range(300)],
    }
    pq.write_table(pa.table(rows), path)
    return path


def test_tables_that_the_model_needs_to_share_are_inferred(visits, capsys):
    out = visits.parent / "run"
    asked = ["train", str(visits), "--label", "click", "--model", "din", "--out", str(out)]
    assert main(asked) == 0
    assert "history shares the table of item" in capsys.readouterr().err
    encoder = st.load(out).encoder
    assert encoder.share_embedding == {"history": "item"} and encoder.tables == {"item": 9}


def test_a_column_that_the_model_lacks_is_told_with_the_setting(visits, capsys):
    asked = ["train", str(visits), "--label", "click", "--model", "din", "--ignore", "item"]
    assert main(asked) == 2
    assert "model.item is 'item', which is not a category column" in capsys.readouterr().err
    assert main([*asked[:-2], "--set", "model.history=hist"]) == 2
    assert "model.history is 'hist', which is not a category" in capsys.readouterr().err
