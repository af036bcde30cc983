# SPDX-License-Identifier: Apache-2.0
"""`Comm`: communication between processes, built on one primitive that moves arrays.

An engine implements `transfer`, which waits until a deadline, and `tell`, which interrupts waiting
ranks. This class builds the collectives from direct messages; all sums follow the same binary tree
over the ranks. All ranks call the same methods in the same order.
"""

from __future__ import annotations

import atexit
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from sparsetrain.errors import ParallelError, first_line

Message = tuple[int, np.ndarray]  # a rank, and a contiguous array to send to it or receive into
Item = TypeVar("Item")
OTHERS_SILENT = "a process of the job hangs, or cannot be reached"
GRACE = 1.0  # seconds that a rank waits for the other ranks after a failure


class Comm:
    """The processes of one job; this process is rank `rank`. A single process needs no engine.

    Attributes
    ----------
    rank, size : int
    hosts : list of str
        Name of each rank's machine.
    engine : str
        Name and version of the library that moves the arrays.
    deadline : float
        Seconds to wait for a rank before the job fails.
    sent : int
        Bytes sent so far.
    traffic : dict
        Purpose of messages -> [messages, seconds, 0, bytes sent], since it was last cleared.
    """

    rank, size, sent = 0, 1, 0
    hosts: Sequence[str] = ("this machine",)
    engine = "none"
    deadline = 600.0
    _memory = np.empty((0, 0))

    @cached_property
    def traffic(self) -> dict[str, list[Any]]:
        """Traffic by purpose; see the class."""
        return {}

    def transfer(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Send and receive arrays; return when all transfers are complete.

        Raises
        ------
        ParallelError
            If a rank has failed or ended, or does not answer within the deadline.
        """

    def tell(self, text: str, exit_code: int) -> None:
        """Make all other ranks raise a `ParallelError` with this text."""

    def _meet(self, host: str, leave: Callable[[], object]) -> None:
        """Wait for all ranks, gather their hosts, and register `leave` to run at exit."""
        self.hosts = ["a machine"] * self.size
        self.hosts = self.gather(host)
        atexit.register(leave)

    @property
    def name(self) -> str:
        """Name of this rank in messages."""
        return self.name_of(self.rank)

    def name_of(self, rank: int) -> str:
        """Return the name of a rank in messages."""
        return f"rank {rank} of {self.size} ({self.hosts[rank]})"

    def names_of(self, ranks: Iterable[int]) -> str:
        """Return the names of ranks in messages."""
        return ", ".join(map(self.name_of, sorted(ranks)))

    def say_silent(self, ranks: Iterable[int]) -> str:
        """Return the message for ranks that did not answer before the deadline."""
        return f"{self.name}: no answer from {self.names_of(ranks)} for {self.deadline:g} s"

    @contextmanager
    def guard(self, errors: type[BaseException] = BaseException) -> Iterator[None]:
        """If the block raises an error, report it to the other ranks, which ends the job."""
        try:
            yield
        except ParallelError:
            raise
        except errors as error:
            text = f"{self.name}: {type(error).__name__}: {_text_of(error)}"
            self.tell(text, getattr(error, "exit_code", 1))
            raise

    def exchange(
        self,
        array: np.ndarray,
        counts: Sequence[int],
        out: np.ndarray,
        received: Sequence[int],
        purpose: str = "agreement",
    ) -> np.ndarray:
        """Send ``counts[r]`` rows of `array` to rank r; receive ``received[r]`` rows into `out`."""
        give, take = spans(counts), spans(received)
        out[take[self.rank]] = array[give[self.rank]]
        self._move(
            [(r, array[give[r]]) for r in self._others if counts[r]],
            [(r, out[take[r]]) for r in self._others if received[r]],
            purpose,
        )
        return out

    def swap(self, numbers: np.ndarray) -> np.ndarray:
        """Send row r of `numbers` (size, k) to rank r; return the received rows, by rank."""
        ones = [1] * self.size
        return self.exchange(numbers, ones, np.empty_like(numbers), ones)

    def tree_sum_(self, buffer: np.ndarray) -> None:
        """Sum `buffer` in place over the ranks by the binary tree, to the same bits on every rank.

        Each rank sums one share of the n numbers, and so sends 2 n (size - 1) / size of them.
        """
        shared = spans(np.diff(len(buffer) * np.arange(self.size + 1) // self.size))
        own = buffer[shared[self.rank]]
        if self.size == 1:
            return
        shares = self._shares(len(own), buffer.dtype)
        shares[self.rank] = own
        others, purpose = self._others, "dense sums"
        self._move(
            [(r, buffer[shared[r]]) for r in others], [(r, shares[r]) for r in others], purpose
        )
        own[...] = tree(list(shares), np.add)
        self._move([(r, own) for r in others], [(r, buffer[shared[r]]) for r in others], purpose)

    def gather(self, value: Any) -> list[Any]:
        """Gather one JSON value from each rank; return them, by rank, on every rank."""
        own = np.frombuffer(json.dumps(value).encode(), np.uint8)
        sizes = self.swap(np.full((self.size, 1), own.size))[:, 0]
        out = np.empty(int(sizes.sum()), np.uint8)
        everyone = np.tile(own, self.size)
        self.exchange(everyone, [own.size] * self.size, out, sizes.tolist())
        return [json.loads(out[span].tobytes()) for span in spans(sizes)]

    def gather_rows(self, rows: np.ndarray, counts: Sequence[int]) -> list[np.ndarray]:
        """Return all ranks' arrays on every rank; rank r has ``counts[r]`` rows, by default 0."""
        received = [*counts, *[0] * (self.size - len(counts))]
        out = np.empty((sum(received), *rows.shape[1:]), rows.dtype)
        everyone = np.concatenate([rows] * self.size)
        self.exchange(everyone, [len(rows)] * self.size, out, received)
        return [out[span] for span in spans(received)]

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return bool(self.swap(np.full((self.size, 1), int(flag))).any())

    def _shares(self, length: int, dtype: Any) -> np.ndarray:
        """Return memory for one share per rank; reuse the previous sum's memory if it fits."""
        if self._memory.shape != (self.size, length) or self._memory.dtype != dtype:
            self._memory = np.empty((self.size, length), dtype)
        return self._memory

    @property
    def _others(self) -> list[int]:
        return [r for r in range(self.size) if r != self.rank]

    def _move(self, sends: Sequence[Message], receives: Sequence[Message], purpose: str) -> None:
        sends, receives = ([m for m in each if m[1].size] for each in (sends, receives))
        if not sends and not receives:
            return
        count, began = sum(array.nbytes for _, array in sends), time.perf_counter()
        self.transfer(sends, receives)
        passed = time.perf_counter() - began
        before = self.traffic.get(purpose, [0, 0.0, 0, 0])
        now = [len(sends), passed, 0, count]
        self.traffic[purpose] = [a + b for a, b in zip(before, now, strict=True)]
        self.sent += count


def tree(items: Sequence[Item | None], join: Callable[[Item, Item], Item]) -> Item | None:
    """Join items along the binary tree ((0 + 1) + (2 + 3)) + ...; skip None."""
    while len(items) > 1:
        items = [_pair(items[n : n + 2], join) for n in range(0, len(items), 2)]
    return items[0]


def _pair(pair: Sequence[Item | None], join: Callable[[Item, Item], Item]) -> Item | None:
    there = [item for item in pair if item is not None]
    return join(*there) if len(there) == 2 else there[0] if there else None


def as_bytes(array: np.ndarray) -> np.ndarray:
    """View the memory of a contiguous array as uint8."""
    return array.reshape(-1).view(np.uint8)


def spans(counts: Any) -> list[slice]:
    """Return slices of consecutive parts with these lengths."""
    ends = np.cumsum(counts).tolist()
    return [slice(first, end) for first, end in zip([0, *ends], ends, strict=False)]


def _text_of(error: BaseException) -> str:
    return " ".join(str(error).split()) or first_line(error)
