# SPDX-License-Identifier: Apache-2.0
"""The torch.distributed engine, on Gloo, for jobs started by torchrun.

Gloo's waits have a deadline, and Gloo notices at once when a connection closes. Before a failing
rank disconnects, it writes the reason to the launcher's store.
"""

from __future__ import annotations

import socket
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np

from sparsetrain.errors import ConfigError, ParallelError, first_line
from sparsetrain.parallel.comm import GRACE, OTHERS_SILENT, Comm, Message, as_bytes
from sparsetrain.system.launcher import describe_process

_NEWS, _ENDED = "news", "ended"  # keys of the store


class TorchComm(Comm):
    """The processes that torchrun started.

    Parameters
    ----------
    deadline : float
        Seconds to wait for a rank before the job fails.

    Raises
    ------
    ConfigError
        If PyTorch is missing, or torchrun did not start this process.
    """

    def __init__(self, deadline: float) -> None:
        self._torch, self._distributed = torch, distributed = _import_torch()
        self.deadline, limit = deadline, timedelta(seconds=deadline)
        try:
            store, self.rank, self.size = next(distributed.rendezvous("env://", timeout=limit))
            # Our keys in the launcher's store have a prefix.
            self._store = distributed.PrefixStore("sparsetrain", store)
            distributed.init_process_group(
                "gloo", store=self._store, rank=self.rank, world_size=self.size, timeout=limit
            )
        except ValueError as error:
            raise ConfigError(f"torchrun did not start this process: {error}") from None
        except RuntimeError as error:
            raise ParallelError(
                f"{describe_process()}: torch.distributed did not begin within {deadline:g} s: "
                f"{OTHERS_SILENT} ({first_line(error)})"
            ) from None
        warnings.filterwarnings("ignore", message="The given (NumPy array|buffer) is not writable")
        self._meet(socket.gethostname(), self._leave)
        self.engine = f"PyTorch {torch.__version__}, Gloo"

    def transfer(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """See `Comm.transfer`."""
        began, limit = time.monotonic(), timedelta(seconds=self.deadline)
        try:
            works = [self._distributed.irecv(self._bytes(a), rank) for rank, a in receives]
            works += [self._distributed.isend(self._bytes(a), rank) for rank, a in sends]
            for work in works:
                work.wait(limit)
        except (RuntimeError, ValueError) as error:
            self._explain(error, time.monotonic() - began, {r for r, _ in (*receives, *sends)})

    def tell(self, text: str, exit_code: int) -> None:
        """See `Comm.tell`."""
        with suppress(RuntimeError):  # the launcher may have ended
            if not self._store.check([_NEWS]):
                self._store.set(_NEWS, text)
        with suppress(RuntimeError, AssertionError):
            self._distributed.destroy_process_group()  # other ranks see the connections close

    def _explain(self, error: Exception, passed: float, ranks: set[int]) -> NoReturn:
        text = self.say_silent(ranks)
        if passed < self.deadline:
            why = str(error).split(". ")[0]
            text = f"{self.name}: {self.names_of(ranks)} has ended or cannot be reached: {why}"
        with suppress(RuntimeError):
            if self._store.check([_NEWS]):
                text = self._store.get(_NEWS).decode()
        self.tell(text, ParallelError.exit_code)
        raise ParallelError(text) from None

    def _leave(self) -> None:
        """Wait until the last messages of all ranks have arrived, then disconnect."""
        limit = time.monotonic() + GRACE
        with suppress(RuntimeError):
            ended = self._store.add(_ENDED, 1)
            while ended < self.size and time.monotonic() < limit:
                if self._store.check([_NEWS]):
                    break
                time.sleep(0.01)
                ended = self._store.add(_ENDED, 0)
        with suppress(RuntimeError, AssertionError):
            self._distributed.destroy_process_group()

    def _bytes(self, array: np.ndarray) -> Any:
        return self._torch.from_numpy(as_bytes(array))


def _import_torch() -> tuple[Any, Any]:
    try:
        import torch
        from torch import distributed
    except ImportError as error:
        raise ConfigError(
            f"torch.distributed cannot be used ({error}): pip install torch, or take MPI"
        ) from None
    return torch, distributed
