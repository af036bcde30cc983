# SPDX-License-Identifier: Apache-2.0
"""Several things that TVM works out at once, on threads: compiling leaves Python's lock alone.

Each thread has the caller's target and a pass context like the caller's, which TVM keeps by thread.
Results come in order, and of the errors the first. No thread is left behind. Passes with
instruments run on the caller's thread: an instrument notes one pass after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from tvm.ir.transform import PassContext
from tvm.target import Target

from sparsetrain.runtime import threads

MOST_THREADS = 8  # LLVM holds some ten megabytes for each

Made = TypeVar("Made")


def together(works: Sequence[Callable[[], Made]], most: int = MOST_THREADS) -> list[Made]:
    """What each returns, in order.

    Parameters
    ----------
    works : sequence of callable
        They may run at the same time, run no kernel, and wait for none of the others.
    most : int
        Threads; never more than kernels may have.

    Raises
    ------
    Exception
        What the first that fails raises; those that were not begun then are left out.
    """
    count, context = min(threads.max_worker_threads(), most, len(works)), PassContext.current()
    if count < 2 or context.instruments:
        return [work() for work in works]
    target = Target.current(allow_none=True)
    with ThreadPoolExecutor(count, thread_name_prefix="sparsetrain-compile") as pool:
        try:
            results = [_begun(pool, partial(_run, work, context, target)) for work in works]
            return [result() for result in results]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _begun(pool: ThreadPoolExecutor, work: Callable[[], Made]) -> Callable[[], Made]:
    """What waits for the result; does the work if there is no thread."""
    try:
        return pool.submit(copy_context().run, work).result
    except RuntimeError:  # the main thread has ended and waits for this one, or there are too many
        return work


def _run(work: Callable[[], Made], context: PassContext, target: Target | None) -> Made:
    with _like(context), target or nullcontext():
        return work()


def _like(context: PassContext) -> PassContext:
    """One for this thread alone: passes write into theirs."""
    return PassContext(
        context.opt_level, context.required_pass, context.disabled_pass, None, context.config
    )
