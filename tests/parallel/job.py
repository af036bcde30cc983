# SPDX-License-Identifier: Apache-2.0
"""A job of several processes, started by mpiexec: trains, and in rank 1 something happens.

    mpiexec -n 2 python -m tests.parallel.job FOLDER [EVENT [DEADLINE]]

Rank 1 meets the event before its fourth step; each rank says where it is in `FOLDER/rank-N`.
"""

import os
import signal
import sys
from pathlib import Path

import sparsetrain as st
from tests.parallel.test_bits import batches, model

STEP = 3


def _raise():
    raise ValueError("a reader of one's own failed")


def _full(*_, **__):
    raise OSError(28, "No space left on device")


EVENTS = {
    "none": lambda: None,
    "exception": _raise,
    "sys.exit": lambda: sys.exit(3),
    "os._exit": lambda: os._exit(3),
    "end": lambda: sys.exit(0),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "bad row": lambda: st.Batch([[0.0]], [[-1]], [1]),
    "disk full": lambda: setattr(sys.modules["sparsetrain.parallel.saving"], "_write", _full),
}


def main(folder, event="none", deadline="600"):
    group = st.parallel.mpi(shard="row", parts=4, deadline=float(deadline))
    trainer = st.Trainer(model(), st.optim.adagrad(0.05), seed=3, parallel=group)
    rank = trainer.parallel.rank
    Path(folder, f"rank-{rank}").write_text(f"{os.getpid()} {' '.join(group.comm.hosts)}")
    for number, batch in enumerate(batches()):
        if number == STEP and rank == 1:
            EVENTS[event]()
        trainer.step(batch)
    trainer.save(Path(folder, "saved"))
    if rank == 0:
        print(trainer.parallel, group.comm.sent, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
