# SPDX-License-Identifier: Apache-2.0
"""Bags are placed by a kernel as NumPy locates them, however they lie in memory."""

import numpy as np
import pytest

from sparsetrain import runtime
from sparsetrain.data import Ragged
from sparsetrain.embedding import EmbeddingBagCollection, Table, bags
from sparsetrain.embedding.bags import BagPlacing, ColumnPlacing
from sparsetrain.embedding.placing import STRIPS
from tests.embedding.test_placing import RNG, ROWS, ids_of
from tests.helpers import assert_same_bits


def bags_of(count: int, weighted: bool = False) -> list[Ragged]:
    """Bags of 0 to 3 ids of each feature; the second has none at all."""
    made = []
    for number, rows in enumerate(ROWS):
        offsets = np.concatenate([[0], np.cumsum(RNG.integers(0, 4, count) * (number != 1))])
        ids = RNG.integers(0, rows, offsets[-1])
        weights = RNG.standard_normal(len(ids)).astype("f4") if weighted else None
        made.append(Ragged(ids, offsets, weights))
    return made


def located(ids) -> tuple[np.ndarray, ...]:
    """What NumPy makes of them."""
    tables = [Table(str(number), rows, 8) for number, rows in enumerate(ROWS)]
    collection = EmbeddingBagCollection(tables, pooling="sum")
    np.testing.assert_array_equal(collection.placements[8].first_rows, [1, 0, 6])
    return collection.locate(ids)[8]


def bag_placing(dtype: str = "int32", weighted: bool = False) -> BagPlacing:
    names = ("rows", "offsets", "weights")[: 2 + weighted]
    return BagPlacing(np.array([1, 0, 6]), ROWS, dtype, names)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("count", [0, 1, STRIPS - 1, 100])
def test_bags_are_placed_as_numpy_locates_them(count, weighted):
    bags = bags_of(count, weighted)
    placed = bag_placing(weighted=weighted)(bags)
    assert [*placed] == ["rows", "offsets", "weights"][: 2 + weighted]
    for found, expected in zip(placed.values(), located(bags), strict=True):
        assert_same_bits(found, expected)


def test_single_ids_are_bags_of_one():
    ids = ids_of(40)
    placed = bag_placing("int64")(ids)
    rows, offsets = located(ids)
    assert_same_bits(placed["rows"], rows.astype("int64"))
    assert_same_bits(placed["offsets"], offsets)


def test_bags_may_be_parts_of_larger_ones_and_read_only():
    bags = [bag.owned().take(slice(7, 30)) for bag in bags_of(40, weighted=True)]
    placed = bag_placing(weighted=True)(bags)
    for found, expected in zip(placed.values(), located(bags), strict=True):
        assert_same_bits(found, expected)


@pytest.mark.parametrize(("feature", "id_"), [(0, 5), (2, 300), (2, -1), (0, 2**40)])
def test_one_id_of_a_bag_outside_its_table_is_seen(feature, id_):
    bags, place = bags_of(100), bag_placing()
    bags[feature].ids[13] = id_
    assert place(bags) is None
    assert place(bags_of(100)) is not None


@pytest.mark.parametrize("weighted", [False, True])
def test_weights_that_are_not_expected_or_missing_are_seen(weighted):
    bags = bags_of(5, not weighted)
    assert bag_placing(weighted=weighted)(bags) is None


def test_bags_are_written_into_room_by_the_thread_that_calls(monkeypatch):
    memory = {}

    def room(name, shape, dtype):
        return memory.setdefault(name, runtime.empty(shape, dtype))

    def refuse(*_arguments):
        raise AssertionError("other threads were asked")

    monkeypatch.setattr(bags.T, "parallel", refuse)
    bags._column_kernel.cache_clear()
    given = bags_of(50, weighted=True)
    placed = bag_placing(weighted=True)(given, room)
    assert placed == memory
    for found, expected in zip(placed.values(), located(given), strict=True):
        assert_same_bits(found, expected)


@pytest.mark.parametrize("ids", [ids_of(30)[:, 2], ids_of(30)[:, :1], np.arange(0)])
def test_ids_of_one_feature_are_copied_and_checked(ids):
    placing = ColumnPlacing()
    assert_same_bits(placing.ids("x", ids, 300, "int32", None), ids.astype("i4"))
    if ids.size:
        assert placing.ids("x", ids, int(ids.max()), "int32", None) is None
