# SPDX-License-Identifier: Apache-2.0
"""A rank that works until something happens to it in its sixth step, without a model.

    mpiexec -n 2 python -m tests.parallel.deaths FOLDER EVENT DEADLINE
    torchrun --nproc-per-node 2 -m tests.parallel.deaths FOLDER EVENT DEADLINE

Of "SIGSTOP before it joins" and "SIGSTOP when it leaves" the name says when. Each rank leaves its
number of process in `FOLDER/rank-N`, and rank 1 the time of the event.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from sparsetrain.parallel.mpi_comm import MpiComm
from sparsetrain.parallel.torch_comm import TorchComm
from sparsetrain.system.launcher import is_torchrun, rank


def _raise():
    raise ValueError("a reader of one's own failed")


EVENTS = {
    "exception": _raise,
    "sys.exit": lambda: sys.exit(3),
    "os._exit": lambda: os._exit(3),
    "end": lambda: sys.exit(0),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "nothing": lambda: None,
}


def main(folder, event, deadline):
    def meet(event, *_):
        if rank() == 1:
            Path(folder, "when").write_text(str(time.time()))
            EVENTS[event]()

    Path(folder, f"rank-{rank()}").write_text(str(os.getpid()))
    name, _, when = event.partition(" ")
    if when == "before it joins":
        meet(name)
    comm = (TorchComm if is_torchrun() else MpiComm)(float(deadline))
    if when == "when it leaves":
        spread = getattr(comm, "_spread", None)  # by which a rank of MPI says that it goes
        comm._spread = lambda text: (spread(text), meet(name))
        return
    with comm.guard():
        for step in range(100_000):
            if step == 5 and not when:
                meet(name)
            comm.swap(np.full((comm.size, 1), step))
            comm.tree_sum_(np.ones(1000, "f4"))


if __name__ == "__main__":
    main(*sys.argv[1:])
