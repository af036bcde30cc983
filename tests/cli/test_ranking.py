# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain train --task ranking`: from a log of interactions to ranking metrics."""

import json

import numpy as np
import pytest

from sparsetrain.cli import main

USERS, ITEMS = 60, 30
BRIEF = ["--set", "model.dim=8", "--epochs", "2", "--batch-size", "32"]
SMALL = [*BRIEF, "--set", "model.length=8"]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Each user goes from item to item, round and round."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("log") / "rows.inter"
    rows = [
        f"{user}\t{(start + step) % ITEMS}\t{step}"
        for user, start in enumerate(rng.integers(0, ITEMS, USERS))
        for step in range(6)
    ]
    path.write_text("\n".join(["user_id:token\titem_id:token\ttimestamp:float", *rows]) + "\n")
    return str(path)


def run(*arguments):
    return main(["train", *map(str, arguments)])


@pytest.mark.parametrize(
    ("model", "options"),
    [("bpr", BRIEF), pytest.param("sasrec", SMALL, marks=pytest.mark.slow)],
)
def test_a_log_is_split_trained_on_ranked_and_resumed(log, tmp_path, capsys, model, options):
    command = [log, "--task", "ranking", "--model", model, *options, "--out", tmp_path / "run"]
    assert run(*command, "--negatives", 15, "--json") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["test"]["users"] == found["valid"]["users"] == USERS
    assert 0 < found["test"]["hr@10"] <= 1
    assert "ndcg@10" in found["epochs"][0]["valid"]
    assert run("--resume", tmp_path / "run", "--epochs", 3, "--json") == 0
    assert len(json.loads(capsys.readouterr().out.splitlines()[-1])["epochs"]) == 3


@pytest.mark.slow
def test_ages_are_read_where_a_model_has_them(log, tmp_path, capsys):
    command = [log, "--task", "ranking", "--model", "hstu", *SMALL, "--json"]
    assert run(*command, "--out", tmp_path / "run") == 0
    assert run(*command, "--set", "model.ages=false") == 0
    timed, plain = map(json.loads, capsys.readouterr().out.splitlines())
    assert timed["test"] != plain["test"]


@pytest.mark.slow
def test_pairs_are_split_by_share_and_what_was_seen_is_no_candidate(log, capsys):
    command = [log, "--task", "ranking", "--model", "bpr", "--set", "model.dim=8"]
    assert run(*command, "--valid-share", 0.2, "--json") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["test"]["users"] == USERS and found["settings"]["data"]["valid_share"] == 0.2
    assert run(*command, "--valid-from", 4, "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["test"] is None


BAD = {
    "labels": (["--model", "dlrm"], "--task ranking: dlrm learns from labels; --model bpr"),
    "column": (["--model", "bpr", "--item", "film"], "column film: the item column is missing"),
    "file": (["--model", "bpr", "--test", "x.inter"], "--test: --task ranking splits"),
    "label": (["--model", "bpr", "--label", "rating"], "--label: --task ranking reads"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused_in_one_line(case, log, capsys):
    arguments, message = BAD[case]
    assert run(log, "--task", "ranking", *arguments) in (2, 3)
    error = capsys.readouterr().err
    assert message in error and error.strip().count("\n") == 0
