# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: answers, errors, limits under slow and endless clients, reloads, stops."""

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO
from unittest.mock import Mock, patch

import numpy as np
import pyarrow as pa
import pytest

from sparsetrain.errors import ConfigError
from sparsetrain.parsing.identity import UNSEEN
from sparsetrain.serving.delta import apply
from sparsetrain.serving.export import export
from sparsetrain.serving.model import Model
from tests.serving.attacks import CHUNKED, request, stream
from tests.serving.attacks import rows_of as rows_json
from tests.serving.logs import BAGS, SCHEMA, day_after, frame, rows_of

for needed in ("starlette", "uvicorn", "httptools", "prometheus_client"):
    pytest.importorskip(needed)
import uvicorn  # noqa: E402
from uvicorn.server import ServerState  # noqa: E402

from sparsetrain.serving import requests  # noqa: E402
from sparsetrain.serving import server as serving  # noqa: E402
from sparsetrain.serving import service as answering  # noqa: E402
from sparsetrain.serving.bounded import _Bounded  # noqa: E402
from sparsetrain.serving.limits import Limits  # noqa: E402
from sparsetrain.serving.memory_budget import Client, MemoryBudget  # noqa: E402
from sparsetrain.serving.service import Service  # noqa: E402

SERVE = "import sys; from sparsetrain.cli import main; sys.exit(main(sys.argv[1:]))"
SECONDS, BODY, ROWS = 1.0, 200_000, 60_000
JSON, ARROW = {"content-type": "application/json"}, "application/vnd.apache.arrow.stream"


