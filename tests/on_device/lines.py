# SPDX-License-Identifier: Apache-2.0
"""What a run learnt, a JSON object a line, in a file that loses nothing when its writers die.

A line reaches the system in one call before anything else happens, so killing a process afterwards
takes nothing away. Several processes may write: the system appends each line whole. As a plugin of
pytest (`-p tests.on_device.lines`) this module adds a line before and after every test.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

FILE, STAGE = "SPARSETRAIN_TEST_LINES", "SPARSETRAIN_TEST_STAGE"  # for processes of stages


def append(path: str | Path, **line: Any) -> None:
    """Add one line, with the time of day."""
    text = json.dumps({"at": time.time(), **line})
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        cut = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # by a disk that was full
        os.write(descriptor, ("\n" * cut + text + "\n").encode())
    finally:
        os.close(descriptor)


def read(path: str | Path) -> list[dict[str, Any]]:
    """All lines that are whole."""
    found = []
    for line in Path(path).read_bytes().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:  # cut off
            continue
    return found


def pytest_runtest_logstart(nodeid):
    _note(nodeid, "begun")


def pytest_runtest_logreport(report):
    if report.when == "call" or not report.passed:
        _note(report.nodeid, report.outcome, _reason(report), report.duration)


def pytest_collectreport(report):
    if report.failed:
        _note(report.nodeid, "failed", _reason(report))


def _note(test: str, outcome: str, reason: str = "", seconds: float = 0.0) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:  # what a worker reports arrives elsewhere too
        told = {"reason": reason, "seconds": round(seconds, 3)}
        append(os.environ[FILE], stage=os.environ[STAGE], test=test, outcome=outcome, **told)


def _reason(report: Any) -> str:
    """The first line of an error, or why a test was skipped."""
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else str(report.longrepr)).strip().splitlines()
    return (lines or [""])[0 if crash else -1]
