# SPDX-License-Identifier: Apache-2.0
"""Ids become rows of a storage in one pass, however they lie in memory; what is outside shows."""

import numpy as np
import pytest

from sparsetrain import runtime
from sparsetrain.embedding import placing
from sparsetrain.embedding.placing import STRIPS, Placing
from tests.helpers import assert_same_bits

ROWS = [5, 1, 300]
FIRST = np.array([300, 305, 0])
RNG = np.random.default_rng(0)


def ids_of(count: int) -> np.ndarray:
    return np.stack([RNG.integers(0, rows, count) for rows in ROWS], axis=1)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("count", [1, STRIPS - 1, 100])
def test_an_id_becomes_a_row_of_its_tables_place(count, dtype):
    ids = ids_of(count)
    placed = Placing(FIRST, ROWS, dtype)(ids)
    assert_same_bits(placed["rows"], (ids + FIRST).astype(dtype))


@pytest.mark.parametrize("columns", [[0, 2, 3], [1, 2, 4]])
def test_ids_are_read_from_the_columns_that_are_chosen(columns):
    ids = RNG.integers(-5, 1000, (40, 5))
    ids[:, columns] = ids_of(40)
    given = {"labels": RNG.standard_normal(40).astype("f4")}
    placed = Placing(FIRST, ROWS, "int32", "rows_4", columns)(ids, given)
    assert list(placed) == ["rows_4", "labels"]
    assert_same_bits(placed["rows_4"], (ids[:, columns] + FIRST).astype("int32"))
    assert_same_bits(placed["labels"], given["labels"])
    ids[7, columns[1]] = 1
    assert Placing(FIRST, ROWS, "int32", "rows_4", columns)(ids) is None


@pytest.mark.parametrize("offset", range(8))
def test_ids_may_lie_anywhere_and_be_read_only(offset):
    memory = np.empty(8 + 40 * 3, np.int64)
    ids = memory[offset : offset + 120].reshape(40, 3)
    ids[...] = ids_of(40)
    ids.flags.writeable = False
    placed = Placing(FIRST, ROWS, "int32")(ids)
    assert_same_bits(placed["rows"], (ids + FIRST).astype("int32"))
    assert not ids.flags.writeable


@pytest.mark.parametrize("count", [1, STRIPS + 1, 100])
def test_floats_are_copied_from_anywhere_to_aligned_memory(count):
    memory = np.empty(1 + count * 14, np.float32)
    labels, dense = memory[1 : count + 1], memory[count + 1 :].reshape(count, 13)
    memory[...] = RNG.standard_normal(memory.size)
    memory.flags.writeable = False
    given = {"labels": labels, "dense": dense}
    placed = Placing(FIRST, ROWS, "int32")(ids_of(count), given)
    for name, array in given.items():
        copy = placed[name]
        assert_same_bits(copy, array)
        assert copy.data_ptr() % 64 == 0 and copy.data_ptr() != array.ctypes.data


@pytest.mark.parametrize("place", [0, 50, 99])
@pytest.mark.parametrize(("feature", "id_"), [(0, 5), (1, 1), (2, 300), (2, -1), (0, 2**40)])
def test_one_id_outside_its_table_is_seen(place, feature, id_):
    ids, placing = ids_of(100), Placing(FIRST, ROWS, "int32")
    ids[place, feature] = id_
    assert placing(ids) is None
    assert placing(ids_of(100)) is not None


def test_room_that_is_given_is_written_by_the_thread_that_calls(monkeypatch):
    memory, asked = {}, []

    def room(name, shape, dtype):
        asked.append((name, shape, dtype))
        return memory.setdefault(name, runtime.empty(shape, dtype))

    def refuse(*_arguments):
        raise AssertionError("other threads were asked")

    monkeypatch.setattr(placing.T, "parallel", refuse)
    placing._kernel.cache_clear()
    ids, labels = ids_of(100), RNG.standard_normal(100).astype("f4")
    placed = Placing(FIRST, ROWS, "int32")(ids, {"labels": labels}, room)
    assert asked == [("rows", (100, 3), "int32"), ("labels", (100,), "float32")]
    assert placed == memory
    assert_same_bits(memory["rows"], (ids + FIRST).astype("int32"))
    assert_same_bits(memory["labels"], labels)
