# SPDX-License-Identifier: Apache-2.0
"""`MemoryBudget`: bytes that clients hold together, and `Client`, who holds some of them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

PIECE = 1 << 15  # bytes that are parsed, or written, at a time
_IDLE = 1.0  # seconds a client has for a piece before its memory is given away


class Client:
    """Who sends a request and reads its answer, and the memory held meanwhile.

    Attributes
    ----------
    held : ExitStack
        Gives the memory back.
    last : float
        When it last let bytes pass; never while the server is at work for it.
    let_go : function
        Ends requests that it drops.
    """

    def __init__(self, let_go: Callable[[], None]) -> None:
        self.held, self.let_go = ExitStack(), let_go
        self.last, self._passed = math.inf, 0

    def pass_on(self, size: int) -> None:
        """Count bytes that it sent or read."""
        self._passed += size
        if self._passed >= PIECE:
            self.last, self._passed = time.monotonic(), 0


class MemoryBudget:
    """Bytes that clients may hold together; whoever finds none left waits.

    Meanwhile clients that hold some, yet neither send nor read, are let go. The last bytes, as many
    as `kept`, are for the client that came first, so that some request always ends.
    """

    def __init__(self, size: int, kept: int = 0) -> None:
        self._size = self._left = size
        self._kept = kept
        self._given = asyncio.Event()
        self._clients: list[Client] = []  # that send or read, in their order

    async def take(self, size: int, client: Client, held: ExitStack) -> None:
        """Take as many, or all, until `held` ends."""
        size, client.last = min(size, self._size), math.inf
        while self._left - size < (self._kept if client not in self._clients[:1] else 0):
            self._given.clear()
            self._let_go()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._given.wait(), _IDLE / 4)
        self._left -= size
        held.callback(self._give, size)
        client.last = time.monotonic()
        if client not in self._clients:
            self._clients.append(client)
            held.callback(self.leave, client)

    def leave(self, client: Client) -> None:
        """Let a client keep its bytes: it has sent, or read, all."""
        if client in self._clients:
            self._clients.remove(client)
            self._given.set()  # a new one is the first now

    def _let_go(self) -> None:
        for client in self._clients:
            if client.last < time.monotonic() - _IDLE:
                client.let_go()

    def _give(self, size: int) -> None:
        self._left += size
        self._given.set()
