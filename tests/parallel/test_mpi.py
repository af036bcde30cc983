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
from tests.parallel.job import EVENTS
from tests.parallel.test_bits import CASES, same, trained

BESIDE = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
MPIEXEC = shutil.which("mpiexec", path=BESIDE) or ""
pytestmark = pytest.mark.skipif(
    not (MPIEXEC and find_spec("mpi4py")), reason="needs mpi4py and the mpiexec of its MPI"
)
# Event of rank 1 -> what stderr says of it; None where the launcher ends the job.
SAID = {
    "exception": "rank 1 of 2",
    "sys.exit": "rank 1 of 2",
    "os._exit": None,
    "end": "rank 1 of 2",
    "SIGKILL": None,
    "SIGSTOP": "no word of rank 1 of 2",
    "bad row": "DataError: ids: row 0, feature 0: id -1",
    "disk full": "No space left on device",
}


def start(folder, event="none", deadline="600"):
    return launch("-m", "tests.parallel.job", folder, event, deadline)


def launch(*arguments):
    own = {"TVM_NUM_THREADS": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    own |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.Popen(
        [MPIEXEC, "-n", "2", sys.executable, *arguments],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_train_to_the_bits_of_one(tmp_path):
    job = start(str(tmp_path))
    printed, errors = job.communicate(timeout=120)
    assert job.returncode == 0, errors
    assert "by rows, all ranks" in printed
    trained(tmp_path / "one", CASES["adagrad"], st.parallel.local(parts=4))
    same(*(([], *checkpoint.read(tmp_path / name)) for name in ("saved", "one")))


def test_the_command_trains_in_two_processes_and_goes_on_in_one(tmp_path):
    rng = np.random.default_rng(0)
    columns = {"label": rng.integers(0, 2, 2000), "I1": rng.integers(0, 9, 2000)}
    columns |= {f"C{n}": rng.zipf(1.3, 2000) % 50 for n in (1, 2)}
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    command = ["-m", "sparsetrain", "train", "--out", str(tmp_path / "run")]
    job = launch(*command, str(tmp_path / "train.parquet"), "--batch-size", "100")
    printed, errors = job.communicate(timeout=120)
    assert job.returncode == 0, errors
    assert printed.count("trained on 2,000 rows") == 1
    again = [*command, "--resume", str(tmp_path / "run"), "--epochs", "2"]
    subprocess.run([sys.executable, *again], check=True, capture_output=True, timeout=120)
    assert st.Run(tmp_path / "run").manifest()["steps"] == 40
    job = launch("-m", "sparsetrain", "evaluate", str(tmp_path / "run"), "train.parquet")
    assert "only `train` runs in several processes" in job.communicate(timeout=120)[1]


@pytest.mark.parametrize("event", SAID)
def test_no_process_outlives_a_rank_that_fails(tmp_path, event):
    assert set(SAID) == set(EVENTS) - {"none"}
    job = start(str(tmp_path), event, "2" if event == "SIGSTOP" else "600")
    _, errors = job.communicate(timeout=120)
    assert job.returncode != 0
    assert SAID[event] is None or SAID[event] in errors, errors
    for file in tmp_path.glob("rank-*"):
        assert _gone(int(file.read_text().split()[0]))
    assert not (tmp_path / "saved").exists()


def _gone(pid):
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return False
