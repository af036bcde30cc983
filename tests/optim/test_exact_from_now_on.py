# SPDX-License-Identifier: Apache-2.0
"""A saved trainer that goes on with other tables in exact mode, or with decay: the dense bits."""

from functools import partial
from itertools import product

import pytest

import sparsetrain as st
from tests import small_dlrm
from tests.helpers import slow_except

C1, C2, C3 = (f"embeddings.C{n}.weight" for n in (1, 2, 3))
MAKERS = {
    "adam": st.optim.adam,
    "adamw": st.optim.adamw,
    "momentum": st.optim.momentum,
    "rmsprop": st.optim.rmsprop,
    "adagrad, decay": partial(st.optim.adagrad, weight_decay=0.01),
}


def optimizer(make, exact=(), mode="exact", **options) -> st.optim.Optimizer:
    """Lazy, but for some tables."""
    groups = [st.optim.ParamGroup(name, mode=mode) for name in exact]
    return make(0.05, mode="lazy", groups=groups, **options)


def train(trainer: st.Trainer, first: int, kind: str) -> st.Trainer:
    for seed in range(first, first + 8):
        trainer.step(small_dlrm.batch(12, seed=seed, kind=kind))
    return trainer


def load(folder, optimizer, kind) -> st.Trainer:
    return small_dlrm.share_programs(st.load(folder, optimizer=optimizer), kind)


def after_many(folder, make, turns, kind="single") -> tuple[dict, dict]:
    """The state after some steps with each of `turns`, its exact tables, saved and loaded between.

    And the state where the tables of the last turn are in dense mode.
    """
    trainer = train(small_dlrm.trainer(kind, optimizer(make, turns[0])), 0, kind)
    for turn, tables in enumerate(turns[1:], 1):
        before = with_state(trainer, optimizer(make, tables, "dense"), kind)
        trainer.save(folder / str(turn))
        trainer = train(load(folder / str(turn), optimizer(make, tables), kind), 8 * turn, kind)
    dense = train(before, 8 * turn, kind)
    return tuple(
        {n: a for n, a in each.state_dict().items() if not n.endswith(":last")}
        for each in (trainer, dense)
    )


def with_state(source: st.Trainer, optimizer, kind) -> st.Trainer:
    """A trainer without the slot `last` that goes on from another one's state."""
    made = small_dlrm.trainer(kind, optimizer)
    state = {n: a for n, a in source.state_dict().items() if not n.endswith(":last")}
    if "optimizer:step" not in made.state_dict():
        state.pop("optimizer:step", None)
    with source.snapshot() as taken:
        made.load_state_dict(state, taken.counts)
    return made


# Exact tables of a run, and of those that go on with it.
TURNS = {
    "another one": [[C1], [C2]],
    "one more": [[C1], [C1, C2]],
    "neighbours that share a rule": [[C2], [C1, C2, C3]],
    "one less": [[C1, C2], [C2]],
    "one that was exact before": [[C1, C3], [C3], [C1, C3]],
}


# One formula; the others, and what differs from these by little, are slow ones.
QUICK = {("adam", turns) for turns in ("another one", "neighbours that share a rule", "one less")}


@pytest.mark.parametrize(("make", "turns"), slow_except(QUICK, product(MAKERS, TURNS)))
def test_tables_that_become_exact_are_so_from_then_on(tmp_path, make, turns):
    small_dlrm.assert_same_state(*after_many(tmp_path, MAKERS[make], TURNS[turns]))


def test_so_are_halves_whose_rounding_follows_the_step(tmp_path):
    turns = TURNS["another one"]
    small_dlrm.assert_same_state(*after_many(tmp_path, st.optim.adam, turns, "bfloat16"))


@pytest.mark.parametrize("make", slow_except([st.optim.adam], [st.optim.adam, st.optim.momentum]))
def test_rows_without_a_step_decay_from_when_there_is_decay(tmp_path, make):
    trainer = train(small_dlrm.trainer(optimizer=make(0.05, mode="exact")), 0, "single")
    assert (trainer.state_dict()[f"{C1}:last"] == -1).any()
    trainer.save(tmp_path / "run")
    exact, dense = (make(0.05, mode=mode, weight_decay=0.01) for mode in ("exact", "dense"))
    found = train(load(tmp_path / "run", exact, "single"), 8, "single").state_dict()
    wanted = train(with_state(trainer, dense, "single"), 8, "single").state_dict()
    small_dlrm.assert_same_state({name: found[name] for name in wanted}, wanted)
