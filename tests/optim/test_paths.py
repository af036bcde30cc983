# SPDX-License-Identifier: Apache-2.0
"""The dense path of row-sparse gradients: the bits of the sparse one, and who takes which."""

import numpy as np
import pytest

from sparsetrain import optim
from sparsetrain.errors import ConfigError, DataError, ResourceError
from sparsetrain.optim.paths import choice, parting
from sparsetrain.optim.paths.choice import choose
from sparsetrain.optim.paths.costs import Kept
from sparsetrain.optim.paths.costs.lines import Costs
from sparsetrain.optim.paths.costs.trial import Verdict
from sparsetrain.optim.step import Step
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.sparse_tensor import RowSparse
from tests.helpers import assert_same_bits
from tests.optim.oracle import MAKERS, Table, lr

# Formulas to which a gradient of 0 does nothing.
NO_OP = {"sgd": optim.sgd, "adagrad": optim.adagrad, "rowwise_adagrad": optim.rowwise_adagrad}
TABLES = {"a": slice(0, 3), "b": slice(3, 203), "c": slice(203, 204), "d": slice(204, 300)}


def train(optimizer, steps: int = 6, width: int = 5, tables=TABLES, **draw):
    """Weights and slots of one storage after steps on duplicates, padding and empty batches."""
    weight = np.random.default_rng(1).standard_normal((300, width)).astype("f4")
    weight[150] = -0.0
    params = {"t": as_tensor(weight)}
    state = optimizer.init(params, {"t": tables})
    for step in range(steps):
        gradient = random_gradient(np.random.default_rng(step), width, **draw)
        rows = as_numpy(gradient.indices)
        optimizer.catch_up_(params, {"t": rows[rows < 300]}, state)
        optimizer.apply_(params, {"t": gradient}, state)
    optimizer.flush_(params, state)
    slots = {name: slot for name, slot in state["t"].items() if name != "last"}
    return {name: as_numpy(t).copy() for name, t in {"w": params["t"], **slots}.items()}


def random_gradient(rng, width: int, pooled: bool = False, index_dtype: str = "i4"):
    size = int(rng.choice([0, 40, 400]))
    values = rng.standard_normal((9 if pooled else size, width)) * 10 ** rng.uniform(-3, 3)
    source = rng.integers(0, 9, size) if pooled else None
    indices = (rng.zipf(1.3, size) * 7 % 301).astype(index_dtype)  # 300 is padding
    return RowSparse.from_numpy(indices, values.astype("f4"), 300, source)


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, array in expected.items():
        assert_same_bits(found[name], array)


def costing(monkeypatch, **numbers) -> None:
    """Let everything cost nothing but what is named, and a trial confirm what that proposes."""
    costs_ = Costs(**dict.fromkeys(Costs._fields, 0.0) | {"high": np.inf} | numbers)
    monkeypatch.setattr(choice, "costs_of", lambda *_: costs_)
    monkeypatch.setattr(choice, "DOUBT", 0.0)
    monkeypatch.setattr(choice, "verdict_of", lambda *_: Kept(Verdict(np.inf, np.inf), 1))


@pytest.mark.parametrize("name", NO_OP)
@pytest.mark.parametrize(
    "draw", [{}, {"pooled": True}, {"index_dtype": "i8"}, {"width": 16}], ids=str
)
def test_both_paths_give_the_same_bits(name, draw):
    sparse, dense = (train(NO_OP[name](0.1, update=u), **draw) for u in ("sparse", "dense"))
    assert_same(dense, sparse)


@pytest.mark.parametrize("options", [{"clip_norm": 0.1}, {"clip_value": 0.01}], ids=str)
def test_both_paths_clip_alike(options):
    sparse, dense = (train(optim.adagrad(0.1, update=u, **options)) for u in ("sparse", "dense"))
    assert_same(dense, sparse)


@pytest.mark.parametrize("name", NO_OP)
@pytest.mark.parametrize("row", [0.0, 0.1, 1.0], ids=["all dense", "some dense", "none dense"])
def test_what_is_cheaper_changes_no_bits(monkeypatch, name, row):
    costing(monkeypatch, entry=1.0, row=row)
    expected = train(NO_OP[name](0.1, update="sparse"))
    assert_same(train(NO_OP[name](0.1)), expected)


