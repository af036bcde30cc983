# SPDX-License-Identifier: Apache-2.0
"""Two processes under mpiexec: the bits of one process, and an end of all when one fails."""

import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparsetrain as st
from sparsetrain import checkpoint
from tests.parallel.test_bits import CASES, same, trained

BESIDE = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
MPIEXEC = shutil.which("mpiexec", path=BESIDE) or ""
pytestmark = pytest.mark.skipif(
    not (MPIEXEC and find_spec("mpi4py")), reason="needs mpi4py and the mpiexec of its MPI"
)
# Event of rank 1 -> what stderr says of it; None where the launcher ends the job at once.
SAID = {
    "exception": "rank 1 of 2",
    "sys.exit": "rank 1 of 2",
    "os._exit": None,
    "end": "rank 1 of 2",
    "SIGKILL": None,
    "SIGSTOP": "no word of rank 1 of 2",
}
# s from a rank's death to the end of the job; tests that run beside it hold ranks up.
LIMIT = 30.0 if "PYTEST_XDIST_WORKER" in os.environ else 5.0
TORCHRUN = shutil.which("torchrun", path=BESIDE)
ENGINES = [
    (MPIEXEC, "-n", "2", sys.executable),
    pytest.param((TORCHRUN, "--nproc-per-node", "2"), marks=pytest.mark.slow),
]


def launch(*arguments, by=(MPIEXEC, "-n", "2", sys.executable)):
    if by[0] is None:
        pytest.skip("needs PyTorch")
    own = {"TVM_NUM_THREADS": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    own |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.Popen(
        [*by, *arguments],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("by", ENGINES)
def test_two_processes_train_to_the_bits_of_one(tmp_path, by):
    job = launch("-m", "tests.parallel.job", str(tmp_path), by=by)
    printed, errors = job.communicate(timeout=120)
    assert job.returncode == 0, errors
    assert "by rows, all ranks" in printed
    trained(tmp_path / "one", CASES["adagrad"], st.parallel.local(parts=4))
    same(*(([], *checkpoint.read(tmp_path / name)) for name in ("saved", "one")))


def write_clicks(path, bad_row=None):
    rng = np.random.default_rng(0)
    columns = {"label": rng.integers(0, 2, 2000), "I1": rng.integers(0, 9, 2000)}
    columns |= {f"C{n}": rng.zipf(1.3, 2000) % 50 for n in (1, 2)}
    if bad_row is not None:
        columns["label"][bad_row] = 7
    pq.write_table(pa.table(columns), path, row_group_size=100)


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
@pytest.mark.parametrize("event", SAID)
def test_no_process_outlives_a_rank_that_fails(tmp_path, event, by):
    deadline = 5 if event == "SIGSTOP" else 600
    job = launch("-m", "tests.parallel.deaths", str(tmp_path), event, str(deadline), by=by)
    _, errors = job.communicate(timeout=120)
    seconds = time.time() - float((tmp_path / "when").read_text())
    assert job.returncode != 0
    assert SAID[event] is None or SAID[event] in errors, errors
    for rank in range(2):
        assert gone(int((tmp_path / f"rank-{rank}").read_text()))
    # torchrun waits 30 s for a process that stands still.
    assert seconds < LIMIT + (deadline == 5) * (5 + 30 * (by[0] == TORCHRUN))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_mpiexec_ends_all_processes(tmp_path, number):
    job = launch("-m", "tests.parallel.deaths", str(tmp_path), "nothing", "600")
    while not (tmp_path / "when").exists():
        assert job.poll() is None, job.communicate()[1]
        time.sleep(0.05)
    job.send_signal(number)
    job.communicate(timeout=LIMIT)
    assert job.returncode != 0
    for rank in range(2):
        assert gone(int((tmp_path / f"rank-{rank}").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["bad row", "full disk"])
def test_what_one_rank_meets_is_named_by_the_command(tmp_path, what):
    data, full = tmp_path / "train.parquet", what == "full disk"
    write_clicks(data, None if full else 1950)  # which rank 1 reads
    start = ["-m", "tests.parallel.job", "full"] if full else ["-m", "sparsetrain"]
    options = ["--batch-size", "100", "--min-count", "1", "--out", str(tmp_path / "run")]
    job = launch(*start, "train", str(data), *options)
    _, errors = job.communicate(timeout=300)
    assert job.returncode != 0
    said = "File too large" if full else "row 1950"
    assert "rank 1 of 2" in errors and said in errors, errors


def gone(pid):
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return False
