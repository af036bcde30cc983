# SPDX-License-Identifier: Apache-2.0
"""`Group`: the processes of a `Trainer`, and how its tables are sharded."""

from __future__ import annotations

from typing import Any

from sparsetrain.errors import ConfigError
from sparsetrain.parallel.comm import Comm
from sparsetrain.parallel.mpi_comm import MpiComm
from sparsetrain.parallel.sharding_plan import Shard
from sparsetrain.parallel.torch_comm import TorchComm
from sparsetrain.system.argument_checks import is_number, require_int
from sparsetrain.system.cores import available_cores, own_cores


class Group:
    """Processes that train one model together; ``Trainer(..., parallel=group)``.

    Parameters
    ----------
    comm : Comm
    shard : "auto", "table", "row" or mapping
        Where tables are placed, see `mpi`.
    parts : int, optional
        Number of parts of a batch, see `mpi`.
    """

    def __init__(self, comm: Comm, shard: Shard, parts: int | None) -> None:
        self.comm, self.shard = comm, shard
        self.parts = None if parts is None else require_int("parts", parts)

    def going_on(self, parts: int | None) -> Group:
        """Return this group with a resumed run's number of parts, unless it sets its own."""
        return Group(self.comm, self.shard, self.parts or parts)

    def joined(self, model: Any, optimizer: Any, accumulate: int) -> Any:
        """Return the trainer's interface for this model; see `sparsetrain.training.processes`."""
        from sparsetrain.parallel.ranks import joined

        return joined(self.comm, model, optimizer, self.shard, self.parts, accumulate)


_joined: dict[type, Any] = {}  # an engine starts once per process


def mpi(shard: Shard = "auto", parts: int | None = None, deadline: float = 600) -> Group:
    """Return the processes that an MPI launcher started.

    Parameters
    ----------
    shard : "auto", "table", "row" or mapping
        "table": each table is on one rank; "row": the rows of every table are dealt to all ranks,
        row i to rank ``i % size``; "auto": only large tables are dealt by rows. A mapping gives one
        of these words, or a rank, for tables by name; all other tables are "auto".
    parts : int, optional
        K, the number of parts of a batch: size, 2 size, 4 size, ... By default it is the number of
        ranks. Results depend, bit for bit, only on K: K, K/2, K/4, ... ranks give the same weights.
    deadline : float
        Seconds after which a rank that does not answer ends the job.

    Raises
    ------
    ConfigError
        If MPI cannot be used, or sees one process although several were started.
    """
    return Group(_join(MpiComm, deadline), shard, parts)


def torch(shard: Shard = "auto", parts: int | None = None, deadline: float = 600) -> Group:
    """Return the processes that torchrun started; see `mpi` for the parameters.

    Raises
    ------
    ConfigError
        If PyTorch is missing, or torchrun did not start this process.
    """
    return Group(_join(TorchComm, deadline), shard, parts)


def _join(engine: type, deadline: float) -> Comm:
    if not is_number(deadline) or not deadline > 0:
        raise ConfigError(f"deadline is {deadline!r}; it must be a number of seconds above 0")
    if engine not in _joined:
        _joined[engine] = engine(deadline)
        _share_cores(_joined[engine])
    comm: Comm = _joined[engine]
    comm.deadline = deadline
    return comm


def local(parts: int | None = None) -> Group:
    """Return a group of this process alone, which computes the same bits as `parts` ranks."""
    return Group(Comm(), "auto", parts)


def _share_cores(comm: Comm) -> None:
    """Run kernels on this rank's share of the cores, unless TVM_NUM_THREADS says otherwise."""
    from sparsetrain.runtime.threads import num_threads, set_num_threads

    cores: list[Any] = comm.gather(sorted(own_cores()))
    here = [
        own for own, host in zip(cores, comm.hosts, strict=True) if host == comm.hosts[comm.rank]
    ]
    share = max(1, len({core for own in here for core in own}) // len(here))
    if num_threads() == available_cores() > share:
        set_num_threads(share)
