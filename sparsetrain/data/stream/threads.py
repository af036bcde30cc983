# SPDX-License-Identifier: Apache-2.0
"""Background threads: an iterator run ahead of its consumer, and an ordered parallel map.

The consumer gets the same values and exceptions, in the same order, as from the iterator itself.
The prefetching thread ends with the iterator, or when the consumer stops early: if the generator is
closed or dropped, or its loop raises, the thread wakes, closes the iterator and is joined. The map
holds one item per worker and one more result, so memory does not depend on the number of items.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, islice
from queue import SimpleQueue
from typing import Any, TypeVar

Item = TypeVar("Item")
_END: Any = object()


def prefetched(make: Callable[[], Iterator[Item]], depth: int) -> Iterator[Item]:
    """Yield the items of `make()`, which runs up to `depth` items ahead on a thread of its own.

    The first `next` starts the thread; `make` is called, iterated and closed there.
    """
    queue: SimpleQueue[tuple[Item, BaseException | None]] = SimpleQueue()
    # The garbage collector may call `put` within `get`, where a lock of `threading` could deadlock.
    room: SimpleQueue[None] = SimpleQueue()
    gone = threading.Event()
    for _ in range(depth - 1):
        room.put(None)

    def produce() -> None:
        error: BaseException | None = None
        items = None
        try:
            items = make()
            for item in items:
                queue.put((item, None))
                room.get()
                if gone.is_set():
                    break
        except BaseException as caught:  # any exception is passed to the consumer
            error = caught
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()
            queue.put((_END, error))

    # Not a thread of a pool, which the interpreter would wait for at exit.
    thread = threading.Thread(target=produce, name="sparsetrain-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = queue.get()
            if error is not None:
                raise error
            if item is _END:
                return
            room.put(None)
            yield item
    finally:
        gone.set()
        room.put(None)
        # The garbage collector may drop this generator while the background thread runs.
        if threading.current_thread() is not thread:
            thread.join()


Result = TypeVar("Result")


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Iterator[Result]:
    """Yield `function(item)` for every item, in order.

    Each of `workers` threads reads an item and calls `function`; items are read one at a time. With
    1 worker the caller's thread does both.
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
