# SPDX-License-Identifier: Apache-2.0
"""A job of several processes, started by mpiexec, that trains and saves.

    mpiexec -n 2 python -m tests.parallel.job FOLDER
    mpiexec -n 2 python -m tests.parallel.job full COMMAND...

The second runs a command of sparsetrain while the disk of rank 1 has no room for tables.
"""

import os
import resource
import sys
from pathlib import Path

import sparsetrain as st
from sparsetrain.cli import run_and_exit
from sparsetrain.system.launcher import is_torchrun
from tests.parallel.test_bits import batches, model


def train(folder):
    engine = st.parallel.torch if is_torchrun() else st.parallel.mpi
    group = engine(shard="row", parts=4)
    trainer = st.Trainer(model(), st.optim.adagrad(0.05), seed=3, parallel=group)
    for batch in batches():
        trainer.step(batch)
    trainer.save(Path(folder, "saved"))
    if trainer.parallel.rank == 0:
        print(trainer.parallel, group.comm.sent, flush=True)


def run_on_a_full_disk(command):
    if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    sys.argv[1:] = command
    run_and_exit()


if __name__ == "__main__":
    if sys.argv[1] == "full":
        run_on_a_full_disk(sys.argv[2:])
    train(sys.argv[1])
