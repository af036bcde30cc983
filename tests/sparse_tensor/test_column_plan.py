# SPDX-License-Identifier: Apache-2.0
"""Sorting column by column gives the plan of sorting all ids at once."""

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain import runtime
from sparsetrain.optim.update.layout import tables_of
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import host_target
from sparsetrain.sparse_tensor import column_plan
from sparsetrain.sparse_tensor.coalesce import make_plan
from sparsetrain.sparse_tensor.column_plan import TURN, column_plan_kernel, column_table
from sparsetrain.sparse_tensor.sort_chunks import NOTES
from tests.helpers import assert_same_bits

RNG = np.random.default_rng(3)
# Rows of each feature's table, in the order of the features; one digit holds 2,048.
TABLES = {
    "one table": (5,),
    "tiny tables": (1, 3, 2, 1),
    "falling": (70_000, 2049, 2048, 30),
    "one, two and three digits": (2048, 1 << 25, 3, 5000, 40_000_000, 1),
    "many alike": (100,) * 27,
}


def _columns(tables):
    """The tables lie in rising order, as a collection of embeddings places them."""
    rising = sorted(range(len(tables)), key=lambda feature: tables[feature])
    ends = np.cumsum([tables[feature] for feature in rising]).tolist()
    first = {f: end - tables[f] for f, end in zip(rising, ends, strict=True)}
    return tuple((first[feature], rows) for feature, rows in enumerate(tables))


def _ids(columns, batch, dtype):
    """Skewed ids, in which rows recur."""
    drawn = [first + (RNG.zipf(1.2, batch) - 1) % rows for first, rows in columns]
    return np.stack(drawn, axis=1).astype(dtype)


def _plan(ids, columns):
    """Rows, order, offsets, and the number of ids outside."""
    dtype, count = str(ids.dtype), ids.size
    kernel = compile_kernel(column_plan_kernel(dtype, len(columns)), host_target())
    keys, rows = runtime.empty((2 * count,), dtype), runtime.empty((count,), dtype)
    order, offsets = runtime.empty((2, count), "int32"), runtime.empty((count + 1,), "int32")
    notes, counts = runtime.empty((len(columns), NOTES), "int32"), runtime.empty((2,), "int32")
    table = runtime.as_tensor(column_table(columns, dtype))
    kernel(runtime.as_tensor(ids.ravel()), keys, order, notes, rows, offsets, counts, table)
    used, outside = runtime.as_numpy(counts).tolist()
    found = [runtime.as_numpy(array) for array in (rows, order, offsets)]
    return found[0][:used], found[1][0], found[2][: used + 1], outside


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_plan_is_that_of_all_ids_at_once(name, dtype):
    columns = _columns(TABLES[name])
    total = sum(TABLES[name])
    for batch in (1, 2, 100, 700):  # of the last ones some tables have as many rows, or fewer
        ids = _ids(columns, batch, dtype)
        whole = make_plan(runtime.as_tensor(ids.ravel()), total)
        *found, outside = _plan(ids, columns)
        assert outside == 0
        for mine, other in zip(found, (whole.rows, whole.order, whole.offsets), strict=True):
            assert_same_bits(mine, runtime.as_numpy(other))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_rows_of_counted_columns_at_both_ends(dtype):
    """Runs before the first row that occurs, and behind the last one, leave nothing behind."""
    columns = _columns((50, 50, 50, 2000))
    for low, high in [(0, 1), (49, 50), (20, 30), (0, 50)]:
        drawn = [first + RNG.integers(low, high, 50) for first, _ in columns]
        ids = np.stack(drawn, axis=1).astype(dtype)
        whole = make_plan(runtime.as_tensor(ids.ravel()), 2150)
        *found, outside = _plan(ids, columns)
        assert outside == 0
        for mine, other in zip(found, (whole.rows, whole.order, whole.offsets), strict=True):
            assert_same_bits(mine, runtime.as_numpy(other))


@pytest.mark.parametrize("rows", [30, 50])  # counted, too
def test_ids_outside_their_columns_table_are_counted(rows):
    columns = _columns((*TABLES["falling"][:-1], rows))
    ids = _ids(columns, 50, "int64")
    ids[3, 1] = columns[1][0] - 1
    ids[49, 0] = columns[0][0] + columns[0][1]
    ids[0, 2] = 2**62
    assert _plan(ids, columns)[-1] == 3


def test_a_run_of_tasks_gets_small_tables_and_large_ones():
    columns = _columns(range(1, 27))
    turns = column_table(columns, "int32")[:, TURN].tolist()
    assert sorted(turns) == list(range(26))
    assert abs(sum(turns[:13]) - sum(turns[13:])) <= 26


@pytest.mark.parametrize(
    "columns, threads, sorted_apart",
    [
        (((0, 5), (5, 3)), 1, True),
        (((5, 3), (0, 5)), 1, True),
        (((0, 5), (5, 3)), 2, False),  # too few for two threads
        (((0, 5), (0, 5), (5, 3)), 1, False),  # a shared table
        (((0, 5), (4, 3)), 1, False),
    ],
)
def test_columns_are_sorted_apart_where_tables_and_threads_allow(
    monkeypatch, columns, threads, sorted_apart
):
    monkeypatch.setattr(column_plan.runtime, "num_threads", lambda: threads)
    assert column_plan.are_sorted_apart(columns) is sorted_apart


def _trained(monkeypatch, apart):
    model = st.models.DLRM(rows=[40, 3, 500, 7, 3000, 1], dim=4, bottom=(8,), top=(8,))
    if not apart:
        monkeypatch.setattr(model, "columns", dict)
    trainer = st.Trainer(model, st.optim.adagrad(0.1), target="cpu", seed=1)
    rng = np.random.default_rng(0)
    for _ in range(3):
        ids = np.stack([rng.integers(0, rows, 300) for rows in model.config()["rows"]], axis=1)
        labels = (rng.random(300) < 0.3).astype(np.float32)
        trainer.step(st.data.Batch(rng.standard_normal((300, 13)), ids, labels))
    return trainer


def test_a_step_has_the_same_bits_with_either_plan(monkeypatch):
    monkeypatch.setattr(column_plan, "EACH", 1)
    with_columns, without = (_trained(monkeypatch, apart) for apart in (True, False))
    layouts = [t.training_step._fused_step().program.layout for t in (with_columns, without)]
    tables = tables_of(with_columns.program.gradient.structure)
    assert [[name for name, _ in layout.columns] for layout in layouts] == [tables, []]
    expected = without.state_dict()
    for name, array in with_columns.state_dict().items():
        assert_same_bits(array, expected[name])
