# SPDX-License-Identifier: Apache-2.0
"""A server under clients that mean harm, with one beside them that means well.

For each kind of attack there is a server of its own, with the limits of the command. The client
beside asks 20 times a second, in JSON and in Arrow, on new and on old connections; another asks
twice a second, with bodies of 100 kB and more. All their answers must have the bits of the
trainer's, and some of the large ones must come; attacks must end as they should, in time; and
memory stays within 300 MB of an idle server's.

    python -m tests.serving.under_attack --seconds 60
"""

import argparse
import http.client
import json
import multiprocessing
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from sparsetrain.serving.export import export
from sparsetrain.serving.requests import JSON
from tests.serving.attacks import ATTACKS, Place, attack
from tests.serving.logs import SCHEMA, trained
from tests.serving.under_fire import normal, prepare_bodies

MEMORY, SLACK = 300.0, 15.0  # MB above idle; seconds for a busy machine
LATE, FAR_TOO_LATE = 100.0, 1000.0  # ms in which 99 % of the answers are there; on any machine
SERVE = "import sys; from sparsetrain.cli import main; sys.exit(main(sys.argv[1:]))"
EVERY, LARGE_EVERY = 0.05, 0.5  # seconds between two questions
LARGE = 100_000  # bytes of a body that waits for its turn


@contextmanager
def serving(folder: Path, seconds: float) -> Iterator[tuple[int, int]]:
    """A server's process and port."""
    command = [sys.executable, "-c", SERVE, "serve", str(folder), "--port=0"]
    with subprocess.Popen(
        [*command, f"--timeout={seconds}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process.pid, int(process.stdout.readline().rpartition(":")[2])
            process.terminate()
            errors = process.communicate(timeout=6 * seconds + SLACK)[1]
            if errors:
                raise AssertionError(f"the server wrote: {errors[-2000:]}")
        finally:
            process.kill()


def megabytes(pid: int, what: str) -> float:
    """Resident memory now (VmRSS), or its peak since `forget_peak` (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) / 1000
    raise AssertionError(what)


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


class Client:
    """One that means well; it keeps its connection for ten questions."""

    def __init__(self, port: int, bodies: dict[bytes, tuple[str, bytes]]) -> None:
        self.port, self.bodies = port, cycle(bodies.items())
        self.times: list[float] = []
        self.wrong: list[str] = []
        self.late = 0  # answers that there was no time for
        self._connection: http.client.HTTPConnection | None = None

    def ask(self) -> None:
        body, (kind, expected) = next(self.bodies)
        begin = time.perf_counter()
        if len(self.times) % 10 == 0:
            self.close()
        try:
            status, content = self._answer(body, kind)
            if status == 408:
                self.late += 1
            elif status != 200 or normal(content, kind) != expected:
                self.wrong.append(f"{status}: {content[:300]!r}")
        except (OSError, http.client.HTTPException) as error:
            self.wrong.append(repr(error))
            self.close()
        self.times.append(time.perf_counter() - begin)

    def _answer(self, body: bytes, kind: str) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        self._connection.request("POST", "/predict", body, {"content-type": kind})
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = None

    def ask_while(self, condition: Any, every: float) -> None:
        while condition():
            self.ask()
            time.sleep(max(0.0, every - self.times[-1]))


def attacked(
    names: list[str],
    folder: Path,
    bodies: dict[bytes, tuple[str, bytes]],
    seconds: float,
    timeout: float,
    share: float,
) -> dict[str, Any]:
    """Make attacks at once, of a share of their clients; return their ends, times and memory."""
    small = {body: answer for body, answer in bodies.items() if len(body) < LARGE}
    body, answer = next((b, a) for b, (kind, a) in small.items() if kind == JSON)
    spawned = multiprocessing.get_context("spawn")
    with (
        serving(folder, timeout) as (pid, port),
        closing(Client(port, small)) as client,
        closing(Client(port, {b: a for b, a in bodies.items() if b not in small})) as large,
    ):
        place = Place(port, body, answer)
        for _ in range(20):
            client.ask()
        idle, client.times = megabytes(pid, "VmRSS"), []
        forget_peak(pid)
        pipes = {name: spawned.Pipe(duplex=False) for name in names}
        others = [
            spawned.Process(target=attack, args=(name, place, seconds, share, sender), daemon=True)
            for name, (_, sender) in pipes.items()
        ]
        for other in others:
            other.start()
        asked = [
            threading.Thread(
                target=each.ask_while,
                args=(lambda: any(other.is_alive() for other in others), every),
            )
            for each, every in ((client, EVERY), (large, LARGE_EVERY))
        ]
        for thread in asked:
            thread.start()
        for thread in asked:
            thread.join()
        found = {name: receiver.recv() for name, (receiver, _) in pipes.items()}
        more = megabytes(pid, "VmHWM") - idle
    parts = {f"p{part}": float(np.percentile(client.times, part)) * 1e3 for part in (50, 99, 100)}
    return {
        "attacks": found,
        "asked": len(client.times),
        "wrong": (client.wrong + large.wrong)[:3],
        "asked with much": len(large.times),
        "late with much": large.late,
        "late": client.late,
        "idle MB": idle,
        "more MB": more,
        **{f"{name} ms": round(value, 1) for name, value in parts.items()},
    }


def faults(found: dict[str, Any], timeout: float) -> list[str]:
    """Say what did not hold, on a busy machine too.

    The system's buffers take two or three answers that nobody reads.
    """
    longest = max(each["longest"] for each in found["attacks"].values())
    strange = [
        f"{name}: {end}"
        for name, each in found["attacks"].items()
        for end in sorted(set(each["ends"]) - ATTACKS[name].ends)
    ]
    return [
        *strange,
        *(f"a wrong answer: {text}" for text in found["wrong"]),
        *(["nothing was asked"] if not found["asked"] else []),
        *(["it was far too late"] if found["p99 ms"] > FAR_TOO_LATE else []),
        *(
            ["no large body was answered"]
            if found["late with much"] == found["asked with much"]
            else []
        ),
        *(["a connection lasted too long"] if longest > 4 * timeout + SLACK else []),
        *(["memory"] if found["more MB"] > MEMORY else []),
    ]


def run(
    groups: list[list[str]],
    exported: tuple[Any, Path],
    seconds: float,
    timeout: float,
    share: float = 1.0,
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Make groups of attacks one after the other: for each, what it came to, and its faults.

    The trainer that was exported, and the folder, are given; clients ask for 1 to 3000 rows.
    """
    trainer, folder = exported
    made = prepare_bodies({"a": trainer}, rows=(1, 30, 900, 3000))
    bodies = {body: (kind, *answers) for body, (kind, answers) in made.items()}
    for names in groups:
        found = attacked(names, folder, bodies, seconds, timeout, share)
        yield found, faults(found, timeout)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--timeout", type=float, default=10.0)
    parser.add_argument("--attack", action="append", choices=[*ATTACKS])
    parser.add_argument("--together", action="store_true", help="all attacks at once")
    options = parser.parse_args()
    names = options.attack or [*ATTACKS]
    groups, bad = [names] if options.together else [[name] for name in names], False
    with tempfile.TemporaryDirectory() as place:
        trainer, folder = trained(SCHEMA), Path(place) / "a"
        export(trainer, folder, cpu="native")
        for found, wrong in run(groups, (trainer, folder), options.seconds, options.timeout):
            late = ["it was late"] if found["late"] or found["p99 ms"] > LATE else []
            bad |= bool(wrong + late)
            print(json.dumps({**found, "faults": wrong + late}), flush=True)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