class Server:
    """A process that serves a folder."""

    def __init__(
        self,
        folder: Path,
        seconds: float = 30.0,
        connections: int = 512,
        body: int = BODY,
        rows: int = ROWS,
        code: str = SERVE,
        options: tuple[str, ...] = (),
    ) -> None:
        sizes = [f"--max-body={body}", f"--max-rows={rows}"]
        limits = [f"--timeout={seconds}", f"--connections={connections}", *sizes]
        command = [sys.executable, "-c", code, "serve", str(folder), "--port=0", *limits, *options]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, **pipes)
        line = self.process.stdout.readline()
        self.port = int(line.rpartition(":")[2])

    def ask(self, path: str, body: bytes | None = None, headers: dict | None = None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("POST" if body is not None else "GET", path, body, headers or JSON)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content

    def predict(self, rows: list[dict]):
        return self.ask("/predict", json.dumps({"rows": rows}).encode())

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and wait for the end, which uvicorn makes by the same signal."""
        self.process.send_signal(number)
        with self.process:  # closes its pipes
            return self.process.wait(30)


@pytest.fixture(scope="module")
def server(exported):
    made = Server(exported["ids"][1])
    yield made
    if made.process.poll() is None:
        made.stop()


def as_rows(columns: dict[str, list]) -> list[dict]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_json_and_arrow_get_the_predictions_of_the_trainer(exported, server):
    trainer, columns = exported["ids"][0], rows_of(50, 9)
    table = frame(columns, SCHEMA)
    expected = trainer.predict(table)
    status, content = server.predict(as_rows(columns))
    assert status == 200
    found = np.array(json.loads(content)["predictions"], np.float32)
    np.testing.assert_array_equal(found, expected)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    body = sink.getvalue().to_pybytes()
    status, content = server.ask("/predict", body, {"content-type": ARROW})
    assert status == 200
    found = pa.ipc.open_stream(content).read_all().column("click").to_numpy()
    np.testing.assert_array_equal(found, expected)


NULLS = stream(dict.fromkeys(("age", "price", "user"), pa.nulls(10**7)))
ZEROS = stream({"site": pa.array([b"\0" * (1 << 20)])}, "zstd")
REFUSED = {
    "no JSON": (b"{", JSON, 400, "the body is not JSON"),
    "deep": (b"[" * 100_000, JSON, 400, "the body is not JSON"),
    "no rows": (b'{"rows": []}', JSON, 400, "rows: give"),
    "no row": (b'{"rows": [1]}', JSON, 400, "row 0: it must be an object"),
    "no column": (b'{"rows": [{"age": 1}]}', JSON, 400, "column price is missing"),
    "an object": (b'{"rows": [{"age": {"a": 1}}]}', JSON, 400, "column age: it holds dict"),
    "half a pair": (b'{"rows": [{"site": "\\ud800"}]}', JSON, 400, "column site"),
    "no arrow": (b"x" * 99, {"content-type": ARROW}, 400, "the body is not an Arrow stream"),
    "pickle": (b"x", {"content-type": "application/x-pickle"}, 415, "content-type: give"),
    "nulls": (NULLS, {"content-type": ARROW}, 413, "more than 60,000 rows"),
    "zstd": (ZEROS, {"content-type": ARROW}, 413, "more than 200,000 bytes"),
    "rows": (rows_json("{}", ROWS + 1), JSON, 413, "more than 60,000 rows"),
    "twice": (b'{"rows": [{"age": 1, "age": 2}]}', JSON, 400, "row 0: it has 'age' twice"),
    "no known column": (b'{"rows": [{"ages": 1}]}', JSON, 400, "column age is missing"),
    "large": (b" " * (BODY + 1), JSON, 413, "more than 200,000 bytes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_body_gets_one_line_that_names_the_field(server, case):
    body, headers, expected, message = REFUSED[case]
    status, content = server.ask("/predict", body, headers)
    assert status == expected
    assert message in json.loads(content)["error"]


def test_a_port_in_use_is_named_with_the_way_out(server):
    with pytest.raises(ConfigError, match=f"^port {server.port} of 127.0.0.1 is in use .* --port"):
        serving.serve("absent", "127.0.0.1", server.port, Limits())
    with pytest.raises(ConfigError, match="^cannot listen on port 0 of no.such.host: "):
        serving.serve("absent", "no.such.host", 0, Limits())


def test_limits_below_those_of_small_requests_hold(exported):
    server = Server(exported["ids"][1], rows=10)
    assert server.predict(as_rows(rows_of(10, 0)))[0] == 200
    assert server.predict(as_rows(rows_of(11, 0)))[0] == 413
    server.stop()


def closed_within(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


HEAD = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
STALLED = {
    "headers": HEAD,
    "nothing": b"",
    "body": HEAD + b"content-length: 100\r\n\r\n{",
    "chunks": HEAD + b"transfer-encoding: chunked\r\n\r\n",
}


def test_clients_that_stall_or_never_end_are_let_go_and_others_are_answered(exported):
    server = Server(exported["ids"][1], SECONDS)
    with ExitStack() as opened:
        address = ("127.0.0.1", server.port)
        stalled = [opened.enter_context(socket.create_connection(address)) for _ in STALLED]
        for connection, content in zip(stalled, STALLED.values(), strict=True):
            connection.sendall(content)
        endless = opened.enter_context(socket.create_connection(address))
        endless.sendall(STALLED["chunks"])
        block, begin = b"8000\r\n" + b" " * 0x8000 + b"\r\n", time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - begin < 20 * SECONDS:
                endless.sendall(block)
                time.sleep(0.01)
        assert server.ask("/health")[0] == 200
        for case, connection in zip(STALLED, stalled, strict=True):
            assert closed_within(connection, 20 * SECONDS), case
    server.stop()


def test_refusals_under_overload_do_not_fill_the_log(exported):
    server = Server(exported["ids"][1], connections=1)
    with socket.create_connection(("127.0.0.1", server.port)):
        for _ in range(3):
            assert server.ask("/health")[0] == 503
    server.process.send_signal(signal.SIGTERM)
    assert server.process.communicate(timeout=30)[1] == ""


SLOW = """
import sys, time
from sparsetrain.cli import main
from sparsetrain.serving import service

class Model:
    columns, labels, width = ("age",), ("click",), 1

    def __init__(self, folder, absent):
        pass

    def predict_columns(self, columns):
        time.sleep(60)

service.Model = Model
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("rows", [1, 2000])
def test_an_answer_that_takes_long_ends_in_time_and_others_are_answered(rows):
    server, body = Server(Path("folder"), 2.0, code=SLOW), rows_json('{"age": 1}', rows)
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(request("application/json", body))
        assert server.ask("/health")[0] == 200
        slow.setblocking(False)
        with pytest.raises(BlockingIOError):
            slow.recv(1)
        slow.settimeout(30)
        assert b" 408 " in slow.recv(4096)
    server.stop(signal.SIGKILL)


def deaf(port: int) -> socket.socket:
    """A client that asks for 5 MB, more than the system buffers, and reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    row = json.dumps({name: None for name in rows_of(1, 0)})
    client.sendall(request("application/json", rows_json(row + ",{}" * (4 * ROWS - 1), 1)))
    return client


def test_clients_that_read_no_answer_are_let_go(exported):
    server = Server(exported["ids"][1], 4 * SECONDS, connections=2, body=4 * BODY, rows=4 * ROWS)
    with deaf(server.port), deaf(server.port):
        deadline = time.monotonic() + 30 * SECONDS
        while (status := server.ask("/health")[0]) == 503 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert status == 200
    server.process.send_signal(signal.SIGTERM)
    assert server.process.communicate(timeout=30)[1] == ""  # no line for each


def test_a_body_that_says_to_be_too_large_is_refused_before_it_comes(server):
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(20)
        client.sendall(HEAD + b"content-length: 1000000000000\r\n\r\n" + b" " * 65_537)
        answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413 ")


PATIENT = 90.0  # seconds of a request, more than `Server.ask` waits
LENGTH = b"content-length: %d\r\n\r\n"
HOLDERS = {  # clients, and what each sends before it stalls
    "little of a body": (9, HEAD + LENGTH % BODY + b" " * 65_537),
    "most of a body": (9, HEAD + LENGTH % BODY + b" " * (BODY - 1)),
    "chunks": (9, STALLED["chunks"] + b"16000\r\n" + b" " * 0x16000 + b"\r\n"),
}


@pytest.mark.parametrize("case", HOLDERS)
def test_bodies_that_stall_keep_no_other_client_waiting(exported, case):
    """Their memory goes to another long before their time is over."""
    server, (count, content) = Server(exported["ids"][1], PATIENT), HOLDERS[case]
    columns = rows_of(600, 5)
    body = json.dumps({"rows": as_rows(columns)}).encode()
    assert 65_536 < len(body) < BODY
    with ExitStack() as opened:
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", server.port))
            opened.enter_context(connection).sendall(content)
        time.sleep(0.5)
        assert server.ask("/predict", body)[0] == 200
    server.stop(signal.SIGKILL)


def test_bodies_that_come_together_are_all_answered(server):
    """More than the memory of all takes: they wait for one another."""
    body = json.dumps({"rows": as_rows(rows_of(600, 5))}).encode()
    body += b" " * (BODY - len(body))
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(server.ask("/predict", body)[0]))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 12


@pytest.mark.slow
def test_answers_that_nobody_reads_keep_no_other_client_waiting(exported):
    server = Server(exported["ids"][1], PATIENT, body=4 * BODY, rows=4 * ROWS)
    row = json.dumps(dict.fromkeys(rows_of(1, 0)))
    with ExitStack() as opened:
        for _ in range(3):
            opened.enter_context(deaf(server.port))
        time.sleep(0.5)
        for more in (20, 3 * ROWS):  # answers of little and of much
            body = rows_json(row + ",{}" * more, 1) + b" " * 65_536
            assert server.ask("/predict", body)[0] == 200
    server.stop(signal.SIGKILL)


class Waiting:
    """A model whose answers wait."""

    columns, labels, width = ("age",), ("click",), 1

    def __init__(self, _folder: Path, absent: str) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def predict_columns(self, _columns: object) -> np.ndarray:
        self.begun.set()
        self.go.wait(30)
        return np.zeros(1, np.float32)


@pytest.mark.parametrize("rows", [1, 2000])
def test_memory_is_given_back_once_the_thread_of_a_request_ends(monkeypatch, rows):
    monkeypatch.setattr(answering, "Model", Waiting)

    async def talk() -> None:
        service, client = Service(Path(), asyncio.Event()), Client(Mock())
        budget, body = MemoryBudget(100), rows_json('{"age": 1}', rows)
        await budget.take(100, client, client.held)
        with client.held:
            task = asyncio.create_task(service._respond(body, "application/json", client))
            while not service.model.begun.is_set():
                await asyncio.sleep(0.01)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        assert budget._left == 0
        service.model.go.set()
        await asyncio.wait_for(budget.take(100, Client(Mock()), ExitStack()), 30)

    asyncio.run(talk())


@pytest.mark.parametrize("error", [MemoryError, pa.ArrowMemoryError])
@pytest.mark.parametrize("kind", [ARROW, "application/json"])
def test_a_request_for_more_memory_than_there_is_gets_413(monkeypatch, kind, error):
    monkeypatch.setattr(answering, "Model", Waiting)
    reader = "_checked_columns" if kind == ARROW else "read_rows"
    monkeypatch.setattr(requests, reader, Mock(side_effect=error("malloc failed")))

    async def talk() -> int:
        service = Service(Path(), asyncio.Event())
        return (await service._respond(b"", kind, Client(Mock()))).status_code

    assert asyncio.run(talk()) == 413


def test_a_stop_waits_for_no_client_that_does_not_read_or_write(exported):
    server = Server(exported["ids"][1], 4 * SECONDS, body=4 * BODY, rows=4 * ROWS)
    with ExitStack() as opened:
        for content in STALLED.values():
            connection = socket.create_connection(("127.0.0.1", server.port))
            opened.enter_context(connection).sendall(content)
            opened.enter_context(deaf(server.port))
        server.ask("/health")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.communicate(timeout=30 * SECONDS)[1] == ""
    assert server.process.returncode == -signal.SIGTERM


LONG = b"x" * 40_000
LONG_HEADS = {
    "a value": b"GET /health HTTP/1.1\r\nx: " + LONG,
    "a path": b"GET /" + LONG,
    "headers": b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 400,
    "whole": b"GET /health HTTP/1.1\r\nx: " + LONG + b"\r\n\r\n",
}


@pytest.mark.parametrize("case", LONG_HEADS)
def test_headers_are_limited(server, case):
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(LONG_HEADS[case])
        answer = connection.recv(4096)
    assert b" 431 " in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {
        "error": "the headers have more than 32 KiB"
    }


TRAILERS = request("application/json", b"", CHUNKED) + b"0\r\nx: "


@pytest.mark.parametrize("begin", [LONG_HEADS["a value"][:30], TRAILERS, TRAILERS[:-6] + b"1;"])
def test_headers_without_an_end_are_cut(server, begin):
    sent = 0
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(begin)
        with pytest.raises(OSError):
            while sent < 64 << 20:
                connection.sendall(LONG)
                sent += len(LONG)


def content_of(answers: BinaryIO) -> bytes:
    """The content of the next answer on a connection."""
    lines = iter(answers.readline, b"\r\n")
    lengths = [line for line in lines if line.startswith(b"content-length: ")]
    return answers.read(int(lengths[0].split()[1]))


def test_pipelined_requests_are_answered_in_their_order(server):
    numbers = [1, 3, 2, 5, 4]
    bodies = [json.dumps({"rows": as_rows(rows_of(n, 0))}).encode() for n in numbers]
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"".join(request("application/json", body) for body in bodies))
        with connection.makefile("rb") as answers:
            found = [len(json.loads(content_of(answers))["predictions"]) for _ in numbers]
    assert found == numbers


@pytest.mark.parametrize("behind", [b"no request\r\n\r\n", b"GET /health HTTP/1.1\r\n\r\n" * 99])
def test_what_follows_a_request_is_no_answer_to_it(server, behind):
    body = json.dumps({"rows": as_rows(rows_of(30, 0))}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(request("application/json", body) + behind)
        with suppress(ConnectionError):
            assert connection.recv(12) in (b"", b"HTTP/1.1 200")


def test_a_connection_has_one_deadline_however_many_requests_come_at_once():
    """One that another request left behind would cut a later answer."""

    async def app(scope, receive, send):
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
        )
        await send({"type": "http.response.body"})

    async def talk() -> None:
        loop, deadlines, state = asyncio.get_running_loop(), [], ServerState()

        def call_later(delay, callback, *arguments):
            timer = call(delay, callback, *arguments)
            if callback == transport.abort:
                deadlines.append(timer)
            return timer

        call, transport = loop.call_later, Mock(is_closing=Mock(return_value=False))
        with patch.object(loop, "call_later", call_later):
            config = uvicorn.Config(app, limit_concurrency=9)
            connection = _Bounded(config, state, {}, loop)
            connection.connection_made(transport)
            for together in (1, 3, 2):
                connection.data_received(b"GET / HTTP/1.1\r\n\r\n" * together)
                while state.tasks:
                    await asyncio.sleep(0)
                assert sum(not timer.cancelled() for timer in deadlines) == 1
            connection.connection_lost(None)
            assert all(timer.cancelled() for timer in deadlines)

    asyncio.run(talk())


def test_metrics_count_every_answer_but_those_to_who_watches(exported):
    server = Server(exported["ids"][1], SECONDS)
    server.predict(as_rows(rows_of(3, 0)))
    server.predict([{}])
    server.ask("/health")
    server.ask("/elsewhere")
    server.ask("/predict")
    server.ask("/predict", b"", {"content-type": "text/html"})
    server.ask("/predict", b" " * (BODY + 1))
    with socket.create_connection(("127.0.0.1", server.port)) as stalled:
        stalled.sendall(STALLED["body"])
        assert b" 408 " in stalled.recv(4096)
    text = server.ask("/metrics")[1].decode()
    counted = dict(re.findall(r'sparsetrain_requests_total{status="(\d+)"} (\S+)', text))
    assert counted == dict.fromkeys(("200", "400", "404", "405", "408", "413", "415"), "1.0")
    assert "sparsetrain_rows_total 3.0" in text
    server.stop()


def test_metrics_tell_version_age_and_unseen_values(exported):
    trainer, folder = exported["ids"]
    server, columns = Server(folder), rows_of(30, 8)
    server.predict(as_rows(columns))
    text = server.ask("/metrics")[1].decode()
    server.stop()
    found = dict(re.findall(r'sparsetrain_unseen_values_total{column="(\w+)"} (\S+)', text))
    shares = trainer.encoder.encode(frame(columns, SCHEMA)).ids
    expected = {"age": 0, "price": 0, "time": 0}
    for name, ids in zip(trainer.encoder.columns, shares.T, strict=True):
        expected["time" if name == "hour" else name] = int((ids == UNSEEN).sum())
    assert {name: int(float(count)) for name, count in found.items()} == expected
    assert f'sparsetrain_model_info{{version="{Model(folder).version}"}} 1.0' in text
    age = float(re.search(r"\nsparsetrain_model_age_seconds (\S+)", text)[1])
    assert 0 < age < time.time() - (folder / "manifest.txt").stat().st_mtime + 1


def test_a_log_in_json_has_a_line_for_each_answer_and_event(exported):
    folder = exported["ids"][1]
    server = Server(folder, options=("--log=json", "--absent=null"))
    assert server.predict([{"user": 7}])[0] == 200
    server.ask("/health")
    server.ask("/elsewhere")
    server.process.send_signal(signal.SIGHUP)
    first = [json.loads(server.process.stderr.readline()) for _ in range(3)]
    server.stop()
    assert [line["event"] for line in first] == ["answer", "answer", "opened"]
    assert (first[0]["path"], first[0]["status"], first[1]["status"]) == ("/predict", 200, 404)
    assert 0 < first[0]["seconds"] < 10 and first[0]["time"].endswith("+00:00")
    assert first[2]["text"] == f"opened {folder} again"


def test_deltas_arrive_under_load_and_each_answer_is_of_one_version(exported, tmp_path):
    """Kill the server meanwhile, too: what is there afterwards answers."""
    trainer, folder = exported["bags"]
    columns = rows_of(30, 4)
    before = trainer.predict(frame(columns, BAGS))
    later = day_after(trainer, BAGS)
    after = later.predict(frame(columns, BAGS))
    assert not np.array_equal(before, after)
    export(later, tmp_path / "delta", cpu="native", since=folder)
    assert not (tmp_path / "delta" / "libtvm_runtime.so").exists()
    link = tmp_path / "current"
    link.symlink_to(folder)
    server, answers, stop = Server(link), [], threading.Event()

    def load() -> None:
        while not stop.is_set():
            status, content = server.predict(as_rows(columns))
            answers.append((status, content))

    clients = [threading.Thread(target=load) for _ in range(3)]
    for client in clients:
        client.start()
    apply(folder, tmp_path / "delta", tmp_path / "newer")
    (tmp_path / "next").symlink_to(tmp_path / "newer")
    os.replace(tmp_path / "next", link)
    server.process.send_signal(signal.SIGHUP)
    seen, deadline = set(), time.monotonic() + 20
    versions = {tuple(v.reshape(-1).tolist()): n for n, v in enumerate((before, after))}
    while 1 not in seen and time.monotonic() < deadline:
        time.sleep(0.05)
        seen = {versions[numbers(content)] for status, content in list(answers) if status == 200}
    stop.set()
    for client in clients:
        client.join()
    assert {status for status, _ in answers} == {200}
    assert {versions[numbers(content)] for _, content in answers} == {0, 1}
    server.stop(signal.SIGKILL)
    again = Server(link)
    assert versions[numbers(again.predict(as_rows(columns))[1])] == 1
    os.replace(damaged(folder, tmp_path), link)
    again.process.send_signal(signal.SIGHUP)
    assert "the old version stays" in again.process.stderr.readline()
    assert versions[numbers(again.predict(as_rows(columns))[1])] == 1
    assert again.stop() == -signal.SIGTERM


def damaged(folder: Path, tmp_path: Path) -> Path:
    """A link to a folder with a byte that is another."""
    bad = tmp_path / "bad"
    bad.mkdir()
    for path in folder.iterdir():
        (bad / path.name).write_bytes(path.read_bytes())
    (bad / "000.bin").write_bytes(b"x" + (folder / "000.bin").read_bytes()[1:])
    (tmp_path / "wrong").symlink_to(bad)
    return tmp_path / "wrong"


def numbers(content: bytes) -> tuple[float, ...]:
    """The predictions of an answer, row by row."""
    rows = json.loads(content)["predictions"]
    return tuple(value for row in rows for value in row.values())


def test_a_stop_lets_requests_end(server):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        body = json.dumps({"rows": as_rows(rows_of(1, 0))}).encode()
        connection.sendall(HEAD + f"content-length: {len(body)}\r\n\r\n".encode() + body[:10])
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        connection.sendall(body[10:])
        with connection.makefile("rb") as answer:  # up to the end that the server makes
            assert b"predictions" in answer.read()
    server.stop()
