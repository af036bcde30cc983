# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain compare` as people call it."""

import json

import pytest

from sparsetrain.cli import main

QUICK = ["compare", "--sweep", "skew", "--rows", "400", "--lookups", "64"]


def test_it_prints_a_table_and_leaves_figures_and_pictures(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main([*QUICK, "--out", str(tmp_path / "new")]) == 0
    printed = capsys.readouterr()
    assert "median µs" in printed.out and "zipf1.05" in printed.out
    assert "3 of 3: 400 x 16, 64 same ids, sgd" in printed.err
    found = {file.name for file in (tmp_path / "new").iterdir()}
    assert {"compare.json", "time-by-skew-sgd.png", "time-by-skew-sgd.svg"} == found


def test_tables_of_a_model_are_bars(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    options = ["--tables", "30,400", "--lookups", "64", "--arm", "sparse", "--arm", "dense"]
    assert main(["compare", *options, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "T2" in printed and "400" in printed and "stock" not in printed
    assert (tmp_path / "tables-sgd.svg").stat().st_size > 5000


def test_json_is_one_object_on_stdout(tmp_path, capsys):
    assert main([*QUICK, "--out", str(tmp_path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["machine"]["threads"] > 0
    assert {m["arm"] for m in result["measurements"]} == {"dense", "sparse"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--sweep", "depth"], "sweep is one of"),
        (["--formula", "adamax"], "formula is one of"),
        (["--skew", "normal"], "skew is uniform"),
        (["--width", "0"], "width is 0"),
        (["--from-data", "x", "--full"], "leave out --sweep"),
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
