# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: answers, errors, limits under slow and endless clients, reloads, stops."""

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
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparsetrain.serving.delta import apply
from sparsetrain.serving.export import export
from tests.serving.logs import BAGS, SCHEMA, day_after, frame, rows_of

for needed in ("starlette", "uvicorn", "httptools", "prometheus_client"):
    pytest.importorskip(needed)

SERVE = "import sys; from sparsetrain.cli import main; sys.exit(main(sys.argv[1:]))"
SECONDS, BODY = 1.0, 200_000
JSON, ARROW = {"content-type": "application/json"}, "application/vnd.apache.arrow.stream"


class Server:
    """A process that serves a folder."""

    def __init__(self, folder: Path, seconds: float = 30.0, connections: int = 512) -> None:
        limits = [f"--timeout={seconds}", f"--max-body={BODY}", f"--connections={connections}"]
        command = [sys.executable, "-c", SERVE, "serve", str(folder), "--port=0", *limits]
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


REFUSED = {
    "no JSON": (b"{", JSON, 400, "the body is not JSON"),
    "deep": (b"[" * 100_000, JSON, 400, "the body is not JSON"),
    "no rows": (b'{"rows": []}', JSON, 400, "rows: give"),
    "no row": (b'{"rows": [1]}', JSON, 400, "row 0: it is not an object"),
    "no column": (b'{"rows": [{"age": 1}]}', JSON, 400, "column price is missing"),
    "an object": (b'{"rows": [{"age": {"a": 1}}]}', JSON, 400, "column age: it holds dict"),
    "half a pair": (b'{"rows": [{"site": "\\ud800"}]}', JSON, 400, "column site"),
    "no arrow": (b"x" * 99, {"content-type": ARROW}, 400, "the body is not an Arrow stream"),
    "pickle": (b"x", {"content-type": "application/x-pickle"}, 415, "content-type: give"),
    "large": (b" " * (BODY + 1), JSON, 413, "more than 200,000 bytes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_body_gets_one_line_that_names_the_field(server, case):
    body, headers, expected, message = REFUSED[case]
    status, content = server.ask("/predict", body, headers)
    assert status == expected
    assert message in json.loads(content)["error"]


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
