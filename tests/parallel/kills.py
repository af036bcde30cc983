# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of a rank at every point of a save: 1 and 4 ranks go on from the last whole one.

    python -m tests.parallel.kills          # each of the two ranks, at every point
    python -m tests.parallel.kills 0 34     # rank 0, from point 34 on

Two processes train, and in the second save one of them kills itself: before it, in each of its
files, before and after the folder is renamed, before and after it is named. Prints a line for each;
the exit status is 1 if a run cannot go on, or ends with other bits than one that nobody killed.
"""

import os
import shutil
import signal
import sys
import tempfile
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import sparsetrain as st
from sparsetrain.checkpoint import folders
from sparsetrain.parallel.run import SharedRun
from tests.parallel.ends import launch
from tests.parallel.test_runs import arrays_of, fitted, make_clicks, on


class Killer:
    """Ends this process at the point of some number in the second save."""

    def __init__(self, point):
        self.left, self.saves = point, 0
        self._wrap(SharedRun, "_write", "before it begins", "written", is_save=True)
        self._wrap(folders, "publish", "before it is renamed", "renamed")
        self._wrap(SharedRun, "_name", "before it is named", "named")
        new_file = folders.new_file

        @contextmanager
        def wrapped(path):
            with new_file(path) as file:
                yield file
                self.reach(f"in {path.name}")

        folders.new_file = wrapped

    def reach(self, point):
        if self.saves == 2:
            self.left -= 1
            if self.left < 0:
                print("killed", point, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

    def _wrap(self, owner, name, before, after, is_save=False):
        real = getattr(owner, name)

        def wrapped(*arguments):
            self.saves += is_save
            self.reach(before)
            found = real(*arguments)
            self.reach(after)
            return found

        setattr(owner, name, wrapped)


def run_job(folder, rank, point):
    group, clicks = st.parallel.mpi(parts=4), make_clicks()
    if group.comm.rank == int(rank):
        Killer(int(point))
    fitted(clicks, st.data.Encoder.fit(clicks), folder, group)


def main(ranks="01", first=0):
    clicks = make_clicks()
    encoder = st.data.Encoder.fit(clicks)
    bad = False
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        fitted(clicks, encoder, place / "whole", st.parallel.local(parts=4))
        wanted = arrays_of(place / "whole")
        for rank in ranks:
            for point in count(int(first)):
                folder = place / f"{rank}-{point}"
                of_job = "--job", str(folder), rank, str(point)
                job = launch("-m", "tests.parallel.kills", *of_job)
                printed, _ = job.communicate(timeout=300)
                if job.returncode == 0:  # there are no more points
                    break
                steps = st.Run(folder).manifest()["steps"]
                shutil.copytree(folder, again := place / "again")
                fitted(clicks, encoder, folder, st.parallel.local(), load=True)
                on(4, clicks, encoder, again, parts=None, load=True)
                same = arrays_of(folder) == arrays_of(again) == wanted
                left = [p.name for p in folder.iterdir() if p.name.startswith(".step")]
                bad |= not same or steps not in (3, 5) or bool(left)
                (said,) = (line for line in printed.split("\n") if line.startswith("killed"))
                print(f"rank {rank} {said}: goes on from step {steps},", end=" ")
                print("1 and 4 ranks equal" if same else "UNEQUAL", *left, flush=True)
                shutil.rmtree(again)
    sys.exit(bad)


if __name__ == "__main__":
    run_job(*sys.argv[2:]) if sys.argv[1:2] == ["--job"] else main(*sys.argv[1:])
