# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain train --window`: each window of time is scored, then trained on."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

import sparsetrain as st
from sparsetrain.cli import main
from sparsetrain.data import Interactions, split_windows
from sparsetrain.errors import ConfigError, DataError

SMALL = ["--set", "model.dim=4", "--set", "model.bottom=8", "--set", "model.top=8"]
SMALL += ["--batch-size", "64", "--min-count", "1"]


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    """Three days of clicks on ads; each day brings ads of its own."""
    rng, rows = np.random.default_rng(0), 900
    day = np.sort(rng.integers(0, 3, rows))
    ad = rng.integers(0, 20, rows) + 10 * day
    frame = pd.DataFrame({"ad": ad, "site": rng.integers(0, 5, rows)})
    frame["click"] = (rng.random(rows) < np.where(ad % 2, 0.8, 0.2)).astype(int)
    frame["at"] = pd.Timestamp("2014-10-21") + pd.to_timedelta(24 * day + 5, unit="h")
    folder = tmp_path_factory.mktemp("clicks")
    frame.to_parquet(folder / "rows.parquet")
    (folder / "schema.toml").write_text(
        'label = "click"\ncategories = ["ad", "site"]\ntime = "at"\n'
    )
    return folder


def train(clicks, *arguments):
    rows, schema = str(clicks / "rows.parquet"), str(clicks / "schema.toml")
    return main(["train", rows, "--schema", schema, "--model", "lr", *map(str, arguments)])


def printed(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_each_day_is_scored_before_it_is_trained_on(clicks, tmp_path, capsys):
    command = ["--window", "day", "--batch-size", 64, "--min-count", 1, "--json"]
    out = tmp_path / "days"
    assert train(clicks, *command, "--epochs", 2, "--out", out) == 0
    found = printed(capsys)
    days = ["2014-10-21", "2014-10-22", "2014-10-23"]
    assert [window["window"] for window in found["windows"]] == days
    assert sum(window["rows"] for window in found["windows"]) == 2 * 900
    scores = [window["scores"] for window in found["windows"]]
    assert scores[0] is None and found["mean"]["auc"] == (scores[1]["auc"] + scores[2]["auc"]) / 2

    # The same by hand.
    schema = st.data.Schema.read(clicks / "schema.toml")
    parts = split_windows(str(clicks / "rows.parquet"), "at", "day", schema=schema)
    trainer, by_hand = None, []
    for _, rows in parts:
        if trainer is None:
            encoder = st.data.Encoder.fit(rows, schema=schema, min_count=1)
            arguments = encoder.model_arguments
            optimizer = st.optim.adagrad(found["settings"]["optimizer"]["lr"])
            trainer = st.Trainer(st.models.LR(**arguments), optimizer, encoder=encoder)
        else:
            by_hand.append(trainer.evaluate(rows))
            trainer = trainer.extended(trainer.encoder.extended(rows))
        trainer.fit(rows, epochs=2, batch_size=64, progress=None)
    assert [each["auc"] for each in by_hand] == [each["auc"] for each in scores[1:]]
    assert found["windows"][2]["table_rows"] == sum(trainer.encoder.tables.values())

    shutil.rmtree(out / days[2])  # as if it had been killed before
    assert train(clicks, *command, "--epochs", 2, "--out", out, "--resume", "auto") == 0
    assert [window["scores"] for window in printed(capsys)["windows"]] == scores
    state = st.load(out / days[2]).state_dict()
    assert all(np.array_equal(state[name], array) for name, array in trainer.state_dict().items())
    assert train(clicks, *command, "--epochs", 3, "--out", out, "--resume", "auto") == 4
    assert "2014-10-21: trained with different settings" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bpr", "sasrec"])
def test_items_of_a_window_are_ranked_before_they_are_learnt(model, tmp_path, capsys):
    rng, count = np.random.default_rng(0), 600
    time = np.sort(rng.uniform(0, 3 * 86_400, count))
    item = rng.integers(0, 20, count) + (time // 86_400 * 10).astype(int)
    frame = pd.DataFrame({"user": rng.integers(0, 40, count), "item": item, "time": time})
    frame.to_csv(tmp_path / "log.csv", index=False)
    command = ["train", str(tmp_path / "log.csv"), "--task", "ranking", "--model", model]
    assert main([*command, *SMALL, "--window", "day", "--json"]) == 0
    windows = printed(capsys)["windows"]
    assert [window["window"][-2:] for window in windows] == ["01", "02", "03"]
    assert windows[0]["table_rows"] < windows[1]["table_rows"] < windows[2]["table_rows"]
    assert all(0 <= window["scores"]["hr@10"] <= 1 for window in windows[1:])


BAD = {
    "unit": (["--window", "year"], "--window"),
    "both": (
        ["--window", "day", "--valid-share", 0.1],
        "--window: each window is already held out",
    ),
    "valid": (["--window", "day", "--patience", 2], "--window already scores each window"),
    "one": (["--window", "month"], "all rows are in one window"),
    "column": (["--window", "day", "--time-column", "when"], "column when: the time column is mi"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused_in_one_line(case, clicks, capsys):
    arguments, message = BAD[case]
    assert train(clicks, *arguments) in (2, 3)
    error = capsys.readouterr().err
    assert message in error.splitlines()[-1]


def test_windows_begin_at_calendar_units_or_multiples():
    moments = ["2014-10-21T10:00", "2014-10-21T11:30", "2014-10-26", "2014-11-27"]
    names = {
        "hour": ["2014-10-21T10", "2014-10-21T11", "2014-10-26T00", "2014-11-27T00"],
        "day": ["2014-10-21", "2014-10-26", "2014-11-27"],
        "week": ["2014-10-20", "2014-11-24"],
        "month": ["2014-10", "2014-11"],
    }
    for unit, wanted in names.items():
        found = split_windows({"at": moments, "C1": [1, 2, 3, 4]}, "at", unit)
        assert [name for name, _ in found] == wanted
        assert sum(rows.num_rows for _, rows in found) == 4
    with pytest.raises(
        ConfigError, match="window is 'year'; it must be 'hour', 'day', 'week', 'mon"
    ):
        split_windows({"at": moments}, "at", "year")
    with pytest.raises(DataError, match="row 1, column at: 10+.0 is not a date in sec"):
        split_windows({"at": [1.0, 1e15]}, "at", "day")


def test_windows_of_interactions_have_the_histories_before_them():
    log = Interactions.read({"user": [7, 8, 7, 7], "item": [1, 2, 3, 4], "time": [10, 11, 20, 21]})
    (first, one), (second, two) = log.split_windows(10)
    assert (first, second) == ("10", "20")
    row = {"user": 7, "history": [1], "item": [3]}
    assert two.train.to_pylist() == [row, {"user": 7, "history": [1, 3], "item": [4]}]
    assert two.test.to_pylist() == [{"user": 7, "history": [1], "item": [3, 4]}]
    assert one.train.num_rows == 2 and one.valid.num_rows == two.valid.num_rows == 0
    with pytest.raises(ConfigError, match="windows need times: name the time column"):
        next(Interactions.read({"user": [7], "item": [1]}).split_windows("day"))
