# SPDX-License-Identifier: Apache-2.0
"""Time and size limits for requests and connections, whatever a client sends or fails to read.

`limited` bounds bodies, their memory and the time of a request; `bounded_protocol` bounds headers,
pipelined requests and the time of a connection.
"""

from __future__ import annotations

import asyncio
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sparsetrain.serving.limits import Limits
from sparsetrain.serving.memory_budget import PIECE, Client, MemoryBudget
from sparsetrain.serving.service import HELD, SMALL

_HEAD, _HEADER = 1 << 15, 100  # most bytes of all headers; overhead counted per header
_PIPELINED = 16  # requests of a connection that may wait behind the current one
_SENT = (socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)  # else the kernel buffers 4 MB
_REFUSED = 64  # connections over the limit that still get a reason for the refusal
_CLOSE = {"connection": "close"}
OnAnswer = Callable[[Any, int, float], None]  # receives scope, status and seconds of an answer
_LONG_HEAD = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n"
    b"content-type: application/json\r\ncontent-length: 47\r\n\r\n"
    b'{"error": "the headers have more than 32 KiB"}\n'
)


class _Limited:
    """An application that limits the time and the body of a request, and counts answers."""

    def __init__(self, app: Any, limits: Limits, count: OnAnswer) -> None:
        self.app, self.limits, self.count = app, limits, count
        self._bodies = MemoryBudget(HELD * limits.body, kept=limits.body)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        read, slow, started, begin = 0, False, False, time.perf_counter()
        declared = int(dict(scope["headers"]).get(b"content-length", 0))

        def let_go() -> None:
            nonlocal slow
            slow = True
            if connection := scope["state"]["connection"]():
                connection.abandon() if started else connection.wake()

        async def counted() -> Any:
            nonlocal read
            self._require_size(declared, {})  # the connection stays open; uvicorn discards the body
            message = await receive()
            before, size = read, len(message.get("body", b""))
            read += size
            self._require_size(read, _CLOSE)
            if slow:
                reason = "the body arrived too slowly, and other requests needed its memory"
                raise HTTPException(408, reason, _CLOSE)
            client.pass_on(size)
            if read > SMALL.bytes and size:
                taken = size if before > SMALL.bytes else read
                await self._bodies.take(taken, client, client.held)
            if not message.get("more_body"):
                self._bodies.leave(client)
            return message

        async def noted(message: Any) -> None:
            nonlocal started
            if not started:
                self.count(scope, message["status"], time.perf_counter() - begin)
            started = True
            await _send_in_pieces(message, send, client)

        scope["client"] = client = Client(let_go)
        with client.held:
            try:
                await asyncio.wait_for(self.app(scope, counted, noted), self.limits.seconds)
            except asyncio.TimeoutError:
                if started:  # the client does not read the answer
                    if connection := scope["state"]["connection"]():
                        connection.abandon()
                    return
                late = {"error": f"the request took more than {self.limits.seconds:g} s"}
                await JSONResponse(late, 408, _CLOSE)(scope, receive, noted)

    def _require_size(self, size: int, headers: dict[str, str]) -> None:
        if size > self.limits.body:
            limit = f"the body has more than {self.limits.body:,} bytes"
            raise HTTPException(413, limit, headers)


async def _send_in_pieces(message: Any, send: Any, client: Client) -> None:
    """Send a body in pieces; uvicorn applies flow control only between pieces."""
    body = message.get("body", b"")
    for begin in range(0, len(body) - PIECE, PIECE):
        piece = {"body": body[begin : begin + PIECE], "more_body": True}
        await send({**message, **piece})
        client.pass_on(PIECE)
        await asyncio.sleep(0)  # lets a lost connection be noticed
    last = (len(body) - 1) // PIECE * PIECE
    await send({**message, "body": body[last:]} if body else message)


class _Bounded(HttpToolsProtocol):
    """Aborts connections if the next request or the next step of an answer takes too long.

    It does not close them, since closing would wait for a client that does not read. It also limits
    the bytes that the parser buffers, and lets at most `_PIPELINED` requests wait behind an answer.
    """

    seconds = 10.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(*_SENT)
        self._head = self._kept = 0
        self._cycles: deque[Any] = deque()  # requests without an answer yet
        self._deadline = self.loop.call_later(self.seconds, self.transport.abort)
        if len(self.connections) > (self.limit_concurrency or 0) + _REFUSED:
            self.transport.abort()

    def _expect(self, seconds: float) -> None:
        self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        for begin in range(0, len(data), PIECE):
            if self.transport.is_closing():
                return
            piece = data[begin : begin + PIECE]
            self._kept += len(piece)
            super().data_received(piece)
            if self._kept > _HEAD:
                self.send_400_response("")

    def on_message_begin(self) -> None:
        self._head = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + _HEADER)
        self._kept = 0
        super().on_header(name, value)

    def _count_head(self, size: int) -> None:
        self._head += size
        if self._head > _HEAD:
            raise ValueError

    def on_headers_complete(self) -> None:
        if len(self._cycles) > _PIPELINED:
            raise ValueError
        self._kept = 0
        super().on_headers_complete()
        self._cycles.append(self.cycle)
        self.scope["state"]["connection"] = weakref.ref(self)  # avoids a reference cycle
        self._expect(2 * self.seconds)  # a backstop: the application's limit comes first

    def on_body(self, body: bytes) -> None:
        self._kept = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._kept = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._cycles:  # the client would take this for the answer to its last request
            self.transport.abort()
        elif max(self._head, self._kept) > _HEAD:
            self.transport.write(_LONG_HEAD)
            self.transport.close()
        else:
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        self._cycles.popleft()
        self._expect(self.seconds * (2 if self._cycles else 1))
        super().on_response_complete()

    def wake(self) -> None:
        """Wake a request that is waiting for more of its body."""
        for cycle in self._cycles:
            cycle.message_event.set()

    def abandon(self) -> None:
        """Abort a connection with a client that does not read the answer."""
        for cycle in self._cycles:
            cycle.disconnected = True
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)


def limited(app: Any, limits: Limits, count: OnAnswer) -> Any:
    """Return the application with limits; it reports each answer to `count`."""
    return _Limited(app, limits, count)


def bounded_protocol(seconds: float) -> type:
    """Return uvicorn's protocol with a deadline for each step of a connection."""
    return type("Bounded", (_Bounded,), {"seconds": seconds})
