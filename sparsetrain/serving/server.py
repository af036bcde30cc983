# SPDX-License-Identifier: Apache-2.0
"""HTTP server of an exported model, on Starlette and uvicorn (extra `serve`).

``POST /predict`` accepts JSON or an Arrow stream and answers in the same format; ``GET /health``
and ``GET /metrics`` are for monitoring. SIGTERM stops the server after the current requests. SIGHUP
opens the folder again (`service`). Limits hold whatever a client does (`bounded`): rows and bytes
of a body, seconds from the first byte of a request to the last of its answer, the number of
connections, and the memory of all requests. No answer is computed on the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import math
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from sparsetrain.errors import ConfigError
from sparsetrain.serving.bounded import bounded_protocol, limited
from sparsetrain.serving.limits import Limits
from sparsetrain.serving.server_log import ServerLog
from sparsetrain.serving.service import WATCHED, Service


async def _as_json(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _gone(_request: Request, _error: Exception) -> Response:
    return PlainTextResponse("", 400)  # the client has disconnected


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
    return limited(app, limits, service.count)


def serve(
    folder: Path, host: str, port: int, limits: Limits, absent: str = "error", log: str = "text"
) -> None:
    """Answer requests until SIGTERM or SIGINT; print the address first.

    `absent` is passed to `Model`, `log` to `ServerLog`.

    Raises
    ------
    CheckpointError
        If the folder is damaged or other users may write it.
    ConfigError
        If the address is in use, or this process may not listen there.
    """
    _require_free(host, port)
    asked = asyncio.Event()
    signal.signal(signal.SIGHUP, lambda *_: asked.set())  # until the event loop handles it
    service = Service(folder, asked, limits, absent, ServerLog(log))
    gc.freeze()  # else each full collection traverses all imported objects while all threads wait
    sys.setswitchinterval(1e-3)  # s; a large request's thread yields to the event loop sooner
    config = uvicorn.Config(
        application(service, limits),
        host,
        port,
        http=bounded_protocol(limits.seconds),
        ws="none",
        limit_concurrency=limits.connections + 1,  # uvicorn refuses connections from this number on
        timeout_keep_alive=max(1, round(limits.seconds)),
        timeout_graceful_shutdown=1 + math.ceil(limits.seconds),
        access_log=False,
        log_level="error",  # no log line for each refused request
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
                f"port {port} of {host} is in use by another process: choose a different --port, "
                "or 0 for any free port"
            ) from None
        reason = str(error.strerror).partition(" (while ")[0]
        raise ConfigError(f"cannot listen on port {port} of {host}: {reason}") from None


class _Announced(uvicorn.Server):
    """A server that prints its address."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            host, port = server.sockets[0].getsockname()[:2]
            print(f"listening on http://{host}:{port}", flush=True)
