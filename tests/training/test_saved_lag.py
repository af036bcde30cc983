# SPDX-License-Identifier: Apache-2.0
"""A saved trainer whose rows lag: they stay so, and are current for whoever reads them."""

import json

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.checkpoint import opened, write
from sparsetrain.errors import CheckpointError
from sparsetrain.training import save as saving
from tests import small_dlrm
from tests.helpers import slow_except
from tests.parallel.threads import all_of, run_ranks

OPTIMIZERS = {
    "adam": lambda **o: st.optim.adam(0.05, **o),
    "adam, coupled decay": lambda **o: st.optim.adam(0.05, weight_decay=0.01, **o),
    "adamw, a limit": lambda **o: st.optim.adamw(0.05, max_replayed_steps=3, **o),
    "momentum, a schedule": lambda **o: st.optim.momentum(0.05 * st.optim.cosine(40), **o),
    "momentum, closed": lambda **o: st.optim.momentum(
        0.05, weight_decay=0.01, **o | {"mode": "closed", "max_replayed_steps": 2}
    ),
    "ftrl": lambda **o: st.optim.ftrl(0.05, l1=1e-3, **o),
}


def trainer(name="adam, coupled decay", kind="single", **options) -> st.Trainer:
    """By default no table is small enough to be updated in every row."""
    options = {"mode": "exact", "update": "sparse"} | options
    return small_dlrm.trainer(kind, OPTIMIZERS[name](**options))


def train(made: st.Trainer, first: int, steps: int = 8, kind: str = "single") -> st.Trainer:
    for seed in range(first, first + steps):
        made.step(small_dlrm.batch(4, seed, kind))
    return made


def missed(made: st.Trainer) -> dict[str, list[int]]:
    return {t.name: [h.missed for h in t.histories.values()] for t in made.params.lagging}


def load(folder, kind="single", **options) -> st.Trainer:
    return small_dlrm.share_programs(st.load(folder, **options), kind)


ALL = [(name, kind) for name in OPTIMIZERS for kind in ("single", "bfloat16")]
QUICK = [("adam, coupled decay", "single"), ("adamw, a limit", "bfloat16")]


@pytest.mark.parametrize(("name", "kind"), slow_except(QUICK, ALL))
def test_a_save_replays_nothing_and_the_run_goes_on_to_the_bits_of_one_never_saved(
    tmp_path, name, kind
):
    saved, never = (train(trainer(name, kind), 0, kind=kind) for _ in range(2))
    before = missed(saved)
    saved.save(tmp_path / "run")
    assert missed(saved) == before and any(map(any, before.values()))
    loaded = load(tmp_path / "run", kind)
    assert missed(loaded) == before
    found, wanted = (train(each, 8, kind=kind) for each in (loaded, never))
    small_dlrm.assert_same_state(found.state_dict(), wanted.state_dict())


def test_tables_updated_in_every_row_and_lagging_ones_are_saved_together(tmp_path):
    groups = [st.optim.ParamGroup("embeddings.C2.weight", update="dense")]
    saved, never = (train(trainer(groups=groups), 0) for _ in range(2))
    saved.save(tmp_path / "run")
    found, wanted = train(load(tmp_path / "run"), 8), train(never, 8)
    small_dlrm.assert_same_state(found.state_dict(), wanted.state_dict())


def test_a_long_history_is_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "MOST_MISSED", 4)
    made = train(trainer(), 0)
    made.save(tmp_path / "run")
    with opened(tmp_path / "run") as saved:
        assert saved.manifest["missed"] == []
    train(made, 8, 4).save(tmp_path / "run")
    assert missed(load(tmp_path / "run")) == missed(made)


def test_a_predictor_of_it_reads_the_rows_of_the_dense_twin(tmp_path):
    made, dense = train(trainer(), 0), train(trainer(mode="dense", update=None), 0)
    made.save(tmp_path / "run")
    rows = small_dlrm.batch(16, 99)
    predictor = st.load_predictor(tmp_path / "run")
    np.testing.assert_array_equal(predictor.predict([rows]), dense.predict([rows]))
    assert missed(predictor) == missed(made)


