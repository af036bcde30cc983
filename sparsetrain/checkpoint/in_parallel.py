# SPDX-License-Identifier: Apache-2.0
"""Two thread pools for large folders: one for files, one for the ranges of a file.

Reading, writing, syncing and checksums release the GIL. A thread of the first pool waits for
threads of the second, so one pool for both could deadlock.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from sparsetrain.checkpoint.ranges import Map

_WORKERS = 6
_SHARE = 128 << 20  # bytes for each worker, so that their blocks are a small part of all


@contextmanager
def in_parallel(size: int) -> Iterator[tuple[Map, Map]]:
    """Give two `map` for work on `size` bytes, over files and over the ranges of each.

    Results come in order, and the first error. What was not begun then is left out.
    """
    workers = min(_WORKERS, size // _SHARE)
    if workers < 2:
        yield map, map
        return
    with _pool("ranges", workers) as ranges, _pool("files", workers) as files:
        yield files, ranges


@contextmanager
def _pool(what: str, workers: int) -> Iterator[Map]:
    with ThreadPoolExecutor(workers, thread_name_prefix=f"sparsetrain-{what}") as pool:
        try:
            yield pool.map
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
