# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain compare` as people call it."""

import json

import pytest

from sparsetrain.cli import main
from sparsetrain.compare import tables

QUICK = ["compare", "--lookups", "64", "--formula", "sgd"]


@pytest.fixture(autouse=True)
def _small_sweep(monkeypatch):
    monkeypatch.setattr(tables, "_SWEPT", (300, 400))


def test_it_prints_a_table_and_leaves_numbers_and_a_plot(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main([*QUICK, "--out", str(tmp_path / "new")]) == 0
    printed = capsys.readouterr()
    assert "median µs" in printed.out and "is faster" in printed.out
    assert "2 of 2: 400 x 16, 64 uniform ids, sgd" in printed.err
    found = {file.name: file.stat().st_size for file in (tmp_path / "new").iterdir()}
    assert found.keys() == {"compare.json", "sgd.png"} and found["sgd.png"] > 5000
    written = json.loads((tmp_path / "new" / "compare.json").read_text())
    assert [m["rows"] for m in written["measurements"]] == 3 * [300] + 3 * [400]


@pytest.mark.slow
def test_tables_of_a_model_are_measured_alone_and_together(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    options = ["--tables", "30,400", "--lookups", "64"]
    assert main(["compare", *options, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "T2" in printed and "all together" in printed and "exact" not in printed
    assert (tmp_path / "sgd.png").stat().st_size > 5000


@pytest.mark.slow
def test_json_is_one_object_on_stdout(tmp_path, capsys):
    assert main([*QUICK, "--out", str(tmp_path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["machine"]["threads"] > 0
    assert {m["arm"] for m in result["measurements"]} == {"stock", "dense", "sparse"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--formula", "adamax"], "formula must be one of"),
        (["--skew", "normal"], "skew must be uniform"),
        (["--width", "0"], "width is 0"),
        (["--tables", "5", "--formula", "sgd", "--formula", "adam"], "only one formula"),
        (["--from-run", "x", "--schema", "y"], "--schema names the columns of --from-data"),
        (["--from-data", "x", "--schema", "no.toml"], "no.toml"),
        (["--tables", "5,six"], "rows of each table"),
        (["--tables", "5,0"], "rows is 0"),
        (["--out", __file__ + "/x"], "not a folder"),
    ],
)
def test_an_option_that_makes_no_sense_is_one_line_and_code_2(options, told, tmp_path, capsys):
    assert main(["compare", "--out", str(tmp_path / "x"), *options]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
    assert not (tmp_path / "x").exists()
