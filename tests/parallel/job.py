# SPDX-License-Identifier: Apache-2.0
"""A job of several processes, started by mpiexec, that trains and saves.

    mpiexec -n 2 python -m tests.parallel.job FOLDER CASE SHARD TIMES
    mpiexec -n 2 python -m tests.parallel.job full COMMAND...

The second runs a command of sparsetrain while the disk of rank 1 has no room for tables.
"""

import resource
import sys
from pathlib import Path

import sparsetrain as st
from sparsetrain.cli import run_and_exit
from sparsetrain.system.launcher import is_torchrun
from tests.parallel.test_bits import CASES, trained


def train(folder, case, shard, times):
    engine = st.parallel.torch if is_torchrun() else st.parallel.mpi
    group = engine(shard, parts=4)
    losses = trained(Path(folder, "saved"), CASES[case], group, int(times))
    if group.comm.rank == 0:
        print(*losses, flush=True)


def run_on_a_full_disk(command):
    if st.parallel.mpi().comm.rank == 1:  # MPI has its files
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    sys.argv[1:] = command
    run_and_exit()


if __name__ == "__main__":
    if sys.argv[1] == "full":
        run_on_a_full_disk(sys.argv[2:])
    train(*sys.argv[1:])
