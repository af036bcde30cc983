# SPDX-License-Identifier: Apache-2.0
"""A short run of `under_fire`, and reloads one by one."""

import asyncio
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

server = pytest.importorskip("sparsetrain.serving.server", exc_type=ImportError)
under_fire = pytest.importorskip("tests.serving.under_fire", exc_type=ImportError)


@pytest.mark.slow
def test_every_answer_is_of_one_version_whoever_is_killed(exported):
    counts = under_fire.run(rounds=6)
    assert counts["a"] and counts["b"] and counts["too many"] and counts["deltas"]


def test_the_version_that_was_asked_for_last_stays(monkeypatch):
    """Though a version before it takes longer to open."""
    folders, opened = iter(["first", "slow", "newest"]), []

    def model(_):
        name = next(folders)
        if name == "slow":
            again.wait(5)
        opened.append(name)
        return SimpleNamespace(name=name)

    async def ask_twice() -> str:
        reloads = asyncio.create_task(service.reload_whenever_asked())
        service.asked.set()
        await asyncio.sleep(0.05)
        service.asked.set()
        await asyncio.sleep(0.05)
        again.set()
        while len(opened) < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        reloads.cancel()
        return service.model.name

    again = threading.Event()
    monkeypatch.setattr(server, "Model", model)
    service = server.Service("folder", asyncio.Event())
    assert asyncio.run(ask_twice()) == "newest"


OPENED_TWICE = """
import os, signal
from sparsetrain.serving import server

class Model:
    def __init__(self, folder, signals=[signal.SIGHUP, signal.SIGTERM]):
        os.kill(os.getpid(), signals.pop(0))

server.Model = Model
server.serve("folder", "127.0.0.1", 0, server.Limits())
"""


def test_a_version_that_arrives_while_the_server_starts_is_opened():
    ended = subprocess.run([sys.executable, "-c", OPENED_TWICE], timeout=60, capture_output=True)
    assert ended.returncode == -signal.SIGTERM
    assert b"opened folder again" in ended.stderr
