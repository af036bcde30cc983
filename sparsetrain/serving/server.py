# SPDX-License-Identifier: Apache-2.0
"""HTTP server of an exported model, on Starlette and uvicorn (extra `serve`).

``POST /predict`` takes JSON or an Arrow stream and answers in kind; ``GET /health`` and
``GET /metrics`` are for monitoring. SIGTERM ends it after the requests that it has. SIGHUP
opens the folder again, beside what answers meanwhile: each answer comes from one version.

Limits hold whatever a client does: bytes of a body, seconds from the first byte of a request to the
last of its answer, and the number of connections.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
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

from sparsetrain.errors import DataError, NumericalError, SparsetrainError, first_line
from sparsetrain.serving.model import Model
from sparsetrain.serving.requests import READERS

WATCHED = ("/health", "/metrics")
_DIRECT = 1 << 16  # bytes; larger bodies are read beside the event loop
_STATUS = ((DataError, 400), (NumericalError, 422), (SparsetrainError, 500))


@dataclass(frozen=True)
class Limits:
    """What a client may take.

    Attributes
    ----------
    body : int
        Bytes of a request.
    seconds : float
        For a request and its answer; an idle connection is closed after as many.
    connections : int
        At once; further ones are answered with 503.
    """

    body: int = 16 << 20
    seconds: float = 10.0
    connections: int = 512


class Service:
    """A folder's newest version, and what is counted of its answers."""

    def __init__(self, folder: Path, asked: asyncio.Event) -> None:
        self.folder, self.model = folder, Model(folder)
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
        answer = self._answer if len(body) <= _DIRECT else _in_thread(self._answer)
        found = answer(body, kind)
        response: Response = found if isinstance(found, Response) else await found
        self._seconds.observe(time.perf_counter() - begin)
        return response

    def _answer(self, body: bytes, kind: str) -> Response:
        model = self.model  # of one version, whatever is opened meanwhile
        read, write = READERS[kind]
        try:
            predictions = model.predict_columns(read(body, model.columns))
        except SparsetrainError as error:
            status = next(status for known, status in _STATUS if isinstance(error, known))
            return JSONResponse({"error": str(error)}, status)
        self._rows.inc(len(predictions))
        return Response(write(predictions, model.labels), media_type=kind)

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


def _in_thread(function: Callable[..., Response]) -> Callable[..., Any]:
    return lambda *arguments: asyncio.to_thread(function, *arguments)


class _Limited:
    """An application whose requests end in time, with bodies of a limited size; counts answers."""

    def __init__(self, app: Any, limits: Limits, count: Callable[[str, int], None]) -> None:
        self.app, self.limits, self.count = app, limits, count

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        read, started = 0, False

        async def counted() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.limits.body:
                limit = f"the body has more than {self.limits.body:,} bytes"
                raise HTTPException(413, limit, {"connection": "close"})
            return message

        async def noted(message: Any) -> None:
            nonlocal started
            if not started:
                self.count(scope["path"], message["status"])
            started = True
            await send(message)

        try:
            await asyncio.wait_for(self.app(scope, counted, noted), self.limits.seconds)
        except asyncio.TimeoutError:
            if started:
                raise
            slow = {"error": f"the request took more than {self.limits.seconds:g} s"}
            await JSONResponse(slow, 408, {"connection": "close"})(scope, receive, noted)


class _Timed(HttpToolsProtocol):
    """Closes connections whose next request is not there, headers and all, in time."""

    seconds = 10.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect()

    def _expect(self) -> None:
        self._deadline = self.loop.call_later(self.seconds, self.transport.close)

    def on_headers_complete(self) -> None:
        self._deadline.cancel()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
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
    """
    asked = asyncio.Event()
    signal.signal(signal.SIGHUP, lambda *_: asked.set())  # until there is a loop to hear it
    service = Service(folder, asked)
    protocol = type("Timed", (_Timed,), {"seconds": limits.seconds})
    config = uvicorn.Config(
        application(service, limits),
        host,
        port,
        http=protocol,
        limit_concurrency=limits.connections + 1,  # at that number uvicorn refuses
        timeout_keep_alive=max(1, round(limits.seconds)),
        timeout_graceful_shutdown=max(1, round(limits.seconds)),
        access_log=False,
        log_level="error",  # no line for each request that is refused
        server_header=False,
    )
    server = _Announced(config)
    server.run()


class _Announced(uvicorn.Server):
    """A server that says where it listens."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            host, port = server.sockets[0].getsockname()[:2]
            print(f"listening on http://{host}:{port}", flush=True)
