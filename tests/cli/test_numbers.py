# SPDX-License-Identifier: Apache-2.0
"""Use of numbers by the commands: binned by default, of raw rows and of converted ones."""

import numpy as np
import pandas as pd
import pytest

import sparsetrain as st
from sparsetrain.cli import main

SCHEMA = 'label = "click"\ndense = ["price", "age"]\ncategories = ["site"]\n'
OWN_BUCKETS = f'{SCHEMA[:-2]}, "cut"]\n[derived.cut]\nfrom = "age"\nboundaries = [20, 40]\n'
MODULE = "import sparsetrain as st\n\nclass Own(st.models.LR):\n    pass\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("numbers"), np.random.default_rng(0)
    rows = {"price": rng.lognormal(3, 1, 600).round(2), "age": rng.integers(1, 90, 600)}
    rows |= {"click": rng.integers(0, 2, 600), "site": rng.integers(0, 5, 600).astype(str)}
    frame = pd.DataFrame(rows)
    frame.loc[::7, "price"] = None
    frame.to_parquet(folder / "rows.parquet")
    (folder / "schema.toml").write_text(SCHEMA)
    (folder / "buckets.toml").write_text(OWN_BUCKETS)
    (folder / "own_numbers.py").write_text(MODULE)
    named = {"click": "label", "price": "I1", "age": "I2", "site": "C1"}
    frame.fillna(7).rename(columns=named).astype({"I1": "int64"}).to_parquet(
        folder / "criteo.parquet"
    )
    frame.rename(columns=named).astype({"C1": int, "I2": float}).fillna(7).to_parquet(
        folder / "encoded.parquet"
    )
    return folder


def run(*command):
    assert main([*map(str, command)]) == 0


def trained(files, out, *options, rows="rows.parquet"):
    """Train on a file by the command, and return the run, loaded."""
    run("train", files / rows, "--model", "lr", *options, "--out", out)
    return st.load(out)


DEFAULTS = [  # rows, options -> use of numbers
    ("rows.parquet", ("--label", "click"), "binned"),
    ("criteo.parquet", (), "binned"),
    ("criteo.parquet", ("--numbers", "scaled"), "scaled"),
    ("rows.parquet", ("--schema", "schema.toml"), "binned"),
    ("rows.parquet", ("--schema", "buckets.toml"), "scaled"),
    ("encoded.parquet", (), "scaled"),
    ("criteo.parquet", ("--model", "own_numbers:Own"), "scaled"),
]


@pytest.mark.parametrize(("rows", "options", "wanted"), DEFAULTS)
def test_numbers_are_binned_by_default_where_that_can_be(
    files, rows, options, wanted, tmp_path, monkeypatch
):
    monkeypatch.chdir(files)
    monkeypatch.syspath_prepend(str(files))
    run("train", rows, "--model", "lr", *options, "--out", tmp_path / "run")
    own = __import__("own_numbers").Own if "own_numbers:Own" in options else None
    model = st.load(tmp_path / "run", model=own).model
    assert model.config()["numbers"] == wanted
    assert model.config()["missing_flags"] == (wanted == "binned")


def test_the_use_of_numbers_is_shown_in_a_line(files, tmp_path, capsys):
    out = tmp_path / "run"
    trained(files, out, "--schema", files / "schema.toml")
    assert "numbers in bins: 2 of 2 columns\n" in capsys.readouterr().err
    run("inspect", out)
    assert "number_bins 2 lists of " in capsys.readouterr().out


def test_training_on_converted_rows_is_training_on_the_raw_ones(files, tmp_path):
    out, still = tmp_path / "converted", ("--set", "train.shuffle=false")
    run("convert", files / "rows.parquet", "--schema", files / "schema.toml", "--out", out)
    converted = trained(files, tmp_path / "a", *still, rows=out)
    raw = trained(files, tmp_path / "b", *still, "--schema", files / "schema.toml")
    assert converted.model.config() == raw.model.config()
    assert raw.model.config()["numbers"] == "binned"
    rows = pd.read_parquet(files / "rows.parquet")
    assert np.array_equal(converted.predict(rows), raw.predict(rows))
    scaled = trained(files, tmp_path / "c", "--numbers", "scaled", rows=out)
    assert scaled.model.config()["numbers"] == "scaled"


def test_rows_that_were_converted_without_boundaries_stay_scaled(files, tmp_path):
    st.data.convert_files(files / "criteo.parquet", tmp_path / "converted")
    made = trained(files, tmp_path / "run", rows=tmp_path / "converted")
    assert made.model.config()["numbers"] == "scaled"
    assert made.encoder.num_dense == 2


@pytest.mark.parametrize("numbers", [(), ("--numbers", "quantiles")])
def test_a_run_of_a_schema_file_is_resumed_and_started_from(files, numbers, tmp_path):
    schema, folder = ("--schema", files / "schema.toml"), tmp_path / "run"
    first = trained(files, folder, *schema, *numbers)
    run("train", "--resume", folder, "--epochs", "2", *schema)
    again = trained(files, tmp_path / "more", "--start-from", folder, *schema)
    assert again.model.config() == first.model.config()
    assert again.encoder.schema == first.encoder.schema
    other = tmp_path / "other.toml"
    other.write_text(SCHEMA.replace('"price", ', ""))
    told = ["train", files / "rows.parquet", "--start-from", folder, "--schema", other]
    assert main([*map(str, told)]) == 4


def test_a_use_of_numbers_that_the_model_ignores_is_refused(files, capsys):
    chosen = ["--model", "din", "--numbers", "binned"]
    assert main(["train", str(files / "criteo.parquet"), *chosen]) == 2
    assert "--numbers binned: din reads only columns that it names" in capsys.readouterr().err
