# SPDX-License-Identifier: Apache-2.0
"""`Service`: answers requests with the newest version of a folder, and counts them.

Small requests run in one thread and large requests in a second, and no step holds the GIL for long.
A folder is opened again while the old version answers: each answer comes from one version.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sparsetrain.errors import DataError, NumericalError, SparsetrainError, first_line
from sparsetrain.serving.limits import Limits, Most, TooLarge
from sparsetrain.serving.memory_budget import Client, MemoryBudget
from sparsetrain.serving.model import Model
from sparsetrain.serving.requests import READERS
from sparsetrain.serving.server_log import ServerLog

WATCHED = ("/health", "/metrics")
SMALL = Most(rows=1000, values=20_000, bytes=1 << 16)
HELD = 3  # memory for all large requests and answers, as a multiple of the largest body
_STATUS = ((TooLarge, 413), (DataError, 400), (NumericalError, 422), (SparsetrainError, 500))


class Service:
    """The newest version of a folder, and metrics of its answers."""

    def __init__(
        self,
        folder: Path,
        asked: asyncio.Event,
        limits: Limits | None = None,
        absent: str = "error",
        log: ServerLog | None = None,
    ) -> None:
        self.folder, self._absent, self._log = folder, absent, log or ServerLog()
        self.model = self._open()
        limits = limits or Limits()
        self.most = limits.most
        self._answers = MemoryBudget((HELD - 1) * limits.body)
        self._waiting = MemoryBudget(limits.body)  # answers that wait for room in `_answers`
        self._turn = asyncio.Lock()  # one large request at a time
        self._small = Most(*map(min, SMALL, self.most))
        self._threads = {size: ThreadPoolExecutor(1) for size in (self._small, self.most)}
        self.asked = asked  # set to open the folder again
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
        self.registry.register(_OfModel(self))

    def _open(self) -> Model:
        return Model(self.folder, absent=self._absent)

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

    async def _respond(self, body: bytes, kind: str, client: Client) -> Response:
        if len(body) <= SMALL.bytes:
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

    async def _in_thread(self, body: bytes, kind: str, most: Most, client: Client) -> Response:
        loop = asyncio.get_running_loop()
        work = self._threads[most].submit(self._answer, body, kind, most)
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:  # the thread continues, and keeps the memory
            held = client.held.pop_all()

            def give_back(_work: object) -> None:
                with suppress(RuntimeError):  # the server has ended
                    loop.call_soon_threadsafe(held.close)

            work.add_done_callback(give_back)
            raise

    def _answer(self, body: bytes, kind: str, most: Most) -> Response:
        model = self.model  # one version, even if a new one is opened meanwhile
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
            raise TooLarge("the request needs more memory than is left; split it") from None
        except SparsetrainError as error:
            return _refused(error)
        self._rows.inc(len(predictions))
        return Response(answer, media_type=kind)

    def count(self, scope: Any, status: int, seconds: float) -> None:
        """Count and log an answer, except answers to monitoring."""
        if scope["path"] not in WATCHED:
            self._requests.labels(str(status)).inc()
            self._log.answer(scope, status, seconds)

    async def health(self, _request: Request) -> Response:
        """Return the status and the model's columns."""
        return JSONResponse({"status": "ok", "columns": [*self.model.columns]})

    async def metrics(self, _request: Request) -> Response:
        """Return the counts in Prometheus's format."""
        return Response(generate_latest(self.registry), media_type="text/plain; version=0.0.4")

    async def reload_whenever_asked(self) -> None:
        """Open the folder again each time `asked` is set; the last version opened is the newest."""
        while await self.asked.wait():
            self.asked.clear()
            await self._reload()

    async def _reload(self) -> None:
        """Switch to the folder's current version; on an error, keep the old one."""
        try:
            self.model = await asyncio.to_thread(self._open)
        except (SparsetrainError, OSError) as error:  # for example, a file was removed meanwhile
            result, text = "refused", f"the old version stays: {error}"
        except Exception as error:  # must not end the loop that opens later versions
            reason = f"{type(error).__name__}: {first_line(error)}"
            result, text = "refused", f"the old version stays: {reason}"
        else:
            result, text = "opened", f"opened {self.folder} again"
        self._reloads.labels(result).inc()
        self._log.event(result, text)


class _OfModel(Collector):
    """Metrics of the current version."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Yield the version, its age, and counts of values without a row of their own."""
        model = self._service.model
        yield InfoMetricFamily(
            "sparsetrain_model", "Version of the folder.", {"version": model.version}
        )
        age = time.time() - model.written
        yield GaugeMetricFamily(
            "sparsetrain_model_age_seconds", "Since the folder was written.", age
        )
        unseen = CounterMetricFamily(
            "sparsetrain_unseen_values",
            "Values without a row of their own: rare, or never seen.",
            labels=["column"],
        )
        for name, count in model.unseen().items():
            unseen.add_metric([name], count)
        yield unseen

    def describe(self) -> Iterator[Metric]:
        """Yield nothing; `collect` names the metrics."""
        return iter(())


def _refused(error: SparsetrainError) -> Response:
    status = next(status for known, status in _STATUS if isinstance(error, known))
    return JSONResponse({"error": str(error)}, status)
