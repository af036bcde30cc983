# SPDX-License-Identifier: Apache-2.0
"""Number of threads in TVM's pool, and settings that must precede the import of TVM."""

from __future__ import annotations

import os

from sparsetrain.errors import ConfigError
from sparsetrain.system.argument_checks import require_int
from sparsetrain.system.cores import available_cores
from sparsetrain.system.launcher import is_torchrun

MAX_THREADS = 4096  # TVM would try to start any number, and crash if it cannot


def _require_number(text: str) -> None:
    """Refuse a setting that TVM would misread or crash on."""
    if not (_is_number(text) and int(text[:9]) <= MAX_THREADS):
        raise ConfigError(
            f"environment variable TVM_NUM_THREADS: {text!r:.40} is not a number from 1 to "
            f"{MAX_THREADS:,}; unset it to use every core"
        )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text[:9]) >= 1


def _share() -> int:
    """Return the default number of cores: all, or as many as OMP_NUM_THREADS allows.

    joblib sets that variable for its workers. torchrun's value is ignored: by default it sets 1.
    """
    cores, limit = available_cores(), os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(limit[:9])) if _is_number(limit) and not is_torchrun() else cores


# By default TVM uses half the cores, and pins threads from core 0 up, so that two jobs on one
# machine share a core. Both must be set before the pool starts; the user's values are kept. Our
# number is hidden from `os.environ`: workers of joblib would mistake it for the user's number.
if named := os.environ.get("TVM_NUM_THREADS"):
    _require_number(named)
else:
    os.putenv("TVM_NUM_THREADS", str(_share()))
os.environ.setdefault("TVM_BIND_THREADS", "0")

import tvm  # noqa: E402  (the two settings above must come first)


def num_threads() -> int:
    """Return the number of threads for kernels that this Python thread calls."""
    return int(tvm.get_global_func("runtime.NumThreads")())


def max_worker_threads() -> int:
    """Return the most threads for work outside TVM, without starting TVM's pool."""
    text = os.environ.get("TVM_NUM_THREADS", "")
    return min(max(int(text), 1) if text.isdecimal() else _share(), available_cores())


def set_num_threads(count: int) -> None:
    """Run kernels that this Python thread calls on `count` threads from now on.

    Results do not depend on the number. The default is ``TVM_NUM_THREADS``, or else the number of
    cores that this process may use, by its affinity mask and the CPU quota of its container, and at
    most ``OMP_NUM_THREADS``, which joblib sets to share the cores among its workers.

    Raises
    ------
    ConfigError
        If `count` is below 1 or above 4,096; if kernels have run on fewer threads, since the pool
        cannot grow; if this process was forked after kernels ran, since it has one thread.
    """
    count = require_int("set_num_threads: count", count, most=MAX_THREADS)
    if _forked and count > 1:
        raise ConfigError(
            "set_num_threads: this process was forked from one that has TVM's threads, so it can "
            f"use only 1: for {count}, start it with multiprocessing.get_context('spawn')"
        )
    os.environ["TVM_NUM_THREADS"] = str(count)  # if the pool has not started yet
    tvm.get_global_func("runtime.config_threadpool")(_SHARE_ALL_CORES, count)
    if num_threads() != count:
        os.environ["TVM_NUM_THREADS"] = str(num_threads())  # for child processes
        raise ConfigError(
            f"set_num_threads: kernels already run on {num_threads()} threads, and TVM's pool "
            f"cannot grow to {count}: call it before the first kernel, or set TVM_NUM_THREADS"
        )


# TVM's mode without pinning.
_SHARE_ALL_CORES = -3

_started = False  # whether TVM may have started its pool
_forked = False  # whether this process was forked from one with a pool


def mark_pool_started() -> None:
    """Record that kernels are about to run, which starts the pool."""
    global _started
    _started = True


def _after_fork() -> None:
    """After a fork, run kernels on the only thread; TVM would wait for the parent's threads."""
    global _forked
    if _started:
        _forked = True
        tvm.get_global_func("runtime.config_threadpool")(_SHARE_ALL_CORES, 1)


os.register_at_fork(after_in_child=_after_fork)
