# SPDX-License-Identifier: Apache-2.0
"""Updates of every row of a table: the bits of touched rows; the tables that get them."""

from itertools import product

import numpy as np
import pytest

from sparsetrain import optim
from sparsetrain.backends.cpu import Cpu
from sparsetrain.backends.cuda import Cuda
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.sparse_tensor import RowSparse
from tests.helpers import assert_same_bits, slow_except
from tests.optim.oracle import WIDTH, lr
from tests.optim.references import CASES, made
from tests.small_dlrm import assert_same_state

# Formulas to which a gradient of 0 does nothing.
NO_OP = {"sgd": optim.sgd, "adagrad": optim.adagrad, "rowwise_adagrad": optim.rowwise_adagrad}
TABLES = {"a": slice(0, 3), "b": slice(3, 203), "c": slice(203, 204), "d": slice(204, 300)}


def train(optimizer, steps: int = 6, width: int = WIDTH, tables=TABLES, **draw):
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


# Name, how gradients are drawn.
DRAWS = list(product(NO_OP, ({}, {"pooled": True}, {"index_dtype": "i8"}, {"width": 16})))
QUICK = [(name, {}) for name in NO_OP] + [case for case in DRAWS if case[0] == "adagrad"]


@pytest.mark.parametrize(("name", "draw"), slow_except(QUICK, DRAWS), ids=str)
def test_touched_rows_and_every_row_get_the_same_bits(name, draw):
    sparse, dense = (train(NO_OP[name](0.1, update=u), **draw) for u in ("sparse", "dense"))
    assert_same_state(dense, sparse)


@pytest.mark.parametrize("options", [{"clip_norm": 0.1}, {"clip_value": 0.01}], ids=str)
def test_both_clip_alike(options):
    sparse, dense = (train(optim.adagrad(0.1, update=u, **options)) for u in ("sparse", "dense"))
    assert_same_state(dense, sparse)


FORCED = ["adam", "momentum", "rmsprop, coupled decay", "ftrl"]


@pytest.mark.parametrize("name", slow_except(["adam", "ftrl"], FORCED))
def test_forced_dense_gives_the_bits_of_exact_mode(name):
    exact = train(made(name, lr(6), mode="exact"))
    for mode, update in (("exact", "dense"), ("dense", None)):
        assert_same_state(train(made(name, lr(6), mode=mode, update=update)), exact)


def test_groups_choose_by_table():
    groups = [optim.ParamGroup("b", update="dense"), optim.ParamGroup("d", update="dense", lr=0.5)]
    expected = train(optim.sgd(0.1, groups=[optim.ParamGroup("d", lr=0.5)], update="sparse"))
    assert_same_state(train(optim.sgd(0.1, groups=groups, update="sparse")), expected)


def test_a_row_outside_the_table_is_refused_before_anything_is_written():
    params = {"t": as_tensor(np.ones((300, 2), "f4"))}
    optimizer = optim.sgd(0.1, update="dense")
    state = optimizer.init(params, {"t": TABLES})
    for bad in (-1, 301):
        indices = as_tensor(np.array([5, bad], np.int32))
        gradient = RowSparse(indices, as_tensor(np.ones((2, 2), "f4")), 300)
        with pytest.raises(DataError, match="1 row indices lie outside the 300 rows of 't'"):
            optimizer.apply_(params, {"t": gradient}, state)
    assert_same_bits(params["t"], np.ones((300, 2), "f4"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.sgd(0.1, update="both"), "sgd: update must be sparse or dense"),
        (lambda: optim.ParamGroup("a", update="both"), "group 'a': update must be in"),
        (lambda: optim.adam(0.1, update="dense"), "adam: mode 'lazy' skips rows that"),
        (
            lambda: optim.sgd(0.1, mode="dense", update="sparse"),
            "for update 'sparse' use mode 'exact'",
        ),
        (
            lambda: optim.adam(0.1, mode="exact", max_replayed_steps=9, update="dense"),
            "adam: max_replayed_steps has no effect with update 'dense'",
        ),
    ],
)
def test_a_choice_that_would_change_the_meaning_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("update", ["sparse", "dense"])
@pytest.mark.parametrize(("rows", "width", "dtype"), [(51, 4, "f4"), (50, 5, "f4"), (50, 4, "f8")])
def test_the_gradient_of_another_table_is_refused(update, rows, width, dtype):
    optimizer, params = optim.sgd(0.1, update=update), {"t": as_tensor(np.ones((50, 4), "f4"))}
    state = optimizer.init(params, {"t": {"t": slice(0, 50)}})
    gradient = RowSparse.from_numpy([rows - 1], np.ones((1, width), dtype), rows)
    with pytest.raises(ConfigError, match="gradient of 't' is .*, but parameter is .*50, 4"):
        optimizer.apply_(params, {"t": gradient}, state)
    assert (as_numpy(params["t"]) == 1).all()
    own = RowSparse.from_numpy([49], np.ones((1, 4), "f4"), 50)
    optimizer.apply_(params, {"t": own}, state)  # its own is taken still
    assert (as_numpy(params["t"]) != 1).any(axis=1).nonzero()[0].tolist() == [49]


