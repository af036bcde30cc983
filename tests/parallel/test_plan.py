# SPDX-License-Identifier: Apache-2.0
"""Where tables lie: every row on one rank, evenly, and as asked; keys of rows by the kernel."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as draw

from sparsetrain.errors import ConfigError
from sparsetrain.parallel.comm import Comm, tree
from sparsetrain.parallel.exchange import Exchange
from sparsetrain.parallel.sharding_plan import DEALT, make_plan
from tests.parallel.threads import all_of, run_ranks


def planned(rows, size, shard="auto"):
    ends = np.cumsum(rows).tolist()
    spans = zip(rows, ends, strict=True)
    tables = {f"C{n}": slice(end - count, end) for n, (count, end) in enumerate(spans)}
    return make_plan({"s": tables}, {"s": 4}, size, shard)["s"]


def whose(plan):
    """Owner and row there of every row of the storage, by the plan's own account."""
    found = {}
    for rank in range(plan.size):
        slices = plan.slices(rank)
        for table in plan.tables:
            first, step = table.on(rank, plan.size)
            rows = range(table.rows.start + first, table.rows.stop, step)
            for place, row in enumerate(rows, slices[table.name].start):
                assert row not in found
                found[row] = rank, place
    return found


@given(
    draw.lists(draw.integers(1, 40), min_size=1, max_size=6),
    draw.integers(1, 5),
    draw.sampled_from(["auto", "table", "row"]),
)
@settings(deadline=None, max_examples=60)
def test_every_row_has_one_owner(rows, size, shard):
    plan = planned(rows, size, shard)
    found = whose(plan)
    assert found.keys() == set(range(sum(rows)))
    for rank in range(size):
        places = sorted(place for owner, place in found.values() if owner == rank)
        assert places == list(range(len(places)))
        assert max(len(places), 1) == plan.rows(rank) <= plan.stride


def test_a_batch_is_sent_to_the_owners_and_comes_back_in_its_places():
    rows, size = [3, 17, 40], 3

    def work(comm):
        plan = planned(rows, size, {"C0": 1, "C1": "row", "C2": "row"})
        exchange, found = Exchange(comm, plan), whose(plan)
        rng = np.random.default_rng(comm.rank)
        looked_up = rng.integers(0, sum(rows), (5, 4)).astype(np.int32)
        (places,) = exchange.place([looked_up])
        asked = exchange.ask(comm.swap(exchange.requested[:, None])[:, 0])
        came = np.empty(int(exchange.requested.sum()), "i4")
        local = asked.numpy()
        comm.exchange(local, exchange.answered, came, exchange.requested)
        owners = np.repeat(np.arange(size), exchange.requested)
        for row, place in zip(looked_up.flat, places.numpy().flat, strict=True):
            assert found[row] == (owners[place], came[place])
        assert len(came) == len(np.unique(looked_up))

    all_of(run_ranks(size, work))


def test_rows_by_falling_count_are_asked_of_all_ranks_alike():
    # The rows of 8 parts of 512: ids follow a Zipf law, the most frequent one is 0.
    size, rows = 8, 100_000
    plan = planned([rows], size)
    owners = whose(plan)
    owner = np.array([owners[row][0] for row in range(rows)])
    assert plan.tables[0].owner == DEALT
    rng = np.random.default_rng(0)
    asked = np.zeros(size)
    for _ in range(size):
        asked += np.bincount(owner[np.unique(rng.zipf(1.2, 4096) % rows)], minlength=size)
    assert asked.max() < 1.1 * asked.mean()


def test_what_is_asked_for_is_done():
    plan = planned([10, 20, 30, 40], 2, {"C3": 0, "C2": "row", "C1": "table"})
    assert [table.owner for table in plan.tables] == [1, 1, DEALT, 0]


@pytest.mark.parametrize(
    "shard, said",
    [
        ("rows", "'rows' is not a placement"),
        ({"C0": 2}, "2 is not a placement"),
        ({"C9": "row"}, "no table 'C9'"),
    ],
)
def test_what_cannot_be_is_named(shard, said):
    with pytest.raises(ConfigError, match=said):
        planned([10, 20], 2, shard)


@given(draw.integers(1, 9), draw.integers(0, 3))
@settings(deadline=None, max_examples=20)
def test_ranks_sum_by_the_tree_of_one_rank(size, seed):
    numbers = np.random.default_rng(seed).normal(size=(size, 7)).astype("f4")
    numbers[:, 0] = -0.0

    def work(comm):
        own = numbers[comm.rank].copy()
        comm.tree_sum_(own)
        return own.tobytes()

    wanted = tree(list(numbers), np.add).tobytes()
    assert all(each == wanted for each in all_of(run_ranks(size, work)))


def test_a_rank_alone_needs_no_engine():
    comm = Comm()
    assert comm.gather({"a": 1}) == [{"a": 1}]
    assert comm.any(True) and not comm.any(False)
    assert comm.name == "rank 0 of 1 (this machine)"
