# SPDX-License-Identifier: Apache-2.0
"""Commands with a schema in which a list of items and an item share a table."""

import pytest

from sparsetrain.cli import main
from tests.cli.commands import told
from tests.shared_tables import log

SCHEMA = """
label = "click"
categories = ["user", "history", "item"]
[columns.history]
share_embedding = "item"
"""
SMALL = ["--set", "model.dim=4", "--set", "model.bottom=8", "--set", "model.top=8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Raw rows, newer ones with new items, a schema, and a run on the raw rows."""
    path = tmp_path_factory.mktemp("share")
    log(rows=1_200).to_parquet(path / "raw.parquet")
    log(rows=300, items=14, seed=1).to_parquet(path / "newer.parquet")
    (path / "log.toml").write_text(SCHEMA)
    options = ["--schema", str(path / "log.toml"), "--out", str(path / "run"), "--min-count", "1"]
    assert main(["train", str(path / "raw.parquet"), *options, *SMALL]) == 0
    return path


def test_train_and_inspect_say_which_columns_share(folder, capsys):
    capsys.readouterr()
    options = ["--schema", str(folder / "log.toml"), "--min-count", "1", "--epochs", "1", *SMALL]
    assert main(["train", str(folder / "raw.parquet"), *options]) == 0
    said = capsys.readouterr().err
    assert "1 of them lists, history shares the table of item" in said
    assert "2 tables of 21 rows in all" in said
    assert main(["inspect", str(folder / "run")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "2 tables of 21 rows" in shown
    assert shown[-1] == "history shares the table of item"
    found = told(capsys, "inspect", folder / "run")
    assert found["config"]["share_embedding"] == {"history": "item"}
    assert main(["inspect", str(folder / "raw.parquet"), "--schema", str(folder / "log.toml")]) == 0
    assert "history shares the table of item" in capsys.readouterr().out


def test_evaluate_predict_and_quantize_read_raw_rows(folder, capsys):
    run, rows = folder / "run", folder / "raw.parquet"
    scores = told(capsys, "evaluate", run, rows)
    assert scores["rows"] == 1_200
    told(capsys, "predict", run, rows, "--out", folder / "scores.parquet")
    assert (folder / "scores.parquet").is_file()
    told(capsys, "quantize", run, "--out", folder / "int8")
    assert told(capsys, "evaluate", folder / "int8", rows)["auc"] == pytest.approx(
        scores["auc"], abs=0.01
    )


def test_a_run_that_starts_from_it_gives_new_items_rows_in_the_one_table(folder, capsys):
    capsys.readouterr()
    options = ["--start-from", str(folder / "run"), "--out", str(folder / "grown")]
    assert main(["train", str(folder / "newer.parquet"), *options]) == 0
    said = capsys.readouterr().err
    assert "item: 4 new rows, 16 in all" in said and "history: " not in said


def test_convert_keeps_one_table_and_training_on_it_too(folder, capsys):
    schema = ["--schema", folder / "log.toml", "--min-count", "1"]
    raw, out = folder / "raw.parquet", folder / "converted"
    summary = told(capsys, "convert", raw, *schema, "--out", out)
    assert summary["categories"]["history"]["share_embedding"] == "item"
    shown = told(capsys, "inspect", out / "_encoder.parquet")
    assert (shown["tables"], shown["share_embedding"]) == (
        {"user": 9, "item": 12},
        {"history": "item"},
    )
    told(capsys, "train", out, "--out", folder / "again", *SMALL)
    same = [told(capsys, "evaluate", folder / run, raw) for run in ("run", "again")]
    assert same[0] == same[1]
    assert main(["inspect", str(out / "_encoder.parquet")]) == 0
    assert capsys.readouterr().out.endswith("history shares the table of item\n")


@pytest.mark.parametrize("of", ["run", pytest.param("data", marks=pytest.mark.slow)])
def test_compare_has_a_case_for_the_one_table_with_the_ids_of_all_its_columns(folder, capsys, of):
    given = {
        "run": ["--from-run", folder / "run"],
        "data": ["--from-data", folder / "raw.parquet", "--schema", folder / "log.toml"],
    }
    options = ["--batch-size", "16", "--out", folder / of]
    found = told(capsys, "compare", *given[of], *options)
    cases = {measured["label"]: measured for measured in found["measurements"]}
    assert [name for name in cases if name in ("user", "item", "history")] == ["user", "item"]
    assert cases["item"]["lookups"] > cases["user"]["lookups"] == 16
