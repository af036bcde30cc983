# SPDX-License-Identifier: Apache-2.0
"""`train --start-from RUN`: the next day's rows, with the weights of the day before."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparsetrain as st
from sparsetrain.cli import main
from tests import small_dlrm

SMALL = ["--set", "model.dim=4", "--set", "model.bottom=8", "--set", "model.top=8"]


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    folder = tmp_path_factory.mktemp("days")
    for day in (1, 2):
        columns = small_dlrm.raw_rows(200, seed=day)
        columns["C1"] = [f"{40 * day + int(text, 16):08x}" for text in columns["C1"]]
        pq.write_table(pa.table(columns), folder / f"day{day}.parquet")
    first = ["train", str(folder / "day1.parquet"), "--out", str(folder / "one"), *SMALL]
    assert main([*first, "--min-count", "1", "--batch-size", "50", "--lr", "0.01"]) == 0
    return folder


def begin(days, out, *options) -> int:
    command = ["train", str(days / "day2.parquet"), "--start-from", str(days / "one"), "--json"]
    return main([*command, "--out", str(out), *options])


def test_a_run_begins_with_the_weights_and_settings_of_another(days, tmp_path, capsys):
    assert begin(days, tmp_path / "two", "--lr", "0.02") == 0
    told = capsys.readouterr()
    settings = json.loads(told.out.splitlines()[-1])["settings"]
    assert settings["train"]["batch_size"] == 50
    assert settings["optimizer"]["lr"] == 0.02
    assert "starting from step 4 of" in told.err
    assert "C1: 40 new rows, 90 in all" in told.err
    known, made = st.load(days / "one"), st.load(tmp_path / "two")
    again = known.extended(known.encoder.extended(days / "day2.parquet"))
    again.optimizer = made.optimizer
    again.fit(days / "day2.parquet", batch_size=50, progress=None)
    small_dlrm.assert_same_state(made.state_dict(), again.state_dict())
    assert (made.steps, made.epochs) == (8, 1)
    assert st.load(days / "one").steps == 4


def test_a_schedule_may_take_over_from_a_constant_rate_and_end(days, tmp_path, capsys):
    cosine = ["--set", "optimizer.schedule=cosine", "--set", "optimizer.schedule_steps=20"]
    assert begin(days, tmp_path / "two", *cosine) == 0
    made = st.load(tmp_path / "two")
    assert (made.steps, made.state.step) == (8, 8)
    constant = st.load(tmp_path / "two", optimizer=st.optim.adagrad(0.01))
    assert (constant.steps, constant.state.step) == (8, 8)
    state = made.state_dict()
    assert state.pop("optimizer:step").tolist() == [8]
    small_dlrm.assert_same_state(constant.state_dict(), state)


def test_such_a_run_is_resumed_by_its_own_folder(days, tmp_path, capsys):
    assert begin(days, tmp_path / "half") == 0
    assert main(["train", "--resume", str(tmp_path / "half"), "--epochs", "2"]) == 0
    assert begin(days, tmp_path / "whole", "--epochs", "2", "--resume", "auto") == 0
    half, whole = st.load(tmp_path / "half"), st.load(tmp_path / "whole")
    small_dlrm.assert_same_state(half.state_dict(), whole.state_dict())


def test_min_count_is_about_new_values_alone(days, tmp_path, capsys):
    assert begin(days, tmp_path / "two", "--min-count", "100") == 0
    assert "new row" not in capsys.readouterr().err
    assert st.load(tmp_path / "two").encoder.rows == small_dlrm.ROWS
    after = ["--start-from", str(tmp_path / "two"), "--out", str(tmp_path / "three")]
    assert main(["train", str(days / "day2.parquet"), *after]) == 0
    assert st.load(tmp_path / "three").encoder.rows == small_dlrm.ROWS  # as the settings say


def test_what_was_held_out_before_is_not_held_out_again(days, tmp_path, capsys):
    held = ["--start-from", str(days / "one"), "--valid-share", "0.2", "--out", str(tmp_path / "a")]
    assert main(["train", str(days / "day2.parquet"), *held]) == 0
    after = ["--start-from", str(tmp_path / "a"), "--json", "--out", str(tmp_path / "b")]
    capsys.readouterr()
    assert main(["train", str(days / "day2.parquet"), *after]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["rows"], result["valid"]) == (200, None)


def test_a_schema_may_have_been_moved_but_not_changed(days, tmp_path, capsys):
    text = 'label = "label"\ndense = ["I1"]\ncategories = ["C1"]\n'
    (tmp_path / "old.toml").write_text(text)
    first = ["--schema", str(tmp_path / "old.toml"), "--out", str(tmp_path / "one"), *SMALL]
    assert main(["train", str(days / "day1.parquet"), *first]) == 0
    (tmp_path / "old.toml").rename(tmp_path / "new.toml")
    start = ["train", str(days / "day2.parquet"), "--start-from", str(tmp_path / "one")]
    new = ["--schema", str(tmp_path / "new.toml")]
    assert main([*start, *new, "--out", str(tmp_path / "two")]) == 0
    (tmp_path / "new.toml").write_text(text + "[linear.I1]\nscale = 2\n")
    capsys.readouterr()
    assert main([*start, *new, "--out", str(tmp_path / "three")]) == 4
    said = capsys.readouterr().err
    assert (
        "new.toml: " in said
        and "trained with a different schema" in said
        and "linear.I1.scale was not set and is 2.0" in said
    )
    assert not (tmp_path / "three").exists()


@pytest.mark.parametrize(
    ("options", "code", "error"),
    [
        (["--set", "model.dim=8"], 4, "model.dim is 4 in .* cannot become 8: remove it, or"),
        (["--optimizer", "adam"], 4, "optimizer.name is 'adagrad' in .* cannot become 'adam'"),
        (["--set", "data.dense_fill=1"], 4, "data.dense_fill is 0.0 in .* cannot become 1.0"),
        (["--resume", "x"], 2, "--start-from and --resume exclude each other: remove one"),
        (["--allow-changed", "data"], 2, "--allow-changed needs --resume"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(days, tmp_path, capsys, options, code, error):
    assert begin(days, tmp_path / "two", *options) == code
    assert re.fullmatch(f"sparsetrain: error: {error}.*\n", capsys.readouterr().err)
    assert not (tmp_path / "two").exists()
