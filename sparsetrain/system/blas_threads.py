# SPDX-License-Identifier: Apache-2.0
"""Limit on NumPy's BLAS threads, which spin for a while after each matrix product.

A spinning thread takes a core from a kernel, which waits for all its threads. With a NumPy product
of 0.3 ms before every step of 2.3 ms on 2 cores, the median step took 2.8 ms and the 90th
percentile was 3 to 100 ms in four runs; with BLAS on one thread, these were 2.3 and 2.4 ms. So
`Trainer.fit` limits BLAS to one thread. Without threadpoolctl (the extra ``threads``), this has no
effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Limit NumPy's BLAS to one thread during the block, such as a loop of `Trainer.step`."""
    try:
        from threadpoolctl import threadpool_limits
    except ModuleNotFoundError:
        yield
        return
    with threadpool_limits(1, user_api="blas"):
        yield


def other_pools() -> dict[str, int] | None:
    """Return the thread count of each pool except TVM's, by library; None without threadpoolctl."""
    try:
        from threadpoolctl import threadpool_info
    except ModuleNotFoundError:
        return None
    pools: dict[str, int] = {}
    for pool in threadpool_info():
        name = str(pool["internal_api"])
        pools[name] = max(int(pool["num_threads"]), pools.get(name, 0))
    return pools
