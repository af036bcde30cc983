# SPDX-License-Identifier: Apache-2.0
"""Two processes under mpiexec: the bits of one process, and an end of all when one fails."""

import os
import random
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

import sparsetrain as st
from tests.helpers import read_checkpoint, slow_except
from tests.parallel import random_kills
from tests.parallel.ends import (
    CAUSES,
    DEATHS,
    MPIEXEC,
    ROOT,
    SIGNALS,
    TORCHRUN,
    launch,
    once,
    write_clicks,
)
from tests.parallel.test_bits import CASES, QUICK, same, trained

pytestmark = pytest.mark.skipif(
    not (MPIEXEC and find_spec("mpi4py")), reason="needs mpi4py and the mpiexec of its MPI"
)
# s from a failure to the end of the job; tests that run beside it hold ranks up.
LIMIT = 30.0 if "PYTEST_XDIST_WORKER" in os.environ else 5.0
needs_torchrun = pytest.mark.skipif(TORCHRUN is None, reason="needs PyTorch")
ENGINES = ["mpiexec", pytest.param("torchrun", marks=[pytest.mark.slow, needs_torchrun])]


@pytest.mark.parametrize(
    "by, ranks, threads, shard, times",
    slow_except(
        [("mpiexec", 2, 1, "row", 1)],
        [
            ("mpiexec", 2, 1, "row", 1),
            ("torchrun", 2, 1, "row", 50),
            ("mpiexec", 1, 2, "table", 50),
            ("mpiexec", 2, 2, "auto", 50),
            ("mpiexec", 4, 1, "row", 50),
        ],
    ),
)
def test_processes_train_to_the_bits_of_one(tmp_path, by, ranks, threads, shard, times):
    given = str(tmp_path), QUICK, shard, str(times)
    own = {"places": [ROOT] * ranks, "by": by, "TVM_NUM_THREADS": str(threads)}
    printed, errors = (job := launch("-m", "tests.parallel.job", *given, **own)).communicate(
        timeout=300
    )
    assert job.returncode == 0, errors
    losses = trained(tmp_path / "one", CASES[QUICK], st.parallel.local(parts=4), times)
    one = losses, *read_checkpoint(tmp_path / "one")
    same(([*map(float, printed.split())], *read_checkpoint(tmp_path / "saved")), one)


def test_the_command_trains_in_two_processes_and_goes_on_in_one(tmp_path):
    write_clicks(tmp_path / "train.parquet")
    command = ["-m", "sparsetrain", "train", "--out", str(tmp_path / "run")]
    job = launch(*command, str(tmp_path / "train.parquet"), "--batch-size", "100")
    printed, errors = job.communicate(timeout=120)
    assert job.returncode == 0, errors
    assert printed.count("trained on 2,000 rows") == 1
    again = [*command, "--resume", str(tmp_path / "run"), "--epochs", "2"]
    subprocess.run([sys.executable, *again], check=True, capture_output=True, timeout=120)
    assert st.Run(tmp_path / "run").manifest()["steps"] == 40
    job = launch("-m", "sparsetrain", "evaluate", str(tmp_path / "run"), "train.parquet")
    assert "only `train` and `doctor` run in several processes" in job.communicate(timeout=120)[1]


@pytest.mark.parametrize("by", ENGINES)
@pytest.mark.parametrize("kind", slow_except([*DEATHS, *SIGNALS, "no file of its own"], CAUSES))
def test_no_process_outlives_a_rank_that_fails(kind, by):
    if by == "torchrun" and (kind not in DEATHS or kind.endswith("leaves")):
        pytest.skip("torchrun ends its processes itself, and starts them in one folder")
    seconds, status, said, left = once(kind, by)
    assert status != 0 and not left
    assert CAUSES[kind] in said, said
    assert not CAUSES[kind] or re.search(r"rank \d", said), said
    # torchrun imports PyTorch first, and waits 30 s for a process that stands still.
    assert seconds < LIMIT + 5 * ("SIGSTOP" in kind) + 40 * (by == "torchrun")


@pytest.mark.parametrize("kills", slow_except([1], [1, 20]))
def test_a_run_of_which_a_rank_is_killed_goes_on_to_the_same_bits(tmp_path, kills):
    wanted = random_kills.unkilled(tmp_path / "whole", "mpiexec")
    random_kills.assert_kills_change_no_bit(tmp_path, wanted, "mpiexec", kills, random.Random(3))


@pytest.mark.slow
def test_a_rank_that_is_stopped_is_waited_for_until_the_deadline(tmp_path):
    wanted = random_kills.unkilled(tmp_path / "whole", "mpiexec")
    random_kills.assert_stops_are_waited_for(tmp_path / "run", wanted, "mpiexec", 10)
