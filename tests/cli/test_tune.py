# SPDX-License-Identifier: Apache-2.0
"""`tune`, and `train --seeds`: several runs of one command."""

import errno
import json
import os
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest

from sparsetrain.cli import main
from sparsetrain.cli.settings.resolve import from_file
from sparsetrain.cli.tune import _dimension
from sparsetrain.errors import ConfigError
from tests import small_dlrm

SMALL = ["--set", "model.dim=4", "--set", "model.bottom=4", "--set", "model.top=4"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pd.DataFrame(small_dlrm.raw_rows(300)).to_parquet(path)
    return str(path)


def told(capsys, *command):
    capsys.readouterr()
    assert main([*map(str, command), "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


SEARCH = ["--search", "optimizer.lr=log:0.001..1.0", "--search", "model.top=[4],[8]"]


def test_a_search_resumes_and_writes_the_settings_of_the_best(rows, tmp_path, capsys):
    options = [rows, "--valid-share", "0.3", *SMALL[:4], "--out", tmp_path / "tuned", *SEARCH]
    first = told(capsys, "tune", *options, "--trials", 1)
    found = told(capsys, "tune", *options, "--trials", 3)
    assert found["trials"][:1] == first["trials"] and len(found["trials"]) == 3
    scores = [trial["score"] for trial in found["trials"]]
    assert found["best"]["score"] == min(scores)
    best = {entry.key: entry.value for entry in from_file(tmp_path / "tuned" / "best.toml")}
    assert best["optimizer.lr"] == found["best"]["settings"]["optimizer.lr"]
    assert main(["tune", *map(str, options[:-1]), "model.top=[4]", "--trials", "1"]) == 2
    assert "it holds the trials of" in capsys.readouterr().err


SEARCHED = b'{"search": ["optimizer.lr=0.1,0.2"], "sampler": "random", "seed": 1}\n'
DAMAGED = {
    "cut off": b'{"search": ',
    "not UTF-8": b"\xff\xfe",
    "a number": b"3",
    "deep": b"[" * 100_000,
    "a trial that is a number": SEARCHED + b"3",
    "a trial without draws": SEARCHED + b'{"settings": {}, "score": 1.0}',
    "a score that is text": SEARCHED
    + b'{"settings": {}, "draws": [0.1], "score": "x", "error": null}',
}


@pytest.mark.parametrize("case", DAMAGED)
def test_trials_that_cannot_be_read_are_refused(rows, tmp_path, capsys, case):
    (tmp_path / "trials.jsonl").write_bytes(DAMAGED[case])
    search = ["--search", "optimizer.lr=0.1,0.2", "--out", str(tmp_path)]
    assert main(["tune", str(rows), *search]) == 2
    told = capsys.readouterr().err
    assert "trials.jsonl: damaged; remove it" in told and told.count("\n") == 1
    assert (tmp_path / "trials.jsonl").read_bytes() == DAMAGED[case]


def test_a_folder_in_place_of_the_trials_is_refused(rows, tmp_path, capsys):
    (tmp_path / "trials.jsonl").mkdir()
    assert main(["tune", rows, "--search", "optimizer.lr=0.1,0.2", "--out", str(tmp_path)]) == 2
    assert "trials.jsonl: cannot be read: Is a directory; remove it" in capsys.readouterr().err


def test_a_disk_without_room_for_a_trial_is_found_before_the_first(
    rows, tmp_path, capsys, monkeypatch
):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pathlib.Path.write_text", full)
    command = ["tune", rows, "--search", "optimizer.lr=0.1,0.2", "--out", str(tmp_path / "tuned")]
    assert main(command) == 6
    told = capsys.readouterr().err
    assert "trials.jsonl: cannot be written: No space left" in told and told.count("\n") == 1
    assert not [*(tmp_path / "tuned").iterdir()]


def test_settings_whose_files_are_not_utf8_are_refused_before_the_first_trial(
    rows, tmp_path, capsys
):
    schema = tmp_path / os.fsdecode(b"a\xff.toml")
    schema.write_text('label = "label"\ncategories = ["C1"]\n')
    options = ["--schema", str(schema), "--search", "optimizer.lr=0.1,0.2"]
    assert main(["tune", rows, *options, "--out", str(tmp_path / "tuned")]) == 2
    told = capsys.readouterr().err
    assert r"a\udcff.toml" in told and "the name is not UTF-8; rename the file" in told
    assert told.count("\n") == 1 and not (tmp_path / "tuned").exists()


def test_another_search_may_begin_where_no_trial_was_made(rows, tmp_path, capsys):
    options = ["--search", "optimizer.lr=0.1,0.2", "--out", str(tmp_path)]
    assert main(["tune", str(tmp_path / "none.parquet"), *options]) == 3
    (tmp_path / "trials.jsonl").write_bytes(SEARCHED)
    options = [*SMALL, "--search", "optimizer.lr=0.3", "--valid-share", "0.3", "--trials", "1"]
    assert told(capsys, "tune", rows, *options, "--out", tmp_path)["best"]["score"] > 0


@pytest.mark.slow
def test_seeds_give_means_and_deviations(rows, tmp_path, capsys):
    out = tmp_path / "runs"
    found = told(capsys, "train", rows, "--valid-share", 0.3, *SMALL, "--seeds", 2, "--out", out)
    scores = [run["valid"]["auc"] for run in found["runs"]]
    assert found["valid"]["auc"]["mean"] == pytest.approx(np.mean(scores))
    assert found["valid"]["auc"]["deviation"] == pytest.approx(np.std(scores, ddof=1))
    assert scores[0] != scores[1] and (out / "seed-1").is_dir()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("optuna") is None, reason="needs Optuna")
def test_optuna_goes_on_from_recorded_trials(rows, tmp_path, capsys):
    options = [rows, "--valid-share", "0.3", *SMALL[:4], "--out", tmp_path / "tuned", *SEARCH]
    for trials in (2, 3):
        found = told(capsys, "tune", *options, "--sampler", "optuna", "--trials", trials)
    assert len(found["trials"]) == 3


def test_dimensions_are_values_or_ranges():
    assert _dimension("model.dim=8,16").at(0.6) == 16
    assert _dimension("model.dim=8..16").at(0.5) == 12
    assert _dimension("optimizer.lr=log:0.01..1.0").at(0.5) == pytest.approx(0.1)
    assert _dimension("optimizer.name=adam,sgd").at(0) == "adam"
    assert _dimension("model.top=[4],[8,8]").at(0.9) == [8, 8]


@pytest.mark.parametrize("text", ["model.dim", "model.dim=", "a.b=3..2", "a.b=x..y", "a.b=log:1,2"])
def test_other_dimensions_are_refused(text):
    with pytest.raises(ConfigError, match="--search"):
        _dimension(text)