@pytest.mark.parametrize("custom", ["rate", "formula"])
def test_rows_are_current_in_it_where_the_optimizer_cannot_be_made_again(tmp_path, custom):
    if custom == "rate":
        optimizer = st.optim.adam(lambda step: 0.05, mode="exact", update="sparse")
    else:
        like = st.optim.adam(0.05)
        formula = like.formula._replace(name="mine")
        optimizer = st.optim.Optimizer(formula, like.hyper, mode="exact", update="sparse")
    made = train(small_dlrm.trainer(optimizer=optimizer), 0)
    made.save(tmp_path / "run")
    assert not any(map(any, missed(made).values()))
    state = made.state_dict()
    found = st.load_predictor(tmp_path / "run").state_dict()
    small_dlrm.assert_same_state(found, {name: state[name] for name in found})


OTHERS = {
    "another rate": lambda: OPTIMIZERS["adam, coupled decay"](mode="exact", update="sparse"),
    "no decay": lambda: OPTIMIZERS["adam"](mode="exact", update="sparse"),
    "every row": lambda: OPTIMIZERS["adam, coupled decay"](mode="exact", update="dense"),
    "one table": lambda: OPTIMIZERS["adam"](
        groups=[st.optim.ParamGroup("embeddings.C2.weight", mode="exact", update="sparse")]
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_rows_are_made_current_by_the_rule_of_then_before_they_follow_another(tmp_path, other):
    made = train(trainer(), 0)
    made.save(tmp_path / "lagging")
    made.params.flush()
    made.save(tmp_path / "current")
    found, wanted = (
        train(load(tmp_path / folder, optimizer=OTHERS[other]()), 8)
        for folder in ("lagging", "current")
    )
    small_dlrm.assert_same_state(found.state_dict(), wanted.state_dict())


def test_ranks_go_on_from_it_and_save_rows_that_are_current(tmp_path):
    made = train(trainer("adam"), 0)
    made.save(tmp_path / "run")

    def work(comm):
        group = st.parallel.group.Group(comm, "row", None)
        loaded = st.load(tmp_path / "run", target="cpu", parallel=group)
        assert any(map(any, missed(loaded).values()))
        loaded.save(tmp_path / "shared")
        return loaded.steps

    all_of(run_ranks(2, work))
    small_dlrm.assert_same_state(st.load(tmp_path / "shared").state_dict(), made.state_dict())


def test_a_run_of_an_older_version_loads(tmp_path):
    made = train(trainer(), 0)
    made.params.flush()
    made.save(tmp_path / "run")
    edit(tmp_path / "run", lambda manifest, _: manifest.pop("missed"))
    found, wanted = train(load(tmp_path / "run"), 8), train(made, 8)
    small_dlrm.assert_same_state(found.state_dict(), wanted.state_dict())


DAMAGES = {
    "steps are missing": lambda manifest, arrays: arrays.update(
        {"history/0": arrays["history/0"][:3]}
    ),
    "a number more": lambda manifest, arrays: arrays.update(
        {"history/0": np.pad(arrays["history/0"], ((0, 0), (0, 1)))}
    ),
    "no steps": lambda manifest, arrays: arrays.update({"history/0": arrays["history/0"][:0]}),
    "not finite": lambda manifest, arrays: arrays["history/0"].fill(np.nan),
    "the array is missing": lambda manifest, arrays: arrays.pop("history/0"),
    "a base beyond int32": lambda manifest, _: manifest["missed"][0].update(base=2**31),
    "a base below 0": lambda manifest, _: manifest["missed"][0].update(base=-1),
    "no base": lambda manifest, _: manifest["missed"][0].pop("base"),
    "no tables": lambda manifest, _: manifest["missed"][0].update(tables=[]),
    "other tables": lambda manifest, _: manifest["missed"][0].update(tables=["C9"]),
    "no list": lambda manifest, _: manifest.update(missed=7),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_history_is_refused(tmp_path, damage):
    train(trainer(), 0).save(tmp_path / "run")
    edit(tmp_path / "run", DAMAGES[damage])
    with pytest.raises(CheckpointError, match="run"):
        st.load(tmp_path / "run")


def edit(folder, change) -> None:
    """Write a checkpoint anew, with right checksums, after a change of manifest and arrays."""
    with opened(folder) as saved:
        arrays = {name: saved.read(name) for name in saved.kinds}
        manifest = json.loads(json.dumps(saved.manifest))
    change(manifest, arrays)
    write(folder, arrays, manifest)
