# SPDX-License-Identifier: Apache-2.0
"""`tune`, and `train --seeds`: several runs of one command."""

import errno
import os
import re
import sys

import numpy as np
import pandas as pd
import pytest

from sparsetrain.cli import main, tune
from sparsetrain.cli.settings.resolve import from_file
from sparsetrain.cli.tune import _dimension
from sparsetrain.errors import ConfigError, DataError, NumericalError
from sparsetrain.training.run.lock import locked
from tests import small_dlrm
from tests.cli.commands import told

SMALL = ["--set", "model.dim=4", "--set", "model.bottom=4", "--set", "model.top=4"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pd.DataFrame(small_dlrm.raw_rows(300)).to_parquet(path)
    return str(path)


@pytest.fixture
def optuna():
    return pytest.importorskip("optuna", reason="needs the extra `tune`")


SEARCH = ["--search", "optimizer.lr=log:0.001..1.0", "--search", "model.top=[4],[8]"]


@pytest.mark.parametrize("sampler", ["random", pytest.param("optuna", marks=pytest.mark.slow)])
def test_a_search_resumes_and_writes_the_settings_of_the_best(
    sampler, rows, tmp_path, capsys, optuna
):
    options = [rows, "--valid-share", "0.3", *SMALL[:4], "--out", tmp_path / "tuned", *SEARCH]
    options += ["--sampler", sampler]
    first = told(capsys, "tune", *options, "--trials", 1)
    found = told(capsys, "tune", *options, "--trials", 3)
    assert found["trials"][:1] == first["trials"] and len(found["trials"]) == 3
    assert len({trial["settings"]["optimizer.lr"] for trial in found["trials"]}) == 3
    scores = [trial["score"] for trial in found["trials"]]
    assert found["best"]["score"] == min(scores)
    best = {entry.key: entry.value for entry in from_file(tmp_path / "tuned" / "best.toml")}
    assert best["optimizer.lr"] == found["best"]["settings"]["optimizer.lr"]
    assert best["model.top"] == found["best"]["settings"]["model.top"]
    assert main(["tune", *map(str, options), "--search", "model.dim=4,8", "--trials", "1"]) == 2
    assert "it has the trials of" in capsys.readouterr().err


GRID = ["--sampler", "grid", "--search", "optimizer.lr=0.1,0.2", "--search", "model.top=[4],[8]"]


def test_a_grid_has_each_point_once_though_it_was_cut_off(
    rows, tmp_path, capsys, monkeypatch, optuna
):
    options = [rows, "--valid-share", "0.3", *SMALL[:4], "--out", tmp_path / "tuned", *GRID]
    train, trained = tune.run_training, []

    def fail_at_the_second(*arguments, **others):
        trained.append(arguments)
        if len(trained) == 2:
            raise DataError("cut off")
        return train(*arguments, **others)

    monkeypatch.setattr(tune, "run_training", fail_at_the_second)
    assert main(["tune", *map(str, options)]) == 3
    found = told(capsys, "tune", *options)
    points = [tuple(map(str, trial["settings"].values())) for trial in found["trials"]]
    assert sorted(points) == [(lr, top) for lr in ("0.1", "0.2") for top in ("[4]", "[8]")]
    assert len(trained) == 5


def scored_without_training(*_arguments, **_others):
    return {"best": {"value": 0.5}}


@pytest.mark.parametrize("kept", [0, 1])
def test_a_grid_has_each_point_though_it_was_cut_off_before_a_trial_had_its_settings(
    kept, rows, tmp_path, capsys, monkeypatch, optuna
):
    options = [rows, "--valid-share", "0.3", "--out", tmp_path / "tuned", *GRID]
    monkeypatch.setattr(tune, "run_training", scored_without_training)
    keep, asked = optuna.storages.JournalStorage.set_trial_param, []

    def full(*arguments):
        asked.append(arguments)
        if len(asked) > kept:
            raise OSError(28, "No space left on device")
        return keep(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(optuna.storages.JournalStorage, "set_trial_param", full)
        assert main(["tune", *map(str, options)]) > 0
    found = told(capsys, "tune", *options)
    assert len({str(trial["settings"]) for trial in found["trials"]}) == 4


def test_the_runs_of_a_command_say_the_same_of_their_data_once(rows, capsys):
    command = ["train", rows, "--model", "lr", "--valid-share", "0.3", "--seeds", "2"]
    assert main(command) == 0
    said = capsys.readouterr().err
    assert said.count("learning the encoding") == said.count("layout: ") == 1
    assert "sparsetrain: seed 0\n" in said and "sparsetrain: seed 1\n" in said


def test_a_trial_is_named_by_short_numbers(rows, tmp_path, capsys, monkeypatch, optuna):
    monkeypatch.setattr(tune, "run_training", scored_without_training)
    options = ["--valid-share", "0.3", *SEARCH, "--trials", "1", "--out", str(tmp_path / "tuned")]
    assert main(["tune", rows, *options]) == 0
    (named,) = re.findall("trial 1 of 1: optimizer.lr=([^,]*), model.top=", capsys.readouterr().err)
    assert len(named.strip("0.")) == 4


def test_searches_of_neighbouring_seeds_share_no_trial(rows, tmp_path, capsys, monkeypatch, optuna):
    monkeypatch.setattr(tune, "run_training", scored_without_training)
    options = ["tune", rows, "--valid-share", "0.3", *SEARCH[:2], "--trials", 4]
    rates = [
        trial["settings"]["optimizer.lr"]
        for seed in (0, 1)
        for trial in told(
            *(capsys, *options, "--out", tmp_path / str(seed), "--set", f"train.seed={seed}")
        )["trials"]
    ]
    assert len({*rates}) == 8


def test_a_trial_whose_numbers_are_not_finite_counts_without_a_score(
    rows, tmp_path, capsys, monkeypatch, optuna
):
    train = tune.run_training

    def diverge_at_two(settings, *arguments, **others):
        if settings.optimizer.lr == 0.2:
            raise NumericalError("a number is not finite")
        return train(settings, *arguments, **others)

    monkeypatch.setattr(tune, "run_training", diverge_at_two)
    options = [rows, "--valid-share", "0.3", *SMALL, *GRID[:4], "--out", tmp_path / "tuned"]
    for _ in range(2):  # the second makes none anew
        found = told(capsys, "tune", *options)
        by_rate = {trial["settings"]["optimizer.lr"]: trial for trial in found["trials"]}
        assert by_rate[0.1] == found["best"] and len(found["trials"]) == 2
        assert by_rate[0.2]["score"] is None and "not finite" in by_rate[0.2]["error"]


def test_without_optuna_the_extra_is_named(rows, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["tune", rows, *SEARCH, "--out", str(tmp_path)]) == 2
    assert "pip install 'sparsetrain[tune]'" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


DAMAGED = {
    "cut off": b'{"search": ',
    "not UTF-8": b"\xff\xfe\n",
    "a number": b"3\n",
    "deep": b"[" * 100_000 + b"\n",
    "no operation": b'{"settings": {}, "score": 1.0}\n',
    "an operation without its fields": b'{"op_code": 4}\n',
    "a damaged line before another": b'{"op_code": \n{}\n',
}


@pytest.mark.parametrize("case", DAMAGED)
def test_trials_that_cannot_be_read_are_refused(rows, tmp_path, capsys, case, optuna):
    (tmp_path / "trials.jsonl").write_bytes(DAMAGED[case])
    search = ["--search", "optimizer.lr=0.1,0.2", "--out", str(tmp_path)]
    assert main(["tune", str(rows), *search]) == 2
    told = capsys.readouterr().err
    assert "trials.jsonl: damaged; remove it" in told and told.count("\n") == 1
    assert (tmp_path / "trials.jsonl").read_bytes() == DAMAGED[case]


def test_a_folder_in_place_of_the_trials_is_refused(rows, tmp_path, capsys, optuna):
    (tmp_path / "trials.jsonl").mkdir()
    assert main(["tune", rows, "--search", "optimizer.lr=0.1,0.2", "--out", str(tmp_path)]) == 2
    assert "trials.jsonl: cannot be read: Is a directory; remove it" in capsys.readouterr().err


def test_a_disk_without_room_for_a_trial_is_found_before_the_first(
    rows, tmp_path, capsys, monkeypatch, optuna
):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    command = ["tune", rows, "--search", "optimizer.lr=0.1,0.2", "--out", str(tmp_path / "tuned")]
    assert main(command) == 6
    told = capsys.readouterr().err
    assert "trials.jsonl: cannot be written: No space left" in told and told.count("\n") == 1
    assert "trial 1" not in told


def test_a_second_search_in_a_folder_is_refused_meanwhile(rows, tmp_path, capsys, optuna):
    with locked(tmp_path):
        assert main(["tune", rows, *SEARCH, "--out", str(tmp_path)]) == 4
    assert "is being written by another run" in capsys.readouterr().err


def test_a_record_that_was_cut_off_is_left_out(rows, tmp_path, capsys, optuna):
    options = [rows, "--valid-share", "0.3", *SMALL, *SEARCH[:2], "--out", tmp_path]
    first = told(capsys, "tune", *options, "--trials", 1)
    with open(tmp_path / "trials.jsonl", "ab") as file:
        file.write(b'{"op_code": 4, "wor')
    found = told(capsys, "tune", *options, "--trials", 2)
    assert found["trials"][:1] == first["trials"] and len(found["trials"]) == 2
    assert told(capsys, "tune", *options, "--trials", 2) == found


def test_settings_whose_files_are_not_utf8_are_refused_before_the_first_trial(
    rows, tmp_path, capsys, optuna
):
    schema = tmp_path / os.fsdecode(b"a\xff.toml")
    schema.write_text('label = "label"\ncategories = ["C1"]\n')
    options = ["--schema", str(schema), "--search", "optimizer.lr=0.1,0.2"]
    assert main(["tune", rows, *options, "--out", str(tmp_path / "tuned")]) == 2
    told = capsys.readouterr().err
    assert r"a\udcff.toml" in told and "the name is not UTF-8; rename the file" in told
    assert told.count("\n") == 1 and not (tmp_path / "tuned").exists()


def test_another_search_may_begin_where_no_trial_was_made(rows, tmp_path, capsys, optuna):
    options = ["--search", "optimizer.lr=0.1,0.2", "--out", str(tmp_path)]
    assert main(["tune", str(tmp_path / "none.parquet"), *options]) == 3
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


def test_dimensions_are_values_or_ranges(optuna):
    kinds = optuna.distributions
    choices = kinds.CategoricalDistribution
    found = {
        "model.dim=8,16": choices(["8", "16"]),
        "optimizer.name=adam,sgd": choices(['"adam"', '"sgd"']),
        "model.top=[4],[8,8]": choices(["[4]", "[8, 8]"]),
        "model.dim=8..16": kinds.IntDistribution(8, 16),
        "optimizer.lr=0..1.5": kinds.FloatDistribution(0, 1.5),
        "optimizer.lr=log:0.01..1.0": kinds.FloatDistribution(0.01, 1, log=True),
    }
    for text, distribution in found.items():
        assert _dimension(text) == (text.partition("=")[0], distribution)


@pytest.mark.parametrize("text", ["model.dim", "model.dim=", "a.b=3..2", "a.b=x..y", "a.b=log:1,2"])
def test_other_dimensions_are_refused(text):
    with pytest.raises(ConfigError, match="--search"):
        _dimension(text)


def test_a_grid_of_a_range_is_refused(rows, tmp_path, capsys, optuna):
    command = ["tune", rows, *SEARCH, "--sampler", "grid", "--out", str(tmp_path)]
    assert main(command) == 2
    assert "a grid needs values" in capsys.readouterr().err
