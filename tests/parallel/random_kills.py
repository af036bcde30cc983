# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of one rank at random moments: the job ends, and goes on to the bits of one left alone.

    python -m tests.parallel.random_kills                # 20 kills, and a rank stopped for a minute
    python -m tests.parallel.random_kills --kills 3 --stop 0 --by torchrun

Two processes train and save every third step. Each job is killed in one rank, from before MPI
begins to after the last step, and the next job resumes the run. Of two ranks that are stopped by
SIGSTOP, one is waited for and goes on, the other longer than the deadline. Prints a line for each;
the exit status is 1 if a job hangs, succeeds without its rank, leaves a process or says nothing, or
if bits differ.
"""

import argparse
import os
import random
import re
import signal
import sys
import tempfile
import time
import uuid
from pathlib import Path

import sparsetrain as st
from sparsetrain.system.launcher import is_torchrun
from tests.parallel.ends import LIMIT, ROOT, launch, processes
from tests.parallel.test_runs import arrays_of, make_clicks

EPOCHS, STEPS = 12, 60


def run_job(folder, deadline):
    """Begin or resume the run."""
    engine = st.parallel.torch if is_torchrun() else st.parallel.mpi
    group, clicks = engine(parts=4, deadline=float(deadline)), make_clicks()
    begun = st.Run(folder).latest is not None
    if begun:
        trainer = st.load(folder, parallel=group)
    else:
        encoder = st.data.Encoder.fit(clicks)
        model = st.models.DLRM(rows=encoder.rows, num_dense=1, dim=4, bottom=(8,), top=(8,))
        optimizer = st.optim.adam(0.01, mode="exact")
        trainer = st.Trainer(model, optimizer, encoder=encoder, parallel=group)
    run = st.Run(folder, every=3, log_every=1)
    trainer.fit(clicks, epochs=EPOCHS, batch_size=64, run=run, resume=begun, progress=None)


class Job:
    """Processes that train in a folder."""

    def __init__(self, folder, by, deadline=600, ranks=2):
        self._log = Path(folder, "log.jsonl")
        self._mark = uuid.uuid4().hex
        of_job = "--job", str(folder), str(deadline)
        arguments = "-m", "tests.parallel.random_kills", *of_job
        self._process = launch(*arguments, places=[ROOT] * ranks, by=by, MARK_OF_A_JOB=self._mark)

    def pid(self, rank):
        """The process of a rank; None if it has ended."""
        names = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK")
        wanted = {f"{name}={rank}".encode() for name in names}
        for pid in processes(self._mark):
            if wanted & {*_read(pid, "environ").split(b"\0")} and b"--job" in _read(pid, "cmdline"):
                return pid
        return None

    def wait_for(self, line, seconds=0.0):
        """Until the log has a line more than it had, or the job has ended; and some time."""
        limit = time.monotonic() + LIMIT
        while _lines(self._log) < line and self._process.poll() is None:
            assert time.monotonic() < limit, "the job does not get on"
            time.sleep(0.002)
        time.sleep(seconds)

    def end(self):
        """Wait; return the exit status and what was printed. Nothing of the job may be left."""
        said = "".join(self._process.communicate(timeout=LIMIT))  # MPICH tells of signals on stdout
        limit = time.monotonic() + 10
        while left := processes(self._mark):
            if time.monotonic() > limit:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                raise AssertionError(f"left processes {left}; said {said}")
            time.sleep(0.02)
        return self._process.returncode, said


def _read(pid, name):
    try:
        return Path("/proc", str(pid), name).read_bytes()
    except OSError:
        return b""  # it has ended


def _lines(log):
    return log.read_bytes().count(b"\n") if log.exists() else 0


def kill_one(folder, by, rng):
    """Start a job and kill a rank of it; return what happened, in words."""
    lines = _lines(folder / "log.jsonl")
    job, rank = Job(folder, by), rng.randrange(2)
    if rng.random() < 0.3:  # while it starts, joins, or compiles
        job.wait_for(0, seconds=rng.uniform(0, 8))
    else:  # while it trains
        job.wait_for(lines + rng.randrange(1, 20), seconds=rng.uniform(0, 0.05))
    killed = job.pid(rank)
    if killed is not None:
        os.kill(killed, signal.SIGKILL)
    status, said = job.end()
    if killed is None:
        assert status == 0, said
        return "had ended before"
    assert status != 0 and said.strip(), f"status {status}, said {said!r}"
    found = re.search("sparsetrain: error.*|.*KILLED BY SIGNAL: 9.*|.*[Ss]ignal 9.*", said)
    assert found, said
    return f"killed rank {rank}, status {status}: {found.group()[:90].strip()}"


def stop_one(folder, by, seconds, deadline):
    """Stop a rank by SIGSTOP while it trains; return the exit status and stderr."""
    lines = _lines(folder / "log.jsonl")
    job = Job(folder, by, deadline)
    job.wait_for(lines + 5)
    stopped = job.pid(1)
    os.kill(stopped, signal.SIGSTOP)
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and job.pid(0) is not None:
        time.sleep(0.1)
    if job.pid(1) == stopped:
        os.kill(stopped, signal.SIGCONT)
    return job.end()


def unkilled(folder, by):
    """The arrays of a run that one process trains to its end."""
    status, said = Job(folder, by, ranks=1).end()
    assert status == 0, said
    return arrays_of(folder)


def assert_kills_change_no_bit(place, wanted, by, kills, rng):
    """Kill a rank so often, in runs of which each is resumed to its end; compare their bits."""
    killed = run = 0
    while killed < kills:
        folder = place / f"run-{run}"
        said = kill_one(folder, by, rng)
        steps = st.Run(folder).manifest()["steps"] if st.Run(folder).latest else 0
        print(f"{said}; {steps} steps are saved", flush=True)
        killed += said.startswith("killed")
        run += steps == STEPS
    for folder in sorted(place.glob("run-*")):
        status, said = Job(folder, by).end()
        assert status == 0, said
        assert arrays_of(folder) == wanted, f"{folder.name} has other bits"
        print(f"{folder.name} ends with the bits of one that nobody killed", flush=True)


def assert_stops_are_waited_for(folder, wanted, by, seconds):
    """Stop a rank for some time, with deadlines that are shorter and longer."""
    status, said = stop_one(folder, by, seconds, 5)
    assert status != 0 and "no answer from rank 1 of 2" in said, said
    print(f"stopped beyond the deadline: status {status}, names rank 1", flush=True)
    status, said = stop_one(folder, by, seconds, 600)
    assert status == 0, said
    assert arrays_of(folder) == wanted, "stopped: other bits"
    print(f"stopped for {seconds:g} s: goes on, to the same bits", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--stop", type=float, default=60, help="seconds; 0 stops none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--by", choices=("mpiexec", "torchrun"), default="mpiexec")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        wanted = unkilled(place / "whole", options.by)
        assert_kills_change_no_bit(
            place, wanted, options.by, options.kills, random.Random(options.seed)
        )
        if options.stop:
            assert_stops_are_waited_for(place / "stopped", wanted, options.by, options.stop)


if __name__ == "__main__":
    run_job(*sys.argv[2:]) if sys.argv[1:2] == ["--job"] else main()