def test_a_storage_without_rows_can_be_updated():
    params = {"t": as_tensor(np.ones((0, 4), "f4"))}
    padding = RowSparse.from_numpy([0, 0], np.ones((2, 4), "f4"), 0)
    for update in ("sparse", "dense"):
        optimizer = optim.sgd(0.1, update=update)
        state = optimizer.init(params)
        optimizer.apply_(params, {"t": padding}, state)
        assert state.step == 1


# --- Small tables in exact mode -----------------------------------------------------------------


@pytest.fixture
def small_to_100_rows(monkeypatch):
    """Tables of `train` up to 100 rows are small: a, c and d."""
    monkeypatch.setattr(Cpu, "most_weights_dense", 100 * WIDTH)


# One with slots of elements, of rows, and one whose decay is coupled; `test_exact` has them all.
FEW = ("adamw", "rowwise_adagrad, coupled decay", "ftrl")


@pytest.mark.parametrize("name", slow_except(FEW, CASES))
def test_exact_mode_gives_the_same_bits_to_small_and_large_tables(name, small_to_100_rows):
    found, sparse, dense = (
        train(made(name, lr(6), **options))
        for options in ({"mode": "exact"}, {"mode": "exact", "update": "sparse"}, {"mode": "dense"})
    )
    assert_same_state(found, sparse)
    assert_same_state(found, dense)


def test_each_table_says_how_its_rows_are_updated(small_to_100_rows):
    groups = [
        optim.ParamGroup("c", max_replayed_steps=9),
        optim.ParamGroup("d", update="sparse"),
    ]
    optimizer = optim.adam(0.1, mode="exact", groups=groups)
    params = {"t": as_tensor(np.ones((300, WIDTH), "f4"))}
    state = optimizer.init(params, {"t": TABLES})
    behind = "touched rows, exact: others are caught up before they are read"
    assert optimizer.describe(state) == [
        "a: every row; exact means the same here",
        f"b: {behind}",
        f"c: {behind}, at most 9 steps a row",
        f"d: {behind}",
    ]
    assert optimizer.summarize(state) == (
        f"every row (1 table); {behind} (2 tables); {behind}, at most 9 steps a row (1 table)"
    )


def test_tables_are_small_in_exact_mode_alone_and_on_the_host(small_to_100_rows, monkeypatch):
    params = {"t": as_tensor(np.ones((300, WIDTH), "f4"))}

    def dense_tables(optimizer):
        ranges = optimizer.init(params, {"t": TABLES}).tables.table("t").ranges
        return [name for part in ranges if part.rule.dense for name in part.names]

    assert dense_tables(optim.adam(0.1, mode="exact")) == ["a", "c", "d"]
    for other in (optim.adam(0.1), optim.sgd(0.1, mode="exact"), optim.adagrad(0.1)):
        assert dense_tables(other) == []
    monkeypatch.setattr(Cpu, "most_weights_dense", Cuda.most_weights_dense)
    assert dense_tables(optim.adam(0.1, mode="exact")) == []


def test_a_storage_of_small_tables_alone_is_saved_as_current(small_to_100_rows):
    params = {"t": as_tensor(np.ones((5, WIDTH), "f4"))}
    optimizer = optim.adam(0.1, mode="exact")
    state = optimizer.init(params, {"t": {"small": slice(0, 5)}})
    rows = RowSparse.from_numpy(np.array([1], "i4"), np.ones((1, WIDTH), "f4"), 5)
    for _ in range(3):
        optimizer.apply_(params, {"t": rows}, state)
    assert not state.tables.lagging  # each step updates every row
    np.testing.assert_array_equal(state.tables.views()["small:last"], 3)
