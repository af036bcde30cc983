# SPDX-License-Identifier: Apache-2.0
"""The processes that a launcher started for a command; only `train` and `doctor` run in several."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sparsetrain.cli.output import note
from sparsetrain.cli.settings import Settings
from sparsetrain.errors import ConfigError
from sparsetrain.system.launcher import is_torchrun, processes_started, rank
from sparsetrain.training.progress import format_count

_EXCHANGES = 10


def guard(command: str) -> AbstractContextManager[Any]:
    """Join the processes of a command, in a context that raises an error of one in all.

    Raises
    ------
    ConfigError
        If the command runs in one process only.
    """
    several = processes_started() > 1
    if several and command not in ("train", "doctor"):
        raise ConfigError(
            "only `train` and `doctor` run in several processes: start a single process"
        )
    # Join before anything can fail: MPI_Init waits for every process, even one that has ended.
    return joined().comm.guard(Exception) if several and command == "train" else nullcontext()


def require_one(option: str) -> None:
    """Refuse several processes; `option` names the cause."""
    if processes_started() > 1:
        raise ConfigError(f"{option} trains in one process only: start a single process")


def whose() -> str:
    """Return this process's name, to precede its messages; empty if it is alone."""
    return f"rank {rank()}: " * (processes_started() > 1)


def with_parts(settings: Settings, is_new: bool) -> Settings:
    """Return settings with the number of parts of a batch, which a resumed run keeps.

    Raises
    ------
    ConfigError
        If a new run sets both `train.parts` and `optimizer.accumulate`.
    """
    if is_new and settings.train.parts is not None and settings.optimizer.accumulate > 1:
        raise ConfigError(
            "optimizer.accumulate and train.parts both cut a batch into parts: remove accumulate"
        )
    if processes_started() == 1 or settings.train.parts is not None:
        return settings
    parts = processes_started() * settings.optimizer.accumulate
    return settings.model_copy(update={"train": settings.train.model_copy(update={"parts": parts})})


def joined(shard: Any = "auto", parts: int | None = None) -> Any:
    """Return the group of processes that a launcher started; see `st.parallel.mpi`."""
    import sparsetrain as st

    return (st.parallel.torch if is_torchrun() else st.parallel.mpi)(shard, parts)


def group_of(settings: Settings) -> Any:
    """Return the group of processes; None for one process that does not cut batches."""
    import sparsetrain as st

    shard, parts = settings.train.shard, settings.train.parts
    if processes_started() == 1:
        return None if parts is None else st.parallel.local(parts)
    group = joined(shard, parts)
    hosts, processes = group.comm.hosts, group.comm.gather(os.getpid())
    named = (f"{n} is process {pid} of {hosts[n]}" for n, pid in enumerate(processes))
    note(f"rank {', '.join(named)}")  # launchers report a killed process by its number
    return group


def accumulate_of(settings: Settings) -> int:
    """Return the number of micro-batches; 1 if `train.parts` already cuts the batch."""
    return settings.optimizer.accumulate if settings.train.parts is None else 1


def measured() -> str:
    """Return how many processes there are, and the time of an exchange between them."""
    import numpy as np

    started = processes_started()
    if started == 1:
        return "1; mpiexec -n 2 sparsetrain doctor measures what two say to each other"
    comm = joined().comm
    array = np.zeros((comm.size, 1 << 20), np.uint8)
    times = []
    for _ in range(_EXCHANGES):
        began = time.perf_counter()
        comm.swap(array)
        times.append(time.perf_counter() - began)
    hosts = format_count(len({*comm.hosts}), "machine")
    return f"{comm.size} on {hosts}, by {comm.engine}; 1 MiB to each in {min(times) * 1e3:.2f} ms"
