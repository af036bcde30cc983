# SPDX-License-Identifier: Apache-2.0
import gc
import threading
import time

import pytest

from sparsetrain.data import Dataset, Encoder
from sparsetrain.data.stream.threads import ordered_map, prefetched
from tests.data.criteo_tables import make_rows, table


def alive():
    return [t for t in threading.enumerate() if t.name == "sparsetrain-prefetch"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert not alive()


class Numbers:
    """Counts up to `stop`, notes its thread, how far it got and whether it was closed."""

    def __init__(self, stop):
        self.stop, self.made, self.closed, self.thread = stop, 0, False, None

    def __call__(self):
        self.thread = threading.current_thread()
        try:
            while self.made < self.stop:
                self.made += 1
                yield self.made
        finally:
            self.closed = True


@pytest.mark.parametrize("depth", [1, 3, 100])
def test_items_come_in_order_from_another_thread(depth):
    numbers = Numbers(20)
    assert list(prefetched(numbers, depth)) == list(range(1, 21))
    assert numbers.thread is not threading.main_thread()
    assert numbers.closed


def test_nothing_runs_before_the_first_item_is_asked_for():
    numbers = Numbers(3)
    items = prefetched(numbers, 2)
    assert numbers.thread is None and not alive()
    items.close()


def test_it_runs_ahead_by_no_more_than_its_depth():
    numbers = Numbers(50)
    items = prefetched(numbers, 3)
    assert next(items) == 1
    deadline = time.monotonic() + 5
    while numbers.made < 4 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)
    assert numbers.made == 4  # one taken, three held
    items.close()


@pytest.mark.parametrize("error", [ValueError("here"), KeyboardInterrupt(), StopIteration("no")])
def test_an_exception_comes_after_the_items_before_it(error):
    class Failing:
        def __init__(self):
            self.left = 4

        def __iter__(self):
            return self

        def __next__(self):
            self.left -= 1
            if not self.left:
                raise error
            return self.left

    items, seen = prefetched(Failing, 8), []
    if isinstance(error, StopIteration):
        assert list(items) == [3, 2, 1]
        return
    with pytest.raises(type(error)):
        for item in items:
            seen.append(item)
    assert seen == [3, 2, 1]


def test_an_exception_of_the_first_call_reaches_the_consumer():
    def fail():
        raise OSError("no file")

    with pytest.raises(OSError, match="no file"):
        next(prefetched(fail, 2))


def leave_by_break(items):
    for _ in items:
        break
    items.close()


def leave_by_error(items):
    with pytest.raises(ZeroDivisionError):
        for item in items:
            item / 0


def leave_by_dropping(items):
    next(items)
    del items
    gc.collect()


WAYS = {"break": leave_by_break, "an error": leave_by_error, "dropping": leave_by_dropping}


@pytest.mark.parametrize("leave", WAYS.values(), ids=WAYS.keys())
def test_stopping_early_closes_the_producer_and_ends_its_thread(leave):
    numbers = Numbers(10**9)
    leave(prefetched(numbers, 2))
    gc.collect()
    assert numbers.closed
    assert not numbers.thread.is_alive()


def test_a_loader_left_early_leaves_no_thread():
    rows = table(make_rows())
    dataset = Dataset(rows, Encoder.fit(rows))
    for epoch in range(20):
        for _ in dataset.batches(4, seed=0, epoch=epoch):
            break
    gc.collect()
    assert not alive()


def test_two_epochs_at_once_do_not_disturb_each_other():
    rows = table(make_rows())
    dataset = Dataset(rows, Encoder.fit(rows))
    pairs = list(zip(dataset.batches(7), dataset.batches(7), strict=True))
    assert all((left.ids == right.ids).all() for left, right in pairs)
    assert len(pairs) == 9


def delayed(n):
    time.sleep(0.002 * (n % 3))
    return -n


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_map_is_in_order_and_reads_no_further_than_its_workers(workers):
    numbers, found = Numbers(20), []
    for result in ordered_map(delayed, numbers(), workers):
        found.append(result)
        assert numbers.made <= len(found) + workers + 1
    assert found == [-n for n in range(1, 21)] and numbers.closed


def test_a_map_raises_the_first_error_where_it_belongs():
    def function(n):
        if n % 3 == 0:
            raise ValueError(n)
        return delayed(n)

    def source():
        yield from range(1, 5)
        raise KeyError("source")

    found = ordered_map(function, source(), 2)
    assert [next(found), next(found)] == [-1, -2]
    with pytest.raises(ValueError, match="3"):
        next(found)
    found = ordered_map(delayed, source(), 3)
    assert [next(found) for _ in range(4)] == [-1, -2, -3, -4]
    with pytest.raises(KeyError, match="source"):
        next(found)


def test_a_map_that_is_closed_ends_its_threads():
    before = threading.active_count()
    found = ordered_map(delayed, range(100), 3)
    assert next(found) == 0
    found.close()
    assert threading.active_count() == before
