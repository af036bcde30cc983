# SPDX-License-Identifier: Apache-2.0
"""Background threads: an iterator run ahead of its consumer, and an ordered parallel map.

Order, values and exceptions are the iterator's own. The prefetching thread ends with the iterator,
and when the consumer stops early: closing the generator, an exception in its loop or dropping it
wake the thread, close the iterator there and join. The map holds an item for each
worker and one result more, so memory does not depend on the number of items.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, islice
from typing import Any, Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class _End(NamedTuple):
    error: BaseException | None


class _Channel(Generic[Item]):
    """A bounded queue of which either side can let go."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._items: deque[Item | _End] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, item: Item) -> bool:
        """Add the item and wait for room for another; return False if the consumer is gone."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._depth)
            return not self._closed

    def finish(self, error: BaseException | None) -> None:
        with self._changed:
            self._items.append(_End(error))
            self._changed.notify_all()

    def get(self) -> Item | _End:
        with self._changed:
            self._changed.wait_for(lambda: self._items)
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()


def prefetched(make: Callable[[], Iterator[Item]], depth: int) -> Iterator[Item]:
    """Yield the items of `make()`, which runs up to `depth` items ahead on a thread of its own.

    The first `next` starts the thread; `make` is called, iterated and closed there.
    """
    channel: _Channel[Item] = _Channel(depth)
    thread = threading.Thread(
        target=_produce, args=(make, channel), name="sparsetrain-prefetch", daemon=True
    )
    thread.start()
    try:
        while True:
            item = channel.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        channel.close()
        # The garbage collector may drop this generator while the background thread runs.
        if threading.current_thread() is not thread:
            thread.join()


def _produce(make: Callable[[], Iterator[Item]], channel: _Channel[Item]) -> None:
    error: BaseException | None = None
    items = None
    try:
        items = make()
        for item in items:
            if not channel.put(item):
                break
    except BaseException as caught:  # it belongs to the consumer, whatever it is
        error = caught
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()
        channel.finish(error)


Result = TypeVar("Result")
_END: Any = object()


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Iterator[Result]:
    """Yield `function(item)` of every item, in order.

    Each of `workers` threads reads an item, in its turn, and calls `function`; with 1 worker the
    caller's thread does both.
    """
    if workers == 1:
        yield from map(function, items)
        return
    iterator, turn, changed = iter(items), 0, threading.Condition()

    def run(index: int) -> Result:
        nonlocal turn
        with changed:
            changed.wait_for(lambda: turn == index)
            try:
                item: Any = next(iterator, _END)
            finally:
                turn += 1
                changed.notify_all()
        return _END if item is _END else function(item)

    with ThreadPoolExecutor(workers, thread_name_prefix="sparsetrain-data") as pool:
        submitted = (pool.submit(run, index) for index in count())
        running: deque[Future[Result]] = deque(islice(submitted, workers))
        try:
            while (result := running.popleft().result()) is not _END:
                running.extend(islice(submitted, workers + 1 - len(running)))
                yield result
                del result  # it may be large
        finally:
            for future in running:
                future.cancel()
