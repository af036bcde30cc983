# SPDX-License-Identifier: Apache-2.0
"""A short run of `under_fire`, and reloads one by one."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

for needed in ("starlette", "uvicorn", "httptools", "prometheus_client"):
    pytest.importorskip(needed)
from sparsetrain.serving import service as serving  # noqa: E402
from tests.serving import under_fire  # noqa: E402


@pytest.mark.slow
def test_every_answer_is_of_one_version_whoever_is_killed(exported):
    counts = under_fire.run(rounds=6)
    assert counts["a"] and counts["b"] and counts["too many"] and counts["deltas"]
    assert "wrong" not in counts


def test_a_wrong_answer_is_an_error_though_nobody_waits_for_one():
    clients = under_fire.Clients(1, {b"": (under_fire.JSON, {})})  # where nobody listens
    with pytest.raises(AssertionError, match="200: b''"), clients.asking():
        clients.wrong.append("200: b''")


async def until(condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), 20)


def test_the_version_that_was_asked_for_last_stays(monkeypatch):
    """Though a version before it takes longer to open."""
    names, opened = iter(["first", "slow", "newest"]), []

    def model(*_, **__):
        name = next(names)
        if name == "slow":
            again.wait(5)
        opened.append(name)
        return SimpleNamespace(name=name)

    async def ask_twice() -> None:
        reloads = asyncio.create_task(service.reload_whenever_asked())
        service.asked.set()
        await asyncio.sleep(0.05)
        service.asked.set()
        await asyncio.sleep(0.05)
        again.set()
        await until(lambda: len(opened) == 3 and service.model.name == opened[-1])
        reloads.cancel()

    again = threading.Event()
    monkeypatch.setattr(serving, "Model", model)
    service = serving.Service("folder", asyncio.Event())
    asyncio.run(ask_twice())
    assert opened == ["first", "slow", "newest"]


@pytest.mark.parametrize("error", [OSError("disk full"), ValueError("closed file")])
def test_a_reload_works_after_a_message_that_cannot_be_written(monkeypatch, error):
    names = iter(["first", "second", "newest"])
    monkeypatch.setattr(serving, "Model", lambda *_, **__: SimpleNamespace(name=next(names)))
    service = serving.Service("folder", asyncio.Event())

    async def ask_twice() -> None:
        reloads = asyncio.create_task(service.reload_whenever_asked())
        for name in ("second", "newest"):
            service.asked.set()
            await until(lambda name=name: service.model.name == name)
        reloads.cancel()

    monkeypatch.setattr(sys, "stderr", Mock(write=Mock(side_effect=error)))
    asyncio.run(ask_twice())
    assert sys.stderr.write.call_count == 2


def test_a_foreign_error_of_a_reload_is_named(monkeypatch, capsys):
    monkeypatch.setattr(serving, "Model", lambda *_, **__: None)
    service = serving.Service("folder", asyncio.Event())
    monkeypatch.setattr(serving, "Model", lambda *_, **__: {}["a column"])
    asyncio.run(service._reload())
    expected = "sparsetrain: the old version stays: KeyError: 'a column'\n"
    assert capsys.readouterr().err == expected


OPENED_TWICE = """
import os, signal
from sparsetrain.serving import server, service
from sparsetrain.serving.limits import Limits

class Model:
    def __init__(self, folder, absent, signals=[signal.SIGHUP, signal.SIGTERM]):
        os.kill(os.getpid(), signals.pop(0))

service.Model = Model
server.serve("folder", "127.0.0.1", 0, Limits())
"""


ASKED_DURING_IMPORTS = """
import os, signal, sys
from sparsetrain.cli import main

class Finder:
    def find_spec(name, *_):
        if name == "sparsetrain.serving.server":
            os.kill(os.getpid(), signal.SIGHUP)

sys.meta_path.insert(0, Finder)
sys.exit(main(["serve", "absent"]))
"""


def test_a_signal_during_the_imports_of_the_command_does_not_end_it():
    command = [sys.executable, "-c", ASKED_DURING_IMPORTS]
    ended = subprocess.run(command, timeout=60, capture_output=True)
    assert ended.returncode == 4
    assert b"no exported model" in ended.stderr


def test_a_version_that_arrives_while_the_server_starts_is_opened():
    ended = subprocess.run([sys.executable, "-c", OPENED_TWICE], timeout=60, capture_output=True)
    assert ended.returncode == -signal.SIGTERM
    assert b"opened folder again" in ended.stderr
