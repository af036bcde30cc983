# SPDX-License-Identifier: Apache-2.0
"""Several files at a time: while one waits for the disk, another is summed.

Reading, writing, syncing and checksums leave Python's lock alone, so threads do. What fits in
memory many times over stays on the calling thread.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

WORKERS = 4
_SMALL = 64 << 20  # bytes


@contextmanager
def in_parallel(size: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """Give a `map` for work on `size` bytes; results come in order, and the first error.

    What was not begun when an error comes is left out.
    """
    if size < _SMALL:
        yield map
        return
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="sparsetrain-files") as pool:
        try:
            yield pool.map
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
