# SPDX-License-Identifier: Apache-2.0
"""Locks: one for TVM's global BlockBuilder, one per object, and safety across ``fork()``.

A child process inherits locks that are held, but not the threads that would release them. So a fork
first acquires every lock made by `new_lock`; both processes then release them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from threading import Lock, RLock
from time import monotonic
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

Params = ParamSpec("Params")
Result = TypeVar("Result")
Self = TypeVar("Self")
_builder_lock = RLock()

# Seconds after which a fork proceeds anyway: a thread with a lock may wait for the forking thread.
MAX_FORK_WAIT = 60.0


def with_builder_lock(build: Callable[Params, Result]) -> Callable[Params, Result]:
    """Serialize calls of a function that uses a `BlockBuilder` or lowers operators.

    TVM keeps one stack of open builders, and one operator tag, for all threads: two threads that
    build at the same time would write into each other's functions.
    """

    @wraps(build)
    def locked(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        with _builder_lock:
            return build(*args, **kwargs)

    return locked


def new_lock() -> Any:
    """Make a reentrant lock for one object; no other thread holds it while this process forks."""
    lock = RLock()
    _locks.add(lock)
    return lock


def synchronized(
    method: Callable[Concatenate[Self, Params], Result],
) -> Callable[Concatenate[Self, Params], Result]:
    """Hold the `_lock` of a method's object while the method runs."""

    @wraps(method)
    def locked(self: Self, /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        owner: Any = self
        with owner._lock:
            return method(self, *args, **kwargs)

    return locked


_locks: WeakSet[Any] = WeakSet()
_fork_lock = Lock()  # held by the thread that forks
_held: list[Any] = []  # locks that this thread holds


def _acquire_all() -> None:
    """Acquire every lock, without holding any lock while waiting for the next.

    Otherwise two threads that wait for each other's locks would deadlock.
    """
    _fork_lock.acquire()
    end = monotonic() + MAX_FORK_WAIT
    locks = list(_locks)
    while not _try_all(locks):
        for lock in list(_held):
            lock.release()
        _held.clear()
        if monotonic() > end:
            return
        if locks[0].acquire(timeout=max(0.0, end - monotonic())):
            _held.append(locks[0])


def _try_all(locks: list[Any]) -> bool:
    """Acquire locks until one fails, which moves to the front. Return whether all are held."""
    for place, lock in enumerate(locks):
        if lock in _held:
            continue
        if not lock.acquire(blocking=False):
            locks.insert(0, locks.pop(place))
            return False
        _held.append(lock)
    return True


def _release_all() -> None:
    for lock in _held:
        lock.release()
    _held.clear()
    _fork_lock.release()


def _release_in_child() -> None:
    _release_all()
    for lock in _locks:
        if not lock._is_owned():  # a thread of the parent held it beyond MAX_FORK_WAIT
            lock._at_fork_reinit()


os.register_at_fork(
    before=_acquire_all, after_in_parent=_release_all, after_in_child=_release_in_child
)