def test_without_memory_for_the_buffer_only_those_who_asked_for_the_path_hear_of_it(monkeypatch):
    def full(*_):
        raise ResourceError("no memory for the dense gradient")

    costing(monkeypatch, entry=1.0)
    monkeypatch.setattr(parting, "DensePath", full)
    sparse = train(optim.sgd(0.1, update="sparse"))
    for key, array in train(optim.sgd(0.1)).items():
        assert_same_bits(array, sparse[key])
    with pytest.raises(ResourceError, match="no memory for the dense gradient"):
        train(optim.sgd(0.1, update="dense"))


@pytest.mark.parametrize("name", ["adam", "momentum", "rmsprop, coupled decay", "ftrl"])
def test_forced_dense_gives_the_bits_of_exact_mode(name):
    exact = train(MAKERS[name](lr(6), mode="exact"))
    for mode, update in (("exact", "dense"), ("dense", "auto")):
        assert_same(train(MAKERS[name](lr(6), mode=mode, update=update)), exact)


def test_groups_choose_by_table():
    groups = [optim.Group("b", update="dense"), optim.Group("d", update="dense", lr=0.5)]
    expected = train(optim.sgd(0.1, groups=[optim.Group("d", lr=0.5)], update="sparse"))
    assert_same(train(optim.sgd(0.1, groups=groups, update="sparse")), expected)


def test_a_row_outside_the_table_is_refused_before_anything_is_written():
    params = {"t": as_tensor(np.ones((300, 2), "f4"))}
    optimizer = optim.sgd(0.1, update="dense")
    state = optimizer.init(params, {"t": TABLES})
    for bad in (-1, 301):
        indices = as_tensor(np.array([5, bad], np.int32))
        gradient = RowSparse(indices, as_tensor(np.ones((2, 2), "f4")), 300)
        with pytest.raises(DataError, match="1 of 2 row indices lie outside the 300 rows"):
            optimizer.apply_(params, {"t": gradient}, state)
    assert_same_bits(params["t"], np.ones((300, 2), "f4"))


def test_the_buffer_is_kept_and_clear_after_a_step_that_failed():
    table = Table(optim.sgd(0.1, update="dense"), 70, 3)
    gradient = RowSparse.from_numpy([1, 69, 1], np.ones((3, 3), "f4"), 70)
    table.optimizer.apply_(table.params, {"t": gradient}, table.state)
    path = table.state.paths["t"]
    broken = Step(table.params, {"t": gradient}, table.state, 1.0, None)
    broken.scalars = lambda rule: ("no number",)
    with pytest.raises(Exception, match="no number|[Mm]ismatch|type"):
        broken.finish_()
    table.optimizer.apply_(table.params, {"t": gradient}, table.state)
    assert table.state.paths["t"] is path
    assert not as_numpy(path.gradient).any()


# --- The choice ---------------------------------------------------------------------------------


def labels(chosen) -> list[str]:
    return [name for part in chosen.dense for name in part.names]


@pytest.mark.parametrize(
    ("numbers", "lookups", "expected"),
    [
        ({"entry": 1.0, "row": 1.0}, 400, ["a", "c", "d"]),  # 100 ids a table: up to 100 rows
        ({"entry": 1.0, "row": 1.0}, 4, []),  # one id: none but c, which does not gain
        ({"entry": 1.0, "row": 1.0, "add": 1.0}, 400, []),
        ({"entry": 1.0, "row": 1.0, "dense": 150.0}, 400, ["a", "c", "d"]),  # gain 97 + 99 + 4
        ({"entry": 1.0, "row": 1.0, "dense": 201.0}, 400, []),
        ({"entry": 1.0, "row": 1.0, "part": 0.6}, 400, []),  # of every id, also of sparse tables
        ({"entry": 1.0, "row": 1.0, "sparse": 300.0}, 400, ["a", "b", "c", "d"]),
    ],
)
def test_small_tables_that_are_looked_up_often_are_dense(monkeypatch, numbers, lookups, expected):
    costing(monkeypatch, **numbers)
    table = Table(optim.sgd(0.1), 300, 4)
    state = table.optimizer.init(table.params, {"t": TABLES})
    assert labels(choose(state, "t", lookups, 4, "float32")) == expected


