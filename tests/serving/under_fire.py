# SPDX-License-Identifier: Apache-2.0
"""A server that is overloaded and killed while deltas arrive, whose writer is killed too.

Clients keep asking on more connections than the server takes. In each round the server, the writer
of deltas or both get SIGKILL at a random moment and start again. Every answer has to have the bits
of one of the two versions for all of its rows, and after each round there has to be one.

    python -m tests.serving.under_fire --rounds 300
"""

import argparse
import http.client
import json
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparsetrain.serving.delta import write_delta
from sparsetrain.serving.manifest import FILE
from sparsetrain.serving.requests import ARROW, JSON, to_json
from tests.serving.targets import Target, apply_deltas, serve_current

CLIENTS, PATIENCE = 6, 60.0  # twice the connections; seconds
ROWS = (1, 30, 700)  # the last in more than the bytes that the event loop reads itself


class Clients:
    """Threads that ask, compare and count."""

    def __init__(self, port: int, versions: dict[bytes, tuple[str, dict[bytes, str]]]) -> None:
        self.port, self.versions = port, versions
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(CLIENTS)]

    @contextmanager
    def asking(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()
        if self.wrong:
            raise AssertionError(f"wrong answers: {self.wrong[:3]}; {self.counts}")

    def _run(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self._stop.is_set():
            found = self._ask(rng.choice([*self.versions]))
            with self._lock:
                self.counts[found] += 1
            if found == "no answer":
                time.sleep(0.1)

    def _ask(self, body: bytes) -> str:
        """Return the version of an answer, or why there is none."""
        kind, versions = self.versions[body]
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("POST", "/predict", body, {"content-type": kind})
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            return "no answer"
        finally:
            connection.close()
        if answer.status == 503:
            return "too many"
        if answer.status != 200 or normal(content, kind) not in versions:
            self.wrong.append(f"{answer.status}: {content[:300]!r}")
            return "wrong"
        return versions[normal(content, kind)]

    def wait_for(self, names: set[str], what: str) -> None:
        """Wait until one more answer is of one of these versions."""
        before, deadline = dict(self.counts), time.monotonic() + PATIENCE
        while all(self.counts[name] == before.get(name, 0) for name in names):
            if self.wrong or time.monotonic() > deadline:
                raise AssertionError(f"{what}: {self.wrong[:3] or 'no answer'}; {self.counts}")
            time.sleep(0.01)


def normal(content: bytes, kind: str) -> bytes:
    """An answer of either kind as JSON; what is of neither stays as it is."""
    if kind == ARROW:
        with suppress(pa.ArrowException, KeyError):
            table = pa.ipc.open_stream(content).read_all()
            return to_json(table.column("click").to_numpy(), ("click",))
    return content


def prepare(place: Path) -> dict[bytes, tuple[str, dict[bytes, str]]]:
    """Export two versions, write deltas, and return bodies with their kind and answers."""
    from sparsetrain.serving.export import export
    from tests.serving.logs import SCHEMA, day_after, trained

    older = trained(SCHEMA)
    trainers = {"a": older, "b": day_after(older, SCHEMA)}
    for name, trainer in trainers.items():
        export(trainer, place / name, cpu="native")
    write_delta(place / "a", place / "b", place / "ab")
    write_delta(place / "b", place / "a", place / "ba")
    (place / "made").mkdir()
    (place / "current").symlink_to(place / "a")
    return prepare_bodies(trainers, ROWS)


def prepare_bodies(
    trainers: dict[str, Any], rows: Iterable[int]
) -> dict[bytes, tuple[str, dict[bytes, str]]]:
    """Return bodies of so many rows, with their kind and the answers of models by name."""
    from tests.serving.logs import SCHEMA, frame, rows_of

    bodies = {}
    for seed, count in enumerate(rows):
        columns = rows_of(count, seed)
        columns["user"][-1] = trainers["a"].encoder.values("user")[14]  # a row that changed
        table = frame(columns, SCHEMA)
        answers = {
            to_json(trainer.predict(table), ("click",)): name for name, trainer in trainers.items()
        }
        assert len(answers) == len(trainers)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        bodies[json.dumps({"rows": table.to_pylist()}).encode()] = JSON, answers
        bodies[sink.getvalue().to_pybytes()] = ARROW, answers
    return bodies


def run(rounds: int, seed: int = 0) -> dict[str, int]:
    """Return the number of answers by version, and of questions without one by the reason."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as free:
        place, port = Path(name), free.getsockname()[1]
        clients = Clients(port, prepare(place))
        free.close()
        server, writer = Target(place, serve_current, port), Target(place, apply_deltas)
        try:
            with clients.asking():
                for number in range(rounds):
                    clients.wait_for({"a", "b"}, f"round {number}")
                    time.sleep(rng.uniform(0, 0.5))
                    targets = rng.choice([[server], [writer], [server, writer]])
                    for target in targets:
                        target.kill()
                    for target in targets:
                        target.start()
                writer.kill()
                texts = [(place / name / FILE).read_bytes() for name in ("a", "current")]
                clients.wait_for({"b" if texts[0] != texts[1] else "a"}, "the newest version")
            server.kill()
        except BaseException:
            print((place / "log").read_text()[-2000:], file=sys.stderr)
            raise
        finally:
            for target in (writer, server):  # which the writer sends signals
                target.process.kill()
                target.process.join()
        deltas = max(int(path.name) for path in (place / "made").glob("[0-9]*"))
        gone = (place / "log").read_text().count("the old version stays")
    return {**clients.counts, "deltas": deltas, "gone while opened": gone}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(json.dumps(run(options.rounds, options.seed)))


if __name__ == "__main__":
    main()
