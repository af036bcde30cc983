# SPDX-License-Identifier: Apache-2.0
"""`MemoryBudget`: memory that clients share, and `Client`, which holds some of it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

PIECE = 1 << 15  # bytes parsed or written at a time
_IDLE = 1.0  # seconds without a piece after which a client's memory may be taken


class Client:
    """A client that sends a request and reads its answer, and the memory held for it.

    Attributes
    ----------
    held : ExitStack
        Releases the memory.
    last : float
        Time of its last progress; infinite while the server works on its request.
    let_go : function
        Ends its request, to free the memory.
    """

    def __init__(self, let_go: Callable[[], None]) -> None:
        self.held, self.let_go = ExitStack(), let_go
        self.last, self._passed = math.inf, 0

    def pass_on(self, size: int) -> None:
        """Count bytes that the client sent or read."""
        self._passed += size
        if self._passed >= PIECE:
            self.last, self._passed = time.monotonic(), 0


class MemoryBudget:
    """Memory that clients share; a client waits if too little is left.

    While it waits, idle clients that hold memory lose their requests. The last `kept` bytes are
    reserved for the first client, so that some request can always finish.
    """

    def __init__(self, size: int, kept: int = 0) -> None:
        self._size = self._left = size
        self._kept = kept
        self._given = asyncio.Event()
        self._clients: list[Client] = []  # clients that send or read, in order of arrival

    async def take(self, size: int, client: Client, held: ExitStack) -> None:
        """Wait for `size` bytes, at most the whole budget, and hold them until `held` ends."""
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
        """Note that a client has sent or read everything; it keeps its memory."""
        if client in self._clients:
            self._clients.remove(client)
            self._given.set()  # a different client may be the first now

    def _let_go(self) -> None:
        for client in self._clients:
            if client.last < time.monotonic() - _IDLE:
                client.let_go()

    def _give(self, size: int) -> None:
        self._left += size
        self._given.set()