def test_cost_never_decides_where_the_paths_differ(monkeypatch):
    costing(monkeypatch, entry=1.0)
    for optimizer in (optim.adam(0.1), optim.adam(0.1, mode="exact"), optim.sgd(0.1, mode="dense")):
        table = Table(optimizer, 300, 4)
        assert labels(choose(table.state, "t", 400, 4, "float32")) == []
    decayed = Table(optim.sgd(0.1, weight_decay=0.1), 300, 4)
    assert labels(choose(decayed.state, "t", 400, 4, "float32")) == []


def test_each_table_says_which_path_is_cheaper(monkeypatch):
    costing(monkeypatch, entry=1.0, row=1.0)
    groups = [optim.Group("b", update="sparse"), optim.Group("c", update="dense")]
    optimizer, params = optim.sgd(0.1, groups=groups), {"t": as_tensor(np.ones((300, 4), "f4"))}
    state = optimizer.init(params, {"t": TABLES})
    a, b, c, d = optimizer.describe(state, params, 90)
    assert a.startswith("a: every row, the cheaper way; lazy is exact: ")
    assert b == "b: touched rows; lazy is exact here: a gradient of 0 changes nothing"
    assert c == "c: every row, as asked for; lazy means the same here"
    assert d.endswith("; every row would not be cheaper")
    assert optimizer.summarize(state, params, 90) == (
        "every row, the cheaper way (1 table); touched rows (2 tables); every row, as asked for "
        "(1 table)"
    )
    assert "in steps where that is cheaper" in optimizer.describe(state)[0]


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_no_table_of_coalesced_gradients_is_said_to_be_dense(monkeypatch, clip_norm):
    costing(monkeypatch, sparse=300.0)
    table = Table(optim.adagrad(0.1, clip_norm=clip_norm), 300, 4)
    (line,) = table.optimizer.describe(table.state, table.params, 90 if clip_norm else 0)
    assert line.startswith("t: touched rows; ") and line.endswith(
        "; every row would not be cheaper"
    )


def test_nothing_is_measured_for_a_table_on_a_gpu(monkeypatch):
    monkeypatch.setattr(choice, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(choice, "costs_of", None)
    table = Table(optim.sgd(0.1), 300, 4)
    said = table.optimizer.describe(table.state, table.params, 90)
    assert said == ["t: touched rows; lazy is exact here: a gradient of 0 changes nothing"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.sgd(0.1, update="both"), "sgd: update is one of auto, sparse, dense"),
        (lambda: optim.Group("a", update="both"), "group 'a': update is one of"),
        (lambda: optim.adam(0.1, update="dense"), "adam: mode 'lazy' leaves rows alone that"),
        (lambda: optim.sgd(0.1, mode="dense", update="sparse"), "take mode 'exact' for update 'sp"),
        (
            lambda: optim.adam(0.1, mode="exact", cap=9, update="dense"),
            "adam: cap limits what rows catch up; with update 'dense' none does",
        ),
    ],
)
def test_a_choice_that_would_change_the_meaning_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(("saved", "expected"), [(21.0, ["a", "c", "d"]), (19.0, []), (-1.0, [])])
@pytest.mark.parametrize(("part", "tried"), [(0.1, True), (0.5, True), (0.6, True), (0.8, False)])
def test_what_the_lines_do_not_speak_clearly_against_is_tried(
    monkeypatch, part, tried, saved, expected
):
    # 400 ids cost 400 on the sparse path, or 199 and those of parting; the lines are good to 20 %,
    # and the dense path must save 20, where enough runs found that.
    costing(monkeypatch, entry=1.0, row=1.0, part=part)
    monkeypatch.setattr(choice, "DOUBT", 0.2)
    asked = []
    verdict = Kept(Verdict(saved, saved + 9.0), 3)
    monkeypatch.setattr(choice, "verdict_of", lambda *what: asked.append(what[3:]) or verdict)
    state = optim.sgd(0.1).init({"t": as_tensor(np.ones((300, 4), "f4"))}, {"t": TABLES})
    found = labels(choose(state, "t", 400, 4, "float32"))
    assert found == (expected if tried else [])
    assert asked == [(300, [3, 1, 96], 100, 100)] * tried


