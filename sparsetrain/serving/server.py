# SPDX-License-Identifier: Apache-2.0
"""HTTP server of an exported model, on Starlette and uvicorn (extra `serve`).

``POST /predict`` takes JSON or an Arrow stream and answers in kind; ``GET /health`` and
``GET /metrics`` are for monitoring. SIGTERM ends it after the requests that it has. SIGHUP
opens the folder again, beside what answers meanwhile: each answer comes from one version.

Limits hold whatever a client does: rows and bytes of a body, seconds from the first byte of a
request to the last of its answer, the number of connections, and the memory of all requests. No
answer is computed on the event loop. Small requests take turns in one thread and large ones in
another, where nothing that is under way takes the interpreter's lock for long.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import math
import signal
import socket
import sys
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sparsetrain.errors import ConfigError, DataError, NumericalError, SparsetrainError, first_line
from sparsetrain.serving.limits import Limits, Most, TooLarge
from sparsetrain.serving.model import Model
from sparsetrain.serving.requests import READERS

WATCHED = ("/health", "/metrics")
_SMALL = Most(rows=1000, values=20_000, bytes=1 << 16)
_HELD = 3  # times the bytes of a request: those that all large ones hold, and all large answers
_PIECE = 1 << 15  # bytes that are parsed, or written, at a time
_IDLE = 1.0  # seconds in which a client passes a piece, or others may have its memory
_HEAD, _HEADER = 1 << 15, 100  # bytes of all headers of a request, and of each besides its text
_PIPELINED = 16  # requests of a connection behind the one that is answered
_SENT = (socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)  # else the kernel keeps 4 MB unread
_REFUSED = 64  # connections that are told why, beyond those that are answered
_CLOSE = {"connection": "close"}
_STATUS = ((TooLarge, 413), (DataError, 400), (NumericalError, 422), (SparsetrainError, 500))


_LONG_HEAD = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n"
    b"content-type: application/json\r\ncontent-length: 47\r\n\r\n"
    b'{"error": "the headers have more than 32 KiB"}\n'
)


class _Client:
    """Who sends a request and reads its answer, and the memory held meanwhile.

    Attributes
    ----------
    held : ExitStack
        Gives the memory back.
    last : float
        When it last let bytes pass; never while the server is at work for it.
    let_go : function
        Ends what it does not go on with.
    """

    def __init__(self, let_go: Callable[[], None]) -> None:
        self.held, self.let_go = ExitStack(), let_go
        self.last, self._passed = math.inf, 0

    def pass_on(self, size: int) -> None:
        """Count bytes that it sent or read."""
        self._passed += size
        if self._passed >= _PIECE:
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
        self._clients: list[_Client] = []  # that send or read, in their order

    async def take(self, size: int, client: _Client, held: ExitStack) -> None:
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

    def leave(self, client: _Client) -> None:
        """Let a client keep its bytes: it has sent, or read, all."""
        if client in self._clients:
            self._clients.remove(client)
            self._given.set()  # another is the first now

    def _let_go(self) -> None:
        for client in self._clients:
            if client.last < time.monotonic() - _IDLE:
                client.let_go()

    def _give(self, size: int) -> None:
        self._left += size
        self._given.set()


class Service:
    """A folder's newest version, and what is counted of its answers."""

    def __init__(self, folder: Path, asked: asyncio.Event, limits: Limits | None = None) -> None:
        self.folder, self.model = folder, Model(folder)
        limits = limits or Limits()
        self.most = limits.most
        self._answers = MemoryBudget((_HELD - 1) * limits.body)
        self._waiting = MemoryBudget(limits.body)  # answers that wait for room among those
        self._turn = asyncio.Lock()  # of large requests
        self._small = Most(*map(min, _SMALL, self.most))
        self._threads = {size: ThreadPoolExecutor(1) for size in (self._small, self.most)}
        self.asked = asked  # to open the folder again
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "requests", "Requests by status.", ["status"], "sparsetrain", registry=self.registry
        )
        self._rows = Counter("rows", "Rows predicted.", (), "sparsetrain", registry=self.registry)
        self._reloads = Counter(
            "reloads", "Versions opened.", ["result"], "sparsetrain", registry=self.registry
        )
        self._seconds = Histogram(
            *("request_seconds", "Reading, predicting and writing a request.", (), "sparsetrain"),
            buckets=(1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 0.1, 1),
            registry=self.registry,
        )

    async def predict(self, request: Request) -> Response:
        """Answer a request; errors are one line of JSON, under ``"error"``."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in READERS:
            return JSONResponse({"error": f"content-type: give {' or '.join(READERS)}"}, 415)
        body = await request.body()
        begin = time.perf_counter()
        response = await self._respond(body, kind, request.scope["client"])
        self._seconds.observe(time.perf_counter() - begin)
        return response

    async def _respond(self, body: bytes, kind: str, client: _Client) -> Response:
        if len(body) <= _SMALL.bytes:
            with suppress(TooLarge):
                return await self._in_thread(body, kind, self._small, client)
        with ExitStack() as waiting:
            async with self._turn:
                try:
                    response = await self._in_thread(body, kind, self.most, client)
                except TooLarge as error:
                    return _refused(error)
                await self._waiting.take(len(response.body), client, waiting)
                self._waiting.leave(client)
            await self._answers.take(len(response.body), client, client.held)
        return response

    async def _in_thread(self, body: bytes, kind: str, most: Most, client: _Client) -> Response:
        loop = asyncio.get_running_loop()
        work = self._threads[most].submit(self._answer, body, kind, most)
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:  # the thread goes on, with the memory
            held = client.held.pop_all()

            def give_back(_work: object) -> None:
                with suppress(RuntimeError):  # the server has ended
                    loop.call_soon_threadsafe(held.close)

            work.add_done_callback(give_back)
            raise

    def _answer(self, body: bytes, kind: str, most: Most) -> Response:
        model = self.model  # of one version, whatever is opened meanwhile
        read, write = READERS[kind]
        try:
            columns = read(body, model.columns, most)
            rows = max((column.rows for column in columns.values()), default=0)
            most.require(rows=rows, values=rows * model.width)
            predictions = model.predict_columns(columns)
            answer = write(predictions, model.labels)
        except TooLarge:
            raise
        except MemoryError:
            raise TooLarge("the request takes more memory than is left; ask in parts") from None
        except SparsetrainError as error:
            return _refused(error)
        self._rows.inc(len(predictions))
        return Response(answer, media_type=kind)

    def count(self, path: str, status: int) -> None:
        """Count an answer, unless it was to who watches."""
        if path not in WATCHED:
            self._requests.labels(str(status)).inc()

    async def health(self, _request: Request) -> Response:
        """Say that it answers."""
        return JSONResponse({"status": "ok", "columns": [*self.model.columns]})

    async def metrics(self, _request: Request) -> Response:
        """Tell what was counted, as Prometheus reads it."""
        return Response(generate_latest(self.registry), media_type="text/plain; version=0.0.4")

    async def reload_whenever_asked(self) -> None:
        """One after the other: the last that is opened is the newest."""
        while await self.asked.wait():
            self.asked.clear()
            await self._reload()

    async def _reload(self) -> None:
        """Answer with what lies in the folder now; on an error, with what answered before."""
        try:
            self.model = await asyncio.to_thread(Model, self.folder)
        except (SparsetrainError, OSError) as error:  # files that went meanwhile are among them
            result, text = "refused", f"the old version stays: {error}"
        except Exception as error:  # later versions are to be opened all the same
            reason = f"{type(error).__name__}: {first_line(error)}"
            result, text = "refused", f"the old version stays: {reason}"
        else:
            result, text = "opened", f"opened {self.folder} again"
        self._reloads.labels(result).inc()
        with suppress(OSError, ValueError):  # the log is on a full disk, or closed
            print(f"sparsetrain: {text}", file=sys.stderr, flush=True)


def _refused(error: SparsetrainError) -> Response:
    status = next(status for known, status in _STATUS if isinstance(error, known))
    return JSONResponse({"error": str(error)}, status)


class _Limited:
    """An application whose requests end in time, with bodies of a limited size; counts answers."""

    def __init__(self, app: Any, limits: Limits, count: Callable[[str, int], None]) -> None:
        self.app, self.limits, self.count = app, limits, count
        self._bodies = MemoryBudget(_HELD * limits.body, kept=limits.body)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        read, slow, started = 0, False, False
        declared = int(dict(scope["headers"]).get(b"content-length", 0))

        def let_go() -> None:
            nonlocal slow
            slow = True
            if connection := scope["state"]["connection"]():
                connection.abandon() if started else connection.wake()

        async def counted() -> Any:
            nonlocal read
            self._require_size(declared, {})  # what comes of it is dropped for a while
            message = await receive()
            before, size = read, len(message.get("body", b""))
            read += size
            self._require_size(read, _CLOSE)
            if slow:
                reason = "the body came slowly, and others needed its memory"
                raise HTTPException(408, reason, _CLOSE)
            client.pass_on(size)
            if read > _SMALL.bytes and size:
                taken = size if before > _SMALL.bytes else read
                await self._bodies.take(taken, client, client.held)
            if not message.get("more_body"):
                self._bodies.leave(client)
            return message

        async def noted(message: Any) -> None:
            nonlocal started
            if not started:
                self.count(scope["path"], message["status"])
            started = True
            await _send_in_pieces(message, send, client)

        scope["client"] = client = _Client(let_go)
        with client.held:
            try:
                await asyncio.wait_for(self.app(scope, counted, noted), self.limits.seconds)
            except asyncio.TimeoutError:
                if started:  # and the client does not read
                    if connection := scope["state"]["connection"]():
                        connection.abandon()
                    return
                late = {"error": f"the request took more than {self.limits.seconds:g} s"}
                await JSONResponse(late, 408, _CLOSE)(scope, receive, noted)

    def _require_size(self, size: int, headers: dict[str, str]) -> None:
        if size > self.limits.body:
            limit = f"the body has more than {self.limits.body:,} bytes"
            raise HTTPException(413, limit, headers)


async def _send_in_pieces(message: Any, send: Any, client: _Client) -> None:
    """Wait until a piece is on its way before the next: all at once, it would not be waited for."""
    body = message.get("body", b"")
    for begin in range(0, len(body) - _PIECE, _PIECE):
        piece = {"body": body[begin : begin + _PIECE], "more_body": True}
        await send({**message, **piece})
        client.pass_on(_PIECE)
        await asyncio.sleep(0)  # a connection that was lost meanwhile takes no more
    last = (len(body) - 1) // _PIECE * _PIECE
    await send({**message, "body": body[last:]} if body else message)


class _Bounded(HttpToolsProtocol):
    """Ends connections whose next request, headers and all, or next step of an answer takes long.

    It aborts them: closing would wait for a client that does not read. It counts the bytes that the
    parser keeps to itself, and has at most `_PIPELINED` requests wait for the answer to another.
    """

    seconds = 10.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(*_SENT)
        self._head = self._kept = 0
        self._cycles: deque[Any] = deque()  # of requests without an answer yet
        self._deadline = self.loop.call_later(self.seconds, self.transport.abort)
        if len(self.connections) > (self.limit_concurrency or 0) + _REFUSED:
            self.transport.abort()

    def _expect(self, seconds: float) -> None:
        self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        for begin in range(0, len(data), _PIECE):
            if self.transport.is_closing():
                return
            piece = data[begin : begin + _PIECE]
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
        self.scope["state"]["connection"] = weakref.ref(self)  # no cycle to be collected
        self._expect(2 * self.seconds)  # before that, the application ends it

    def on_body(self, body: bytes) -> None:
        self._kept = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._kept = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._cycles:  # whose answer this would be taken for
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
        """Let the request that waits for more of its body look at what changed."""
        for cycle in self._cycles:
            cycle.message_event.set()

    def abandon(self) -> None:
        """End the connection whose client does not read its answer."""
        for cycle in self._cycles:
            cycle.disconnected = True
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)


async def _as_json(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _gone(_request: Request, _error: Exception) -> Response:
    return PlainTextResponse("", 400)  # which nobody reads


def application(service: Service, limits: Limits) -> Any:
    """Return the ASGI application."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        reloads = loop.create_task(service.reload_whenever_asked())
        loop.add_signal_handler(signal.SIGHUP, service.asked.set)
        yield
        loop.remove_signal_handler(signal.SIGHUP)
        reloads.cancel()

    routes = [
        Route("/predict", service.predict, methods=["POST"]),
        *(Route(path, getattr(service, path[1:])) for path in WATCHED),
    ]
    handlers: Any = {HTTPException: _as_json, ClientDisconnect: _gone}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return _Limited(app, limits, service.count)


