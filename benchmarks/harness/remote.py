# SPDX-License-Identifier: Apache-2.0
"""Client of a worker process, and the processor time it has used."""

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.task import Task

_FOLDER = Path(__file__).parents[1]
_TICKS = os.sysconf("SC_CLK_TCK")


class ArmError(Exception):
    """An arm could not start or died; the message says which and why."""


class Worker:
    """A started arm. `about` is what it says of itself.

    Parameters
    ----------
    arm : str
        A name in `harness.worker.ARMS`.
    task : Task
        What to do.
    python : str
        The interpreter to run it on.
    cache : str
        Folder in which sparsetrain keeps compiled programs.

    Raises
    ------
    ArmError
        If the arm's library is not installed, it refuses the task, or the process dies.
    """

    def __init__(self, arm: str, task: Task, python: str, cache: str) -> None:
        self.arm = arm
        self._process = subprocess.Popen(
            [python, "-m", "harness.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "SPARSETRAIN_CACHE": cache},
            cwd=_FOLDER,  # where `harness` is found, by an interpreter that knows nothing else here
        )
        self.about = self._ask({"arm": arm, "task": task.to_dict()})
        if "missing" in self.about:
            self.close()
            raise ArmError(
                f"{arm}: {python} has no {self.about['missing']}; install the extra 'peers' there, "
                "name another interpreter with --peer-python, or leave it out of --against"
            )
        if "refused" in self.about:
            self.close()
            raise ArmError(f"{arm}: {self.about['refused']}")

    def turn(self, warm: int, timed: int) -> dict[str, Any]:
        """Run `warm` steps unmeasured and `timed` measured ones."""
        return self._ask({"warm": warm, "timed": timed})

    def cpu_seconds(self) -> float:
        """Processor time of all its threads so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def close(self) -> None:
        """End the process and wait for it, so that its memory is free."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the reply that does not come says the same
        reply = self._process.stdout.readline()
        if not reply:
            code = self._process.wait()
            raise ArmError(f"{self.arm}: the process ended with code {code}; see its output above")
        return json.loads(reply)


def machine_busy_seconds() -> float:
    """Processor time that all processes of this machine, and its hypervisor, have used so far."""
    user, nice, system, _idle, _wait, irq, soft_irq, steal = (
        int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
    )
    return (user + nice + system + irq + soft_irq + steal) / _TICKS


def total_cpu_seconds(workers: Iterable[Worker]) -> float:
    """Processor time of some workers."""
    return sum(worker.cpu_seconds() for worker in workers)
