# SPDX-License-Identifier: Apache-2.0
"""Who waits for whom: threads that build Relax functions, that use one object, that fork.

A `Turn` is a lock of one object, such as a trainer: a thread that has it may read and write what
the object holds. A fork waits until no other thread has a turn, and those that come meanwhile wait
for the fork: a child has the locks as they were, but not the threads that would give them back.
Cost of a turn: two microseconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from threading import Condition, RLock, get_ident
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

Given = ParamSpec("Given")
Made = TypeVar("Made")
Self = TypeVar("Self")
_turn = RLock()

# A fork gives up waiting then, in seconds: what has a turn may itself wait for what forks.
MAX_FORK_WAIT = 60.0


def with_builder_lock(build: Callable[Given, Made]) -> Callable[Given, Made]:
    """Let one thread at a time run what opens a function of a `BlockBuilder`, or lowers operators.

    TVM keeps the stack of open builders once for all threads: two that build at the same time would
    write into each other's functions. So it does with the tag of the operator that is described.
    """

    @wraps(build)
    def built(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        with _turn:
            return build(*args, **kwargs)

    return built


class ForkSafeLock:
    """One thread at a time; a thread that has the turn may take it again."""

    def __init__(self) -> None:
        self._lock = RLock()
        _turns.add(self)

    def __enter__(self) -> None:
        while not self._is_taken():
            _forks.wait()

    def _is_taken(self) -> bool:
        """Take the turn, unless a fork waits: that may be for a thread which needs this turn."""
        self._lock.acquire()
        taken = False
        try:
            taken = _forks.begin(self)
        finally:
            if not taken:
                self._lock.release()
        return taken

    def __exit__(self, *_: object) -> None:
        try:
            _forks.end()
        finally:
            self._lock.release()


def synchronized(
    method: Callable[Concatenate[Self, Given], Made],
) -> Callable[Concatenate[Self, Given], Made]:
    """Let a method of an object with a `_lock` run while no other thread has that."""

    @wraps(method)
    def waiting(self: Self, /, *args: Given.args, **kwargs: Given.kwargs) -> Made:
        owner: Any = self
        with owner._lock:
            return method(self, *args, **kwargs)

    return waiting


class _Forks:
    """Lets a fork and the turns of other threads wait for each other."""

    def __init__(self) -> None:
        self._forget({})

    def _forget(self, held: dict[int, list[ForkSafeLock]]) -> None:
        """Know of no turn but these, and of no fork that waits."""
        self._changed = Condition()
        self._held = held  # thread -> turns that it has
        self._waiting = 0  # forks

    def begin(self, turn: ForkSafeLock) -> bool:
        """Note that this thread has the turn; not while a fork waits, unless it has others."""
        me = get_ident()
        with self._changed:
            if self._waiting and me not in self._held:
                return False
            self._held.setdefault(me, []).append(turn)
            return True

    def wait(self) -> None:
        """Return after the forks that wait."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)

    def end(self) -> None:
        """Note that this thread gave back the turn that it took last."""
        me = get_ident()
        with self._changed:
            self._held[me].pop()
            if not self._held[me]:
                del self._held[me]
                if self._waiting:
                    self._changed.notify_all()

    def before(self) -> None:
        """Wait until no other thread has a turn; none takes one until `after_in_parent`."""
        me = get_ident()
        self._changed.acquire()
        self._waiting += 1
        self._changed.wait_for(lambda: not self._held.keys() - {me}, MAX_FORK_WAIT)

    def after_in_parent(self) -> None:
        """Let the others go on."""
        self._waiting -= 1
        self._changed.notify_all()
        self._changed.release()

    def after_in_child(self) -> None:
        """Give back the turns of threads that this process has not."""
        me = get_ident()
        mine = self._held.get(me, [])
        self._forget({me: mine} if mine else {})
        for turn in _turns:
            if turn not in mine:
                turn._lock = RLock()


_turns: WeakSet[ForkSafeLock] = WeakSet()
_forks = _Forks()

os.register_at_fork(
    before=_forks.before,
    after_in_parent=_forks.after_in_parent,
    after_in_child=_forks.after_in_child,
)
