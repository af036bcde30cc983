# SPDX-License-Identifier: Apache-2.0
"""Locks: one for TVM's global BlockBuilder, one per object, and safety across ``fork()``.

A `ForkSafeLock` guards one object, such as a trainer. A fork waits until no other thread holds or
wants such a lock, and threads that come later wait for the fork: a child inherits the locks as they
were, but not the threads that would release them. A lock costs two microseconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from threading import Condition, RLock, local
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

Params = ParamSpec("Params")
Result = TypeVar("Result")
Self = TypeVar("Self")
_builder_lock = RLock()

# Seconds after which a fork goes ahead: a thread with a lock may itself wait for the forking one.
MAX_FORK_WAIT = 60.0


def with_builder_lock(build: Callable[Params, Result]) -> Callable[Params, Result]:
    """Let one thread at a time run a function that uses a `BlockBuilder` or lowers operators.

    TVM keeps one stack of open builders, and one operator tag, for all threads: two that build at
    once would write into each other's functions.
    """

    @wraps(build)
    def locked(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        with _builder_lock:
            return build(*args, **kwargs)

    return locked


class ForkSafeLock:
    """Reentrant lock that no other thread holds while this process forks."""

    def __init__(self) -> None:
        self._lock = RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        _gate.enter()  # first, so that a thread that waits for the lock keeps out forks, too
        try:
            self._lock.acquire()
        except BaseException:
            _gate.leave()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._lock.release()
        finally:
            _gate.leave()


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


class _ForkGate:
    """Makes forks wait for threads that hold or want a lock, and other threads for forks."""

    def __init__(self, depth: int = 0) -> None:
        self._changed = Condition()
        self._forks = 0  # that wait
        self._threads = int(bool(depth))  # that hold or want a lock
        self._local = local()
        self._local.depth = depth

    @property
    def _depth(self) -> int:
        """Locks that this thread holds or wants."""
        return getattr(self._local, "depth", 0)

    def enter(self) -> None:
        """Count a lock for this thread; the first waits for forks."""
        if not self._depth:
            with self._changed:
                self._changed.wait_for(lambda: not self._forks)
                self._threads += 1
        self._local.depth = self._depth + 1

    def leave(self) -> None:
        """Count a lock of this thread as released."""
        self._local.depth -= 1
        if not self._local.depth:
            with self._changed:
                self._threads -= 1
                if self._forks:
                    self._changed.notify_all()

    def before_fork(self) -> None:
        """Wait until no other thread is inside; keep them out until `after_in_parent`."""
        self._changed.acquire()
        self._forks += 1
        self._changed.wait_for(lambda: self._threads <= bool(self._depth), MAX_FORK_WAIT)

    def after_in_parent(self) -> None:
        """Let the other threads go on."""
        self._forks -= 1
        self._changed.notify_all()
        self._changed.release()

    def after_in_child(self) -> None:
        """Forget the threads that this process does not have, and release their locks."""
        self.__init__(self._depth)  # type: ignore[misc]
        for lock in _locks:
            if not lock._lock._is_owned():  # type: ignore[attr-defined]
                lock._lock = RLock()


_locks: WeakSet[ForkSafeLock] = WeakSet()
_gate = _ForkGate()
os.register_at_fork(
    before=_gate.before_fork,
    after_in_parent=_gate.after_in_parent,
    after_in_child=_gate.after_in_child,
)
