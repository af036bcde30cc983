# SPDX-License-Identifier: Apache-2.0
"""The MPI engine, through mpi4py: waits have a deadline, and ranks report their failure or end.

MPI itself waits forever when a process raises an error, leaves its loop early or hangs. So nothing
here blocks: a rank polls its requests, and between polls it looks for other ranks' reports.
MPI_Init and MPI_Finalize cannot be polled, so a timer ends the process if they take too long.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import TIMEOUT_MAX, Timer
from typing import Any

import numpy as np

from sparsetrain.errors import ConfigError, ParallelError
from sparsetrain.parallel.comm import GRACE, OTHERS_SILENT, Comm, Message, as_bytes
from sparsetrain.system.launcher import describe_process, processes_started

_DATA, _NEWS = 1, 2  # tags
_ENDED = b"\0"  # message of a rank that is ending
# In seconds. After _SPIN, a wait sleeps between polls, each time a fiftieth of the time passed.
_SPIN, _LONGEST_NAP = 2e-3, 2e-3


class MpiComm(Comm):
    """The processes started by mpiexec, srun or any other MPI launcher.

    Parameters
    ----------
    deadline : float
        Seconds to wait for a rank before the job fails.

    Raises
    ------
    ConfigError
        If mpi4py is missing, or MPI sees one process although the launcher started several.
    """

    def __init__(self, deadline: float) -> None:
        with _within(deadline, "begin"):
            self._mpi = MPI = _import_mpi()
            self._comm = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self._comm.rank, self._comm.size
        started = processes_started()
        if self.size == 1 and started > 1:
            raise ConfigError(
                f"{started} processes were started, but MPI sees 1: mpiexec and mpi4py use "
                "different MPIs: start with the mpiexec of mpi4py's MPI; under torchrun, use "
                "sparsetrain.parallel.torch()"
            )
        self.deadline = deadline
        self._failed: int | None = None  # exit status
        self._sent_news: list[Any] = []  # pending requests; they keep their buffers alive
        self._ended: set[int] = set()
        self._meet(MPI.Get_processor_name(), self._leave)
        self.engine = MPI.Get_library_version().split("\n")[0].split(",")[0].strip("\0 ")

    def transfer(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """See `Comm.transfer`."""
        comm = self._comm
        self._held = sends, receives  # MPI uses these arrays until all transfers are complete
        requests = [comm.Irecv(as_bytes(array), rank, _DATA) for rank, array in receives]
        requests += [comm.Isend(as_bytes(array), rank, _DATA) for rank, array in sends]
        waiting = {rank for rank, _ in receives} | {rank for rank, _ in sends}
        self._wait(lambda: self._mpi.Request.Testall(requests), waiting)

    def tell(self, text: str, exit_code: int) -> None:
        """See `Comm.tell`."""
        if self._failed is None:
            self._failed = exit_code
            self._spread(text.encode())

    def _spread(self, text: bytes) -> None:
        news = np.frombuffer(text, np.uint8)
        self._sent_news += [self._comm.Isend(news, rank, _NEWS) for rank in self._others]

    def _wait(self, done: Callable[[], Any], waiting: set[int]) -> None:
        began = time.monotonic()
        turns = 0
        while not done():
            turns += 1
            if turns % 16:
                continue
            self._hear()
            passed = time.monotonic() - began
            gone = sorted(waiting & self._ended)
            if gone and not done():  # earlier messages may have arrived meanwhile
                self._fail(f"{self.name_of(gone[0])} has ended, but {self.name} waits for it")
            if passed > self.deadline:
                self._fail(self.say_silent(waiting))
            if passed > _SPIN:
                time.sleep(min(passed / 50, _LONGEST_NAP))

    def _fail(self, text: str) -> None:
        self.tell(text, ParallelError.exit_code)
        raise ParallelError(text)

    def _hear(self) -> None:
        """Raise an error that a rank has reported; record the ranks that have ended."""
        status = self._mpi.Status()
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, _NEWS, status):
            news = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
            self._comm.Recv(news, status.source, _NEWS)
            text = news.tobytes()
            if text == _ENDED:
                self._ended.add(status.source)
                continue
            self._failed = ParallelError.exit_code if self._failed is None else self._failed
            raise ParallelError(text.decode())

    def _leave(self) -> None:
        """Wait until all ranks end; abort the job if a rank failed or does not end in time."""
        if self._mpi.Is_finalized():
            return
        sys.stdout.flush()
        sys.stderr.flush()
        self._spread(_ENDED)
        limit = time.monotonic() + (self.deadline if self._failed is None else GRACE)
        while len(self._ended) < self.size - 1 and time.monotonic() < limit:
            try:
                self._hear()
            except ParallelError as error:
                print(f"sparsetrain: error: {error}", file=sys.stderr, flush=True)
                limit = time.monotonic() + GRACE
            time.sleep(_LONGEST_NAP)
        if self._failed is not None or len(self._ended) < self.size - 1:
            self._comm.Abort(self._failed or ParallelError.exit_code)
        with _within(self.deadline, "end"):
            _call(self._mpi, "MPI_Finalize")  # `os._exit` skips mpi4py's work at exit


@contextmanager
def _within(deadline: float, what: str) -> Iterator[None]:
    """End the process if MPI waits for other ranks in the block longer than `deadline`."""
    timer = Timer(min(deadline, TIMEOUT_MAX), _give_up, (deadline, what))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(deadline: float, what: str) -> None:
    said = f"{describe_process()}: MPI did not {what} within {deadline:g} s"
    os.write(2, f"sparsetrain: error: {said}: {OTHERS_SILENT}\n".encode())
    os._exit(ParallelError.exit_code)


def _import_mpi() -> Any:
    """Import mpi4py's MPI, initialize it, and return it."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"MPI cannot be used ({error}): pip install mpi4py, and an MPI such as mpich"
        ) from None
    if not MPI.Is_initialized():
        given = ctypes.c_int()
        _call(MPI, "MPI_Init_thread", None, None, MPI.THREAD_SERIALIZED, ctypes.byref(given))
        MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)  # mpi4py raises returned errors
    return MPI


def _call(MPI: Any, function: str, *arguments: Any) -> None:
    """Call an MPI function without the GIL, which mpi4py's call would hold."""
    status = getattr(ctypes.CDLL(MPI.__file__), function)(*arguments)
    if status:
        raise ConfigError(f"MPI cannot be used ({function}: {MPI.Get_error_string(status)})")
