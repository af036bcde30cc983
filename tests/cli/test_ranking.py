# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain train --task ranking`: from a log of interactions to ranking metrics."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparsetrain as st
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


def test_a_log_is_ranked_beside_pop_and_items_are_recommended_for_its_users(log, tmp_path, capsys):
    out, top = tmp_path / "run", tmp_path / "top.parquet"
    assert run(log, "--task", "ranking", "--model", "bpr", *BRIEF, "--out", out) == 0
    shown = capsys.readouterr()
    assert "test Pop " in shown.out and "valid Pop " in shown.out
    assert main(["evaluate", str(out), log, "--k", "5,10", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["users"] == USERS and 0 < found["pop_ndcg@5"] <= found["pop_ndcg@10"]
    assert main(["recommend", str(out), log, "--out", str(top), "--k", "26", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == {"users": USERS, "fewer_than_k": USERS, "out": str(top)}
    assert f"{USERS} users have fewer than 26 items they have not chosen" in told.err
    best = pq.read_table(top).to_pandas()
    assert best.groupby("user")["rank"].max().eq(ITEMS - 6).all() and best["item"].notna().all()
    chosen = st.data.Interactions.read(log).table().to_pandas()
    assert not {*zip(best["user"], best["item"], strict=True)} & {
        *zip(chosen["user"], chosen["item"], strict=True)
    }
    renamed = str(tmp_path / "renamed.csv")
    lines = Path(log).read_text().replace("\t", ",").splitlines()
    Path(renamed).write_text("\n".join(["who,what,timestamp", *lines[1:]]))
    named = ["--user", "who", "--item", "what"]
    assert main(["recommend", str(out), renamed, *named, "--out", str(top), "--include-seen"]) == 0
    assert pq.read_table(top).num_rows == 10 * USERS
    assert main(["evaluate", str(out), renamed, *named]) == 0


def test_what_ranks_no_items_recommends_none(tmp_path, capsys):
    rows = tmp_path / "rows.csv"
    rows.write_text("click,site\n" + "0,a\n1,b\n" * 20)
    assert run(rows, "--label", "click", "--out", tmp_path / "run") == 0
    given = [str(tmp_path / "run"), str(rows), "--out", str(tmp_path / "top.csv")]
    assert main(["recommend", *given]) == 2
    assert "does not rank items: use sparsetrain predict" in capsys.readouterr().err


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


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    """Train and test as LightGCN's repository has them, a user and its items in each line."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("preset")
    lines = {"train": [], "test": [], "negatives": []}
    for user in range(USERS):
        items = (rng.permutation(9) + user) % ITEMS
        count = int(rng.integers(4, 7))
        others = rng.permutation(np.setdiff1d(np.arange(ITEMS), items))[:12]
        for name, own in {
            "train": items[:count],
            "test": items[count:],
            "negatives": others,
        }.items():
            lines[name].append(" ".join(map(str, [user, *own])))
    lines["test"][3] = "3"  # of whom nothing is wanted
    for name, own in lines.items():
        (folder / f"{name}.txt").write_text("\n".join(own) + "\n")
    return folder


def lists_of(path):
    rows = (line.split() for line in path.read_text().splitlines())
    return {int(user): [*map(int, items)] for user, *items in rows}


def scores_by_hand(folder, users, items, k):
    """Recall and NDCG at k of all users with wanted items; vectors by the value of an id."""
    train, test = (lists_of(folder / f"{name}.txt") for name in ("train", "test"))
    recalls, gains = [], []
    for user, wanted in test.items():
        if not wanted:
            continue
        scores = {i: float(users[user] @ items[i]) for i in items if i not in train[user]}
        best = sorted(scores, key=lambda i: -scores[i])[:k]
        hits = [item in wanted for item in best]
        discounts = 1 / np.log2(np.arange(2, k + 2))
        recalls.append(sum(hits) / len(wanted))
        gains.append((discounts * hits).sum() / discounts[: len(wanted)].sum())
    return np.mean(recalls), np.mean(gains)


CONTRASTIVE = ("bpr", "--set", "model.loss=ccl", "--set", "model.negatives=8")


@pytest.mark.parametrize("model", [CONTRASTIVE, ("lightgcn",)], ids=["mf", "lightgcn"])
def test_a_preset_split_has_the_scores_that_numpy_gives(model, preset, tmp_path, capsys):
    command = [preset / "train.txt", "--test", preset / "test.txt", "--task", "ranking", "--model"]
    rest = [*model, "--k", "3,5", *BRIEF, "--lr", "0.05", "--epochs", 8]
    assert run(*command, *rest, "--out", tmp_path / "run", "--json") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["test"]
    trainer = st.load(tmp_path / "run")
    names = {n: trainer.encoder.values(n) for n in ("user", "item")}
    rows = pa.table({"user": [*range(USERS)], "history": [[]] * USERS, "item": [[]] * USERS})
    vectors = trainer.query_vectors(rows), trainer.item_vectors()
    items = {value: vectors[1][i] for i, value in enumerate(names["item"]) if i >= 2}
    assert found["users"] == USERS - 1 and len(items) == ITEMS
    for k in (3, 5):
        wanted = scores_by_hand(preset, vectors[0], items, k)
        assert (found[f"recall@{k}"], found[f"ndcg@{k}"]) == pytest.approx(wanted, abs=1e-9)


def test_validations_are_every_few_epochs_and_any_score_stops(preset, capsys):
    command = [preset / "train.txt", "--valid", preset / "test.txt", "--task", "ranking", *BRIEF]
    command += ["--model", "bpr", "--k", "2,4", "--epochs", 5, "--validate-epochs", 2]
    assert run(*command, "--monitor", "recall@4", "--patience", 3, "--json") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert ["valid" in epoch for epoch in found["epochs"]] == [False, True, False, True, True]
    values = [epoch["valid"]["recall@4"] for epoch in found["epochs"] if "valid" in epoch]
    assert found["best"]["value"] == max(values)
    assert run(*command, "--monitor", "recall@3", "--patience", 3) == 2
    assert "the scores are hr@2" in capsys.readouterr().err


def test_negatives_may_be_given_by_a_file(preset, tmp_path, capsys):
    one = tmp_path / "test.txt"
    wanted = lists_of(preset / "test.txt")
    lines = [f"{user} {items[0]}" for user, items in wanted.items() if items]
    one.write_text("\n".join(lines) + "\n")
    command = [preset / "train.txt", "--test", one, "--task", "ranking", "--model", "pop"]
    given = ["--negatives", preset / "negatives.txt", "--k", "1,13", "--json"]
    assert run(*command, *given) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["test"]
    counts = np.zeros(ITEMS)
    for items in lists_of(preset / "train.txt").values():
        counts[items] += 1
    others = lists_of(preset / "negatives.txt")
    hits = [
        counts[wanted[user][0]] > counts[others[user]].max()
        for user, items in wanted.items()
        if items
    ]
    assert found["hr@1"] == pytest.approx(np.mean(hits)) and found["hr@13"] == 1
    (tmp_path / "short.txt").write_text("0 1 2\n" + "1 2 3 4 5 6\n" * 2)
    assert run(*command, "--negatives", tmp_path / "short.txt") == 3
    assert "--negatives: user 2 has no negatives in the file" in capsys.readouterr().err


BAD = {
    "two splits": (
        ["--model", "bpr", "--valid", "LOG", "--valid-share", "0.1"],
        "--valid-share and --valid: use one way to split",
    ),
    "labels": (["--model", "dlrm"], "--task ranking: dlrm learns from labels: use --model bpr"),
    "column": (["--model", "bpr", "--item", "film"], "column film: the item column is missing"),
    "file": (["--model", "bpr", "--test", "x.inter"], "x.inter"),
    "label": (["--model", "bpr", "--label", "rating"], "--label: --task ranking reads"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused_in_one_line(case, log, capsys):
    arguments, message = BAD[case]
    given = [log if each == "LOG" else each for each in arguments]
    assert run(log, "--task", "ranking", *given) in (2, 3)
    error = capsys.readouterr().err
    assert message in error and error.strip().count("\n") == 0
