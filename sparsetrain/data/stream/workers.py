# SPDX-License-Identifier: Apache-2.0
"""Map a function over items on several threads, results in the order of the items.

At most one item more than there are workers is in hand at a time, so memory does not depend on the
number of items. What an item raises is raised in its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Iterator[Result]:
    """Yield `function(item)` of every item, in order.

    Parameters
    ----------
    function : callable
        Called on `workers` threads at once.
    items : iterable
        Read in the caller's thread.
    workers : int
        At least 1; with 1 everything happens in the caller's thread.
    """
    if workers == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="sparsetrain-data") as pool:
        running: deque[Future[Result]] = deque()
        try:
            for item in items:
                running.append(pool.submit(function, item))
                del item  # it may be large, and the next is made now
                if len(running) > workers:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()