def serve(folder: Path, host: str, port: int, limits: Limits) -> None:
    """Answer requests until SIGTERM or SIGINT; prints where it listens.

    Raises
    ------
    CheckpointError
        If the folder is damaged or others may write it.
    ConfigError
        If another process listens there, or this one may not.
    """
    _require_free(host, port)
    asked = asyncio.Event()
    signal.signal(signal.SIGHUP, lambda *_: asked.set())  # until there is a loop to hear it
    service = Service(folder, asked, limits)
    protocol = type("Bounded", (_Bounded,), {"seconds": limits.seconds})
    gc.freeze()  # else each full collection passes what imports made, while all threads wait
    sys.setswitchinterval(1e-3)  # s: a large request's thread gives way to the event loop
    config = uvicorn.Config(
        application(service, limits),
        host,
        port,
        http=protocol,
        ws="none",
        limit_concurrency=limits.connections + 1,  # at that number uvicorn refuses
        timeout_keep_alive=max(1, round(limits.seconds)),
        timeout_graceful_shutdown=1 + math.ceil(limits.seconds),
        access_log=False,
        log_level="error",  # no line for each request that is refused
        server_header=False,
    )
    server = _Announced(config)
    server.run()


def _require_free(host: str, port: int) -> None:
    """Raise `ConfigError` unless this process may listen; uvicorn would log and exit."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} of {host} is in use by another process: name another by --port, or 0 "
                "for any free one"
            ) from None
        reason = str(error.strerror).partition(" (while ")[0]
        raise ConfigError(f"cannot listen on port {port} of {host}: {reason}") from None


class _Announced(uvicorn.Server):
    """A server that says where it listens."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            host, port = server.sockets[0].getsockname()[:2]
            print(f"listening on http://{host}:{port}", flush=True)
