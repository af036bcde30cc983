# SPDX-License-Identifier: Apache-2.0
"""A thread pool for the files of a large folder.

Reading, writing, syncing and checksums release the GIL.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

_WORKERS = 6
_SHARE = 128 << 20  # bytes for each worker, so that their blocks are a small part of all


@contextmanager
def in_parallel(size: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """Yield a `map` for work on `size` bytes in all.

    Results come in order, and the first error. What was not begun then is left out.
    """
    workers = min(_WORKERS, size // _SHARE)
    if workers < 2:
        yield map
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="sparsetrain-files") as pool:
        try:
            yield pool.map
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
