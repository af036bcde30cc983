# SPDX-License-Identifier: Apache-2.0
"""Other libraries as arms: a process of another interpreter that measures when it is told to.

This package imports none of them. An arm that the interpreter cannot import is left out aloud.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparsetrain import runtime
from sparsetrain.compare import traffic
from sparsetrain.compare.arms import Arm
from sparsetrain.compare.case import Case
from sparsetrain.compare.measure import LEAST_STEPS, SECONDS, WARM, Ids
from sparsetrain.errors import ConfigError

_ASLEEP = 0.3  # seconds after which the threads of our kernels wait without spinning
_SCRIPT = Path(__file__).with_name("peer_worker.py")


class Peer(NamedTuple):
    """An arm of another library, and the process that it runs in."""

    arm: Arm
    close: Callable[[], None]


class PeerKind(NamedTuple):
    """How an arm of a peer counts, and which formulas it has."""

    label: str
    dense: bool
    traffic: Callable[[Case, float], float]
    memory: Callable[[Case], int]
    formulas: tuple[str, ...]


_DENSE = traffic.stock_traffic, traffic.dense_memory
_SPARSE = traffic.sparse_traffic, traffic.sparse_memory
PEERS: Mapping[str, PeerKind] = {
    "torch-dense": PeerKind("PyTorch dense", True, *_DENSE, ("sgd", "momentum", "adagrad", "adam")),
    "torch-sparse": PeerKind("PyTorch sparse", False, *_SPARSE, ("sgd", "adagrad", "adam")),
    "fbgemm": PeerKind("FBGEMM", False, *_SPARSE, ("sgd", "adagrad", "rowwise_adagrad")),
}


def open_peers(python: str, warn: Callable[[str], object] = lambda text: None) -> dict[str, Peer]:
    """Start a process of another interpreter; its arms by name.

    Parameters
    ----------
    python : str
        A Python that has PyTorch, or FBGEMM as well.
    warn : callable
        Told of each library that it does not have.

    Returns
    -------
    dict of str to Peer
        To add to `ARMS`. Close one of them when done: the process is theirs together.

    Raises
    ------
    ConfigError
        If the interpreter does not start, or has none of the libraries.
    """
    process = _Process(python)
    found: dict[str, Peer] = {}
    for name, why in process.read().items():
        if why is None:
            found[name] = Peer(_arm(name, process), process.close)
        else:
            warn(f"left out: {name}: {python}: {why}")
    if not found:
        process.close()
        raise ConfigError(f"--peer-python {python} has neither PyTorch nor FBGEMM")
    return found


class _Process:
    """The other end of the pipe."""

    def __init__(self, python: str) -> None:
        self.python = python
        # Isolated: this folder is not on its path, where files like `report.py` would be found.
        command = [python, "-I", str(_SCRIPT)]
        try:
            self._process = subprocess.Popen(  # noqa: S603  the user named the program
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise ConfigError(f"--peer-python {python}: {error.strerror}") from error

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send an order and wait for what became of it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the reply that does not come says the same
        return self.read()

    def read(self) -> dict[str, Any]:
        """The next reply."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise ConfigError(
                f"--peer-python {self.python}: it ended with code {code}; its words stand above"
            )
        return json.loads(line)

    def close(self) -> None:
        """End it and wait, so that its memory is free; safe to call twice."""
        with self._process:  # closes the pipes and waits
            pass


def _arm(name: str, process: _Process) -> Arm:
    kind = PEERS[name]

    def steps(case: Case, ids: Ids) -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "ids.npy"
            np.save(file, np.stack(ids))
            order = {**asdict(case), "threads": case.threads or runtime.num_threads()}
            time.sleep(_ASLEEP)
            limits = {"warm": WARM, "least": LEAST_STEPS, "seconds": SECONDS}
            return process.ask({"arm": name, "case": order, "ids": str(file), **limits})["seconds"]

    def why_not(case: Case) -> str | None:
        known = case.formula in kind.formulas
        return None if known else f"{kind.label} has no {case.formula} that fits"

    return Arm(name, kind.label, kind.dense, _nowhere, *kind[2:4], why_not, steps)


def _nowhere(case: Case) -> Any:
    raise ConfigError(f"compare: {case}: a peer's steps are taken in its own process")
