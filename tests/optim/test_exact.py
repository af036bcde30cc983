# SPDX-License-Identifier: Apache-2.0
"""Exact mode: the bits of the dense optimizer at every read, without writing every row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from sparsetrain import optim
from sparsetrain.errors import CheckpointError, ConfigError, DataError
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.sparse_tensor import RowSparse
from tests.helpers import assert_same_bits, slow_except
from tests.optim.oracle import WIDTH, Table, lr
from tests.optim.references import CASES, ONE_OF_EACH, made
from tests.small_dlrm import assert_same_state

LONG = [name for name in CASES if name.split(",")[0] in ("adam", "adamw", "momentum", "rmsprop")]


def pair(name: str, rows: int, width: int, steps: int) -> tuple[Table, Table]:
    return tuple(
        Table(made(name, lr(steps), mode=mode), rows, width) for mode in ("exact", "dense")
    )


def assert_same(left: Table, right: Table) -> None:
    assert_same_state(left.arrays(), right.arrays())


@pytest.mark.parametrize("name", slow_except(["adamw"], LONG))
def test_1500_steps_of_zipf_ids_give_the_bits_of_the_dense_optimizer(name):
    exact, dense = (table.train(1500) for table in pair(name, 5000, 8, 1500))
    assert_same(exact, dense)


# One width that all share, then more widths for a formula of each kind: kernels take time to build.
WIDTHS = [(name, WIDTH) for name in CASES] + [
    (name, width) for name in ("adamw", "rowwise_adagrad, coupled decay") for width in (1, 16, 131)
]
QUICK = [*((name, WIDTH) for name in ONE_OF_EACH), ("adamw", 131)]


@pytest.mark.parametrize(("name", "width"), slow_except(QUICK, WIDTHS))
def test_every_formula_and_width_gives_the_bits_of_the_dense_optimizer(name, width):
    exact, dense = (table.train(40, 20) for table in pair(name, 300, width, 40))
    assert_same(exact, dense)


def test_an_evaluation_in_the_middle_changes_nothing():
    exact, dense = pair("adamw", 300, 8, 60)
    for part in range(3):
        exact.train(20, 20, seed=part)
        exact.optimizer.flush_(exact.params, exact.state)
        assert exact.optimizer.flush_(exact.params, exact.state) == 0
        dense.train(20, 20, seed=part)
    assert_same(exact, dense)


def test_rows_are_current_when_they_are_read_and_only_they():
    exact, dense = pair("adam", 300, 8, 60)
    for table in (exact, dense):
        table.train(30, 20)
    ids = np.arange(50)
    assert exact.optimizer.catch_up_(exact.params, {"t": ids}, exact.state) > 0
    assert exact.optimizer.catch_up_(exact.params, {"t": ids}, exact.state) == 0
    found, expected = (as_numpy(table.params["t"]) for table in (exact, dense))
    assert_same_bits(found[ids], expected[ids])
    assert (found[50:] != expected[50:]).any()


def test_rows_that_no_step_touched_are_not_replayed():
    table = Table(optim.adam(0.01, mode="exact"), 1000, 4)
    for _ in range(10):
        table.step(np.array([3]), np.ones((1, 4)))
    table.step(np.array([5]), np.ones((1, 4)))
    assert table.optimizer.flush_(table.params, table.state) == 1  # row 3, one step


@pytest.mark.parametrize("make", [optim.sgd, optim.adagrad, optim.rowwise_adagrad])
def test_a_formula_that_is_exact_as_it_is_keeps_no_book_of_rows(make):
    table = Table(make(0.1, mode="exact"), 10, 4)
    assert "last" not in table.state["t"] and not table.state.tables.table("t").lags
    assert "exact is exact here" in table.optimizer.describe(table.state)[0]


@pytest.mark.parametrize("name", slow_except(["adamw"], ["adam", "adamw", "momentum", "rmsprop"]))
def test_a_limit_of_replayed_steps_replays_no_more_steps_and_errs_by_little(name):
    dense = Table(made(name, lr(600), mode="dense"), 500, 8).train(600, 20)
    errors = {}
    for limit in (10, 200):
        capped = Table(made(name, lr(600), mode="exact", max_replayed_steps=limit), 500, 8).train(
            600, 20
        )
        errors[limit] = np.abs(capped.arrays()["w"] - dense.arrays()["w"]).max()
    print(f"{name}: {errors}")
    assert errors[200] < 2e-5
    for key, slot in dense.arrays().items():  # slots decay in one multiplication
        np.testing.assert_allclose(capped.arrays()[key], slot, rtol=1e-3, atol=2e-5)


def test_a_read_of_rows_that_are_behind_is_refused():
    table = Table(optim.adam(0.01, mode="exact"), 10, 4)
    gradient = RowSparse.from_numpy([3], np.ones((1, 4), "f4"), 10)
    other = RowSparse.from_numpy([4], np.ones((1, 4), "f4"), 10)
    for given_now in (gradient, other):
        table.optimizer.apply_(table.params, {"t": given_now}, table.state)
    with pytest.raises(
        ConfigError, match="rows of 't' were read before they were caught up: .*catch_up_"
    ):
        table.optimizer.apply_(table.params, {"t": gradient}, table.state)


def test_a_row_outside_the_table_is_refused():
    table = Table(optim.adam(0.01, mode="exact"), 10, 4)
    with pytest.raises(DataError, match="catch_up: row 10 is outside the 10 rows of 't'"):
        table.optimizer.catch_up_(table.params, {"t": np.array([1, 10])}, table.state)


def test_a_row_sparse_gradient_of_a_parameter_that_is_no_table_is_refused():
    params = {name: as_tensor(np.ones((4, WIDTH), np.float32)) for name in ("table", "other")}
    optimizer = optim.adam(0.1, mode="exact")
    state = optimizer.init(params, {"table": {"table": slice(0, 4)}})
    ones = as_tensor(np.ones((1, WIDTH), np.float32))
    gradient = RowSparse(as_tensor(np.zeros(1, np.int32)), ones, 4)
    with pytest.raises(ConfigError, match="'other' has a row-sparse gradient, but was not among"):
        optimizer.apply_(params, {"other": gradient}, state)


def test_a_dense_gradient_of_a_tracked_parameter_is_exact_too():
    exact, dense = pair("adam", 20, 4, 30)
    for table in (exact, dense):
        for seed in range(3):
            table.train(5, 4, seed)
            gradient = as_tensor(np.full((20, 4), 0.1, "f4"))
            table.optimizer.apply_(table.params, {"t": gradient}, table.state)
    assert_same(exact, dense)


def test_tables_of_one_storage_may_differ_in_mode_rate_and_decay():
    names = {"a": slice(0, 100), "b": slice(100, 300), "c": slice(300, 400)}
    groups = [
        optim.ParamGroup("b", mode="exact", weight_decay=1e-2),
        optim.ParamGroup("c", scale=0.5, mode="dense"),
    ]
    mixed = Table(optim.adam(0.01), 400, 4)
    mixed.optimizer = optim.adam(0.01, groups=groups)
    mixed.state = mixed.optimizer.init(mixed.params, {"t": names})
    alone = {
        "a": optim.adam(0.01),
        "b": optim.adam(0.01, mode="dense", weight_decay=1e-2),
        "c": optim.adam(0.005, mode="dense"),
    }
    whole = {key: Table(optimizer, 400, 4).train(30, 50) for key, optimizer in alone.items()}
    found = mixed.train(30, 50).arrays()
    for key, rows in names.items():
        for slot, array in whole[key].arrays().items():
            assert_same_bits(found[slot][rows], array[rows])


def test_histories_restart_from_loaded_arrays_that_are_all_current():
    first, second = (Table(optim.adam(lr(40), mode="exact"), 50, 4) for _ in range(2))
    first.train(20, 10)
    first.arrays()
    for source, target in zip(first.state["t"].values(), second.state["t"].values(), strict=True):
        target.copyfrom(source)
    second.params["t"].copyfrom(first.params["t"])
    second.state.step = first.state.step
    second.optimizer.restored_(second.state)
    assert_same(second.train(20, 10, seed=1), first.train(20, 10, seed=1))
    as_numpy(second.state["t"]["last"], writable=True)[:2] = 7
    with pytest.raises(CheckpointError, match="rows of 't' are saved at different steps"):
        second.optimizer.restored_(second.state)


@pytest.mark.parametrize("examples", slow_except([20], [20, 100]))
def test_any_shapes_duplicates_empty_batches_and_modes(examples):
    given_any = given(
        name=some.sampled_from(ONE_OF_EACH if examples == 20 else sorted(CASES)),
        mode=some.sampled_from(["lazy", "exact", "dense"]),
        rows=some.integers(1, 12),
        batches=some.lists(some.lists(some.integers(0, 11), max_size=8), max_size=5),
    )
    settings(max_examples=examples, deadline=None)(given_any(_assert_rows_are_right))()


def _assert_rows_are_right(name, mode, rows, batches):
    table = Table(made(name, lr(10), mode=mode), rows, WIDTH)
    dense = Table(made(name, lr(10), mode="dense"), rows, WIDTH)
    before, touched = table.arrays(), set()
    for batch in batches:
        ids = np.array(batch, np.int64) % rows
        touched |= set(ids.tolist())
        noise = np.random.default_rng(len(ids)).standard_normal((len(ids), 3))
        table.step(ids, noise)
        dense.step(ids, noise)
    others = sorted(set(range(rows)) - touched)
    for key, array in table.arrays().items():
        if mode == "lazy":
            assert_same_bits(array[others], before[key][others])
        else:
            assert_same_bits(array, dense.arrays()[key])
