# SPDX-License-Identifier: Apache-2.0
"""Windows hold the rows of the pieces, in order; few are in memory, and nobody hangs."""

import threading
import weakref

import numpy as np
import pytest

from sparsetrain.data import Dataset, Encoder
from sparsetrain.data.batch import Rows
from sparsetrain.data.stream import shuffle
from sparsetrain.data.stream.shuffle import windows
from tests.data.criteo_tables import encoded_table, write


def piece(first: int, count: int, by_column: bool = True) -> Rows:
    """Rows that say their number in every column."""
    numbers = np.arange(first, first + count)
    order = "F" if by_column else "C"
    dense = np.asarray(numbers[:, None] + np.zeros((1, 3)), np.float32, order=order)
    ids = np.asarray(10 * numbers[:, None] + np.arange(4), np.int32, order=order)
    return Rows(dense, ids, numbers.astype(np.float32), numbers.astype(np.float32) + 1)


@pytest.mark.parametrize("counts", [[10], [3, 4, 3], [1] * 10, [4, 6], [9_000, 1_000]])
@pytest.mark.parametrize("size", [1, 3, 4, 10, 6_000])
@pytest.mark.parametrize("by_column", [True, False])
def test_windows_hold_all_rows_in_order_each_side_by_side(counts, size, by_column):
    starts = np.cumsum([0, *counts])
    begin = 0
    pieces = [piece(s, c, by_column) for s, c in zip(starts, counts, strict=False)]
    if starts[-1] // size > 2_000:
        pytest.skip("too many windows")
    for window in windows(pieces, size):
        expected = piece(begin, min(size, starts[-1] - begin))
        for found, wanted in zip(window, expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
            assert found.flags.c_contiguous and found.dtype == wanted.dtype
        begin += window.size
    assert begin == starts[-1]


def test_while_one_window_is_read_one_is_filled(tmp_path, monkeypatch):
    made, alive = [], []

    class Counted(shuffle._Window):
        def rows(self):
            made.append(weakref.ref(self._arrays["dense"]))
            alive.append(sum(array() is not None for array in made))
            return super().rows()

    monkeypatch.setattr(shuffle, "_Window", Counted)
    path = write(tmp_path / "rows.parquet", encoded_table(1000), group=64)
    dataset = Dataset(path, Encoder.fit(path, treat_as="encoded"))
    assert sum(map(len, dataset.batches(16, seed=0, buffer_rows=40))) == 1000
    assert len(made) == 25 and max(alive) <= 3  # one may not be let go yet


def test_who_stops_in_the_middle_of_an_epoch_leaves_no_thread(tmp_path):
    path = write(tmp_path / "rows.parquet", encoded_table(1000), group=64)
    dataset = Dataset(path, Encoder.fit(path, treat_as="encoded"))
    before = threading.active_count()
    for taken in (0, 1, 5):
        batches = dataset.batches(16, seed=0, buffer_rows=40)
        for _ in range(taken):
            next(batches)
        batches.close()
        assert threading.active_count() == before
