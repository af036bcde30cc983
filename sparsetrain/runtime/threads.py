# SPDX-License-Identifier: Apache-2.0
"""How many threads kernels run on; the settings that must be made before TVM is imported."""

from __future__ import annotations

import os

from sparsetrain.errors import ConfigError
from sparsetrain.system.argument_checks import require_int


def available_cores() -> int:
    """Cores this process may run on (its affinity mask, not the machine's count)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


MOST = 4096  # TVM starts as many as it is told, or ends the process


def _check_setting() -> None:
    """Refuse a number of threads that TVM would take for another, or end the process by."""
    said = os.environ["TVM_NUM_THREADS"]
    if not (said.isascii() and said.isdecimal() and 1 <= int(said[:9]) <= MOST):
        raise ConfigError(
            f"environment variable TVM_NUM_THREADS: {said!r:.40} is no number from 1 to {MOST:,}; "
            "unset it to use every core"
        )


# TVM's own default is half the cores, and it pins threads from core 0 up, so that two jobs
# on one machine share a core. Both must be set before the pool starts; the user's values win.
if not os.environ.get("TVM_NUM_THREADS"):
    os.environ["TVM_NUM_THREADS"] = str(available_cores())
_check_setting()
os.environ.setdefault("TVM_BIND_THREADS", "0")

import tvm  # noqa: E402  (the two settings above must come first)


def num_threads() -> int:
    """Threads that kernels started from this Python thread run on."""
    return int(tvm.get_global_func("runtime.NumThreads")())


def max_worker_threads() -> int:
    """Threads that work beside kernels may have: as many as them. To ask starts no pool."""
    said = os.environ.get("TVM_NUM_THREADS", "")
    return min(max(int(said), 1) if said.isdecimal() else available_cores(), available_cores())


def set_num_threads(count: int) -> None:
    """Run kernels started from this Python thread on `count` threads from now on.

    Results do not depend on the number. ``TVM_NUM_THREADS``, or the cores this process may use,
    decide before the first call.

    Raises
    ------
    ConfigError
        If `count` is below 1 or above 4,096, or above what the pool was started with: it cannot
        grow. A process that was forked after kernels ran has one thread. The number stays as it
        was then.
    """
    count = require_int("set_num_threads: count", count, most=MOST)
    if _forked and count > 1:
        raise ConfigError(
            "set_num_threads: TVM's threads stay with the process that this one was forked from: "
            f"for {count} of them start it by multiprocessing.get_context('spawn')"
        )
    before = os.environ.get("TVM_NUM_THREADS", "1")
    os.environ["TVM_NUM_THREADS"] = str(count)  # for a pool that is not started yet
    tvm.get_global_func("runtime.config_threadpool")(_SHARE_ALL_CORES, count)
    if num_threads() != count:
        os.environ["TVM_NUM_THREADS"] = before  # for the processes that this one starts
        raise ConfigError(
            f"set_num_threads: kernels already run on {num_threads()} threads, and TVM's pool "
            f"cannot grow to {count}: call it before the first kernel, or set TVM_NUM_THREADS"
        )


# TVM's mode that leaves it to the system which core a thread runs on.
_SHARE_ALL_CORES = -3

_started = False  # whether there may be a pool
_forked = False  # whether its threads stayed with the parent


def mark_pool_started() -> None:
    """Say that kernels are about to run, which starts the pool."""
    global _started
    _started = True


def _after_fork() -> None:
    """Run kernels on the one thread that a forked process has: TVM would wait for the others."""
    global _forked
    if _started:
        _forked = True
        tvm.get_global_func("runtime.config_threadpool")(_SHARE_ALL_CORES, 1)


os.register_at_fork(after_in_child=_after_fork)
