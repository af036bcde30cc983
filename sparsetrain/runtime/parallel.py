# SPDX-License-Identifier: Apache-2.0
"""Parallel compilation: functions of TVM on threads; most of LLVM's work releases Python's lock.

Each thread has the caller's target and a pass context like the caller's, since TVM keeps both by
thread. Passes with instruments run on the caller's thread: an instrument expects one at a time.
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

MAX_THREADS = 8  # LLVM holds some ten megabytes for each

Result = TypeVar("Result")


def run_parallel(tasks: Sequence[Callable[[], Result]], most: int = MAX_THREADS) -> list[Result]:
    """Return the tasks' results in order; no thread is left behind.

    Tasks run no kernel and do not wait for each other. There are at most `most` threads, and never
    more than kernels may have. The first error is raised, and tasks not begun are dropped.
    """
    count, context = min(threads.max_worker_threads(), most, len(tasks)), PassContext.current()
    if count < 2 or context.instruments:
        return [task() for task in tasks]
    target = Target.current(allow_none=True)
    with ThreadPoolExecutor(count, thread_name_prefix="sparsetrain-compile") as pool:
        try:
            results = [_submit(pool, partial(_run, task, context, target)) for task in tasks]
            return [result() for result in results]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _submit(pool: ThreadPoolExecutor, task: Callable[[], Result]) -> Callable[[], Result]:
    """Start a task and return the function that waits for its result; the task if no thread can."""
    try:
        return pool.submit(copy_context().run, task).result
    except RuntimeError:  # the main thread has ended and waits for this one, or there are too many
        return task


def _run(task: Callable[[], Result], context: PassContext, target: Target | None) -> Result:
    # A copy of the context, since passes write into theirs.
    own = PassContext(
        context.opt_level, context.required_pass, context.disabled_pass, None, context.config
    )
    with own, target or nullcontext():
        return task()