@pytest.mark.parametrize(("saved", "runs", "dense"), [(99.0, 2, 0), (101.0, 1, 3), (21.0, 3, 3)])
def test_what_few_runs_found_must_save_more(monkeypatch, saved, runs, dense):
    costing(monkeypatch, entry=1.0, row=1.0, part=0.1)
    monkeypatch.setattr(choice, "verdict_of", lambda *_: Kept(Verdict(saved, saved + 9.0), runs))
    state = optim.sgd(0.1).init({"t": as_tensor(np.ones((300, 4), "f4"))}, {"t": TABLES})
    assert len(choose(state, "t", 400, 4, "float32").dense) == dense


def test_without_memory_to_try_it_rows_are_touched(monkeypatch):
    def full(*_):
        raise ResourceError("no memory for a table to measure")

    costing(monkeypatch, entry=1.0, row=1.0)
    monkeypatch.setattr(choice, "DOUBT", 2.0)
    monkeypatch.setattr(choice, "verdict_of", full)
    state = optim.sgd(0.1).init({"t": as_tensor(np.ones((300, 4), "f4"))}, {"t": TABLES})
    assert not choose(state, "t", 400, 4, "float32").dense


@pytest.mark.parametrize("unknown", ["costs_of", "verdict_of"])
def test_rows_are_touched_while_the_machine_is_too_busy_to_tell_what_is_cheaper(
    monkeypatch, unknown
):
    costing(monkeypatch, entry=1.0)
    table = Table(optim.sgd(0.1), 300, 4)
    assert choose(table.state, "t", 90, 4, "float32").dense
    monkeypatch.setattr(choice, unknown, lambda *_: None)
    assert choose(table.state, "t", 90, 4, "float32") == choice.Choice((), known=False)
    (line,) = table.optimizer.describe(table.state, table.params, 90)
    assert line.endswith(
        "; the machine was too busy to tell whether every row is cheaper: the next run tries again"
    )
    assert table.optimizer.summarize(table.state, table.params, 90) == "touched rows (1 table)"


def test_a_table_update_is_the_step_of_its_path():
    weight = np.random.default_rng(0).standard_normal((50, 4)).astype("f4")
    gradient = RowSparse.from_numpy([3, 49, 3], np.ones((3, 4), "f4"), 50)
    for mode, update in (("exact", "sparse"), ("exact", "dense"), ("dense", "dense")):
        step = optim.TableUpdate(optim.adam(0.1), weight, update, mode)
        for _ in range(3):
            step(gradient)
        found = as_numpy(step.weight).copy()
        if (mode, update) == ("exact", "sparse"):
            expected = found
        assert_same_bits(found, expected)


@pytest.mark.parametrize("update", ["sparse", "dense", "auto"])
@pytest.mark.parametrize(("rows", "width", "dtype"), [(51, 4, "f4"), (50, 5, "f4"), (50, 4, "f8")])
def test_a_table_update_refuses_the_gradient_of_another_table(update, rows, width, dtype):
    step = optim.TableUpdate(optim.sgd(0.1), np.ones((50, 4), "f4"), update)
    gradient = RowSparse.from_numpy([rows - 1], np.ones((1, width), dtype), rows)
    with pytest.raises(ConfigError, match="table update: the gradient is .*, the table .50, 4, "):
        step(gradient)
    assert (as_numpy(step.weight) == 1).all()
    step(RowSparse.from_numpy([49], np.ones((1, 4), "f4"), 50))  # its own is taken still
    assert (as_numpy(step.weight) != 1).any(axis=1).nonzero()[0].tolist() == [49]


def test_a_storage_without_rows_needs_no_costs(monkeypatch):
    monkeypatch.setattr(choice, "costs_of", None)
    params = {"t": as_tensor(np.ones((0, 4), "f4"))}
    optimizer = optim.sgd(0.1)
    padding = RowSparse.from_numpy([0, 0], np.ones((2, 4), "f4"), 0)
    state = optimizer.init(params)
    optimizer.apply_(params, {"t": padding}, state)
    assert state.step == 1
