# SPDX-License-Identifier: Apache-2.0
"""Measurement of an epoch: the step alone, the loader alone, and both in `Trainer.fit`."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import sparsetrain as st
from harness.configs import CONFIGS
from harness.ours import build_trainer
from harness.remote import machine_busy_seconds
from harness.result import machine
from harness.rounds import DISTURBED
from sparsetrain import runtime

IN_MEMORY = 64  # batches for the step alone, as step.py takes: their rows leave the caches
STEP_SECONDS = 0.5


@dataclass(frozen=True)
class Epoch:
    """Options of a measurement."""

    config_name: str
    batch: int
    optimizer: str
    threads: int


@dataclass(frozen=True)
class Pace:
    """A piece of work over `rows` rows, and what went on beside it."""

    rows: int
    seconds: float
    peak_bytes: int
    other_cores: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds


def write_synthetic(path: Path, rows: int) -> Path:
    """Write rows shaped like Criteo's and return the path."""
    print(f"writing {rows:,} synthetic rows", file=sys.stderr)
    st.data.SyntheticCriteo(0).write(path, rows)
    return path


def encoded(path: Path, folder: Path) -> Path:
    """Convert rows to ids and return where they are."""
    print("converting", file=sys.stderr)
    st.data.convert_files(str(path), folder)
    return folder


def measure(path: Path, epoch: Epoch) -> dict[str, Any]:
    """Rows a second of step, loader and fit, and the peak of memory in fit."""
    print("learning the encoding, preparing the model", file=sys.stderr)
    encoder = st.data.Encoder.fit(str(path))
    trainer = _trainer(epoch, encoder)
    dataset = st.data.Dataset(str(path), encoder)
    ready = _ready(dataset, epoch.batch)
    print("training", file=sys.stderr)
    before = _step_rate(trainer, ready)
    loader = _watched(lambda: sum(map(len, dataset.batches(epoch.batch, seed=0))))
    fit = _watched(lambda: trainer.fit(str(path), batch_size=epoch.batch, progress=None)["rows"])
    step = (before + _step_rate(trainer, ready)) / 2
    state = _state_bytes(trainer)
    return {
        "machine": machine(epoch.threads),
        "config": epoch.config_name,
        "batch": epoch.batch,
        "optimizer": epoch.optimizer,
        "rows": fit.rows,
        "step_rows_per_s": step,
        "loader_rows_per_s": loader.rows_per_s,
        "fit_rows_per_s": fit.rows_per_s,
        "share_of_step": fit.rows_per_s / step,
        "state_gb": state / 1e9,
        "peak_gb_above_state": (fit.peak_bytes - state) / 1e9,
        "other_cores": fit.other_cores,
        "disturbed": fit.other_cores > DISTURBED * epoch.threads,
    }


def _trainer(epoch: Epoch, encoder: Any) -> Any:
    """The config's model, with tables that hold at least the file's ids."""
    config = CONFIGS[epoch.config_name]
    rows = tuple(max(pair) for pair in zip(config.rows, encoder.rows, strict=True))
    config = replace(config, rows=rows, num_dense=encoder.num_dense)
    return build_trainer(config, epoch.optimizer, encoder)


def _ready(dataset: Any, size: int) -> list[Any]:
    """The first full batches of the file."""
    batches: Iterator[Any] = dataset.batches(size, prefetch=0)
    with closing(batches):  # type: ignore[type-var]
        return [batch for batch in islice(batches, IN_MEMORY) if len(batch) == size]


def _step_rate(trainer: Any, batches: list[Any]) -> float:
    """Rows a second of steps over ready batches, by the median step."""
    for batch in batches:
        float(trainer.step(batch))
    seconds: list[float] = []
    while sum(seconds) < STEP_SECONDS:
        for batch in batches:
            began = time.perf_counter()
            float(trainer.step(batch))
            seconds.append(time.perf_counter() - began)
    return len(batches[0]) / median(seconds)


def _watched(work: Callable[[], int]) -> Pace:
    """Time `work`, which returns the rows it went through."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    began, own, busy = time.perf_counter(), time.process_time(), machine_busy_seconds()
    rows = work()
    seconds = time.perf_counter() - began
    others = machine_busy_seconds() - busy - (time.process_time() - own)
    return Pace(rows, seconds, _peak_bytes(), max(0.0, others) / seconds)


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


def _state_bytes(trainer: Any) -> int:
    """Bytes of all parameters and slots."""
    slots = [slot for by_name in trainer.state.values() for slot in by_name.values()]
    return sum(runtime.as_numpy(array).nbytes for array in [*trainer.params.values(), *slots])
