# SPDX-License-Identifier: Apache-2.0
"""Processes to be killed: a server, and a writer that applies deltas to what it serves.

They share a folder with exports `a` and `b`, deltas `ab` and `ba` between them, a link `current`,
an empty folder `made`, and the server's number in `pid`.
"""

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

from sparsetrain.serving.delta import apply
from sparsetrain.serving.limits import Limits
from sparsetrain.serving.manifest import FILE
from sparsetrain.serving.server import serve

CONNECTIONS = 3
KEPT, SECONDS = 10, 0.1  # versions; between two deltas


def serve_current(place: Path, port: int) -> None:
    """Serve until killed."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as the command does first
    (place / "pid").write_text(str(os.getpid()))
    serve(place / "current", "127.0.0.1", port, Limits(connections=CONNECTIONS))


class Target:
    """A process to be killed; each life is forked from one that has imported everything."""

    def __init__(self, place: Path, function: Callable[..., None], *arguments: int) -> None:
        self.function, self.arguments = function, (place, *arguments)
        self.start()

    def start(self) -> None:
        forked = multiprocessing.get_context("forkserver")
        forked.set_forkserver_preload([__name__])
        arguments = (self.function, *self.arguments)
        self.process = forked.Process(target=_logged, args=arguments, daemon=True)
        self.process.start()

    def kill(self) -> None:
        """End it; that it ended by itself is an error."""
        if self.function is serve_current:  # no signal goes to whoever gets its number next
            (self.arguments[0] / "pid").unlink(missing_ok=True)
        self.process.kill()
        self.process.join()
        if self.process.exitcode != -signal.SIGKILL:
            raise AssertionError(f"{self.function.__name__} ended: {self.process.exitcode}")


def _logged(function: Callable[..., None], place: Path, *arguments: int) -> None:
    with open(place / "log", "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    function(place, *arguments)


def move(link: Path, target: Path) -> None:
    """Let a link name another folder, in one step."""
    beside = link.with_name("next")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    os.replace(beside, link)


def apply_deltas(place: Path) -> None:
    """Apply one after the other; the last versions stay, others go, be they just opened."""
    link, made = place / "current", place / "made"
    manifests = {(place / name / FILE).read_bytes(): name for name in "ab"}
    for number in count(1 + max((int(old.name) for old in made.glob("[0-9]*")), default=0)):
        last = {str(n) for n in range(number - KEPT, number)}
        for left in made.iterdir():  # drafts of those that were killed are among them
            if left.name not in last:
                shutil.rmtree(left)
        delta = {"a": "ab", "b": "ba"}[manifests[(link / FILE).read_bytes()]]
        apply(link.resolve(), place / delta, made / str(number))
        move(link, made / str(number))
        with suppress(OSError, ValueError):  # it is down, or its number is being written
            os.kill(int((place / "pid").read_text()), signal.SIGHUP)
        time.sleep(SECONDS)
