# SPDX-License-Identifier: Apache-2.0
"""Windows hold the rows of the pieces, in order; their memory is used again, and nobody hangs."""

import threading

import numpy as np
import pytest

from sparsetrain.data import Dataset, Encoder
from sparsetrain.data.encode.encoded_rows import Rows
from sparsetrain.data.stream.shuffle import WindowPool, windows
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
    spare, begin = WindowPool(1, size), 0
    pieces = [piece(s, c, by_column) for s, c in zip(starts, counts, strict=False)]
    if starts[-1] // size > 2_000:
        pytest.skip("too many windows")
    for window in windows(pieces, size, spare):
        expected = piece(begin, min(size, starts[-1] - begin))
        for found, wanted in zip(window, expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
            assert found.flags.c_contiguous and found.dtype == wanted.dtype
        begin += window.size
        spare.give()
    assert begin == starts[-1]


def test_the_memory_of_a_window_is_used_again():
    spare = WindowPool(2, 5)
    found = []
    for window in windows([piece(0, 30)], 5, spare):
        found.append(window.ids.ctypes.data)
        spare.give()
    assert len(found) == 6 and len(set(found)) == 2


def test_nobody_waits_for_a_window_when_no_more_are_wanted():
    spare, taken = WindowPool(1, 5), []
    thread = threading.Thread(target=lambda: taken.extend(windows([piece(0, 20)], 5, spare)))
    thread.start()
    spare.close()
    thread.join(10)
    assert not thread.is_alive() and len(taken) == 1


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
