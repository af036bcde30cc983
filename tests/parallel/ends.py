# SPDX-License-Identifier: Apache-2.0
"""Ends of jobs of two processes: each failure of one, until no process of the job is left.

    python -m tests.parallel.ends --times 20
    python -m tests.parallel.ends --by torchrun SIGKILL exception

Prints a line for each kind: the longest time from the failure to the end of the last process, exit
statuses, and how often stderr named the rank and the cause. The exit status is 1 if a job
succeeded or left a process.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
BESIDE = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
MPIEXEC, TORCHRUN = (shutil.which(name, path=BESIDE) for name in ("mpiexec", "torchrun"))
# What rank 1 of `tests.parallel.deaths` meets -> what stderr says of the cause.
DEATHS = {
    "exception": "ValueError: a reader of one's own failed",
    "sys.exit": "SystemExit: 3",
    "os._exit": "",  # the launcher ends the job at once
    "end": "SystemExit: 0",
    "SIGKILL": "",
    "SIGSTOP": "no answer from rank 1 of 2",
    "SIGSTOP before it joins": "did not begin within 5 s",
    "SIGSTOP when it leaves": "did not end within 5 s",
}
SIGNALS = {"Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM}  # to the launcher
# What a rank of `sparsetrain train` meets.
COMMANDS = {
    "bad row": "row 1950",
    "bad row of its own file": "has the data",
    "no file of its own": "train.parquet: no such file",
    "full disk": "File too large",
    "Ctrl-C while it trains": "stopped by SIGINT",
    "SIGTERM while it trains": "stopped by SIGTERM",
}
CAUSES = {**DEATHS, **dict.fromkeys(SIGNALS, ""), **COMMANDS}
LIMIT = 120.0  # s for what takes less than a second on a quiet machine


def launch(*arguments, places=(ROOT, ROOT), by="mpiexec", **environment):
    """Start processes of Python, each in its folder."""
    own = {"PYTHONPATH": str(ROOT), "TVM_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    own["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    own["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    if by == "torchrun":
        command = [TORCHRUN, "--nproc-per-node", str(len(places)), *arguments]
    else:
        ranks = [[":", "-n", "1", "-wdir", str(at), sys.executable, *arguments] for at in places]
        command = [MPIEXEC, *sum(ranks, [])[1:]]
    return subprocess.Popen(
        command,
        cwd=places[0],
        env={**os.environ, **own, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write_clicks(path, bad_rows=None):
    rng = np.random.default_rng(0)
    columns = {"label": rng.integers(0, 2, 2000), "I1": rng.integers(0, 9, 2000)}
    columns |= {f"C{n}": rng.zipf(1.3, 2000) % 50 for n in (1, 2)}
    if bad_rows is not None:
        columns["label"][bad_rows] = 7
    pq.write_table(pa.table(columns), path, row_group_size=100)


def start(kind, folder, by, **environment):
    """Start the job that fails in one way."""
    if kind not in COMMANDS:
        event, deadline = kind if kind in DEATHS else "nothing", "5" if "SIGSTOP" in kind else "600"
        deaths = ["-m", "tests.parallel.deaths", str(folder), event, deadline]
        return launch(*deaths, by=by, **environment)
    places = [folder / "0", folder / "1"]
    for place in places:
        place.mkdir()
    write_clicks(places[0] / "train.parquet", 1950 if kind == "bad row" else None)
    if "its own" not in kind:
        places[1] = places[0]
    elif kind.startswith("bad"):
        write_clicks(places[1] / "train.parquet", slice(None))
    first = ["tests.parallel.job", "full"] if kind == "full disk" else ["sparsetrain"]
    epochs = "100000" if "while" in kind else "1"
    options = ["--batch-size", "100", "--min-count", "1", "--epochs", epochs]
    options += ["--out", str(folder / "run")]
    command = ["-m", *first, "train", "train.parquet", *options]
    return launch(*command, places=places, by=by, **environment)


def once(kind, by="mpiexec"):
    """Seconds from the failure to the end, the exit status, stderr, and processes left."""
    with tempfile.TemporaryDirectory() as name:
        folder, mark = Path(name), uuid.uuid4().hex
        job = start(kind, folder, by, MARK_OF_A_JOB=mark)
        when, log, began = folder / "when", folder / "run" / "log.jsonl", None
        if number := SIGNALS.get(kind.split()[0]):
            _wait(lambda: when.exists() or _has_lines(log) or job.poll() is not None)
            began = time.time()
            job.send_signal(number)
        said = []
        for line in job.stderr:
            began = began or (time.time() if "error:" in line else None)
            said.append(line)
        job.communicate(timeout=LIMIT)
        _wait(lambda: not processes(mark))
        ended, left = time.time(), processes(mark)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if kind in DEATHS:
            began = float(when.read_text())
        return ended - began, job.returncode, "".join(said), left


def processes(mark):
    """The processes of a job that there are, by its mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended
    return found


def _has_lines(log):
    return log.exists() and log.stat().st_size  # steps are taken, all is compiled


def _wait(condition):
    limit = time.time() + LIMIT
    while not condition() and time.time() < limit:
        time.sleep(0.02)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(CAUSES))
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--by", choices=("mpiexec", "torchrun"), default="mpiexec")
    parser.add_argument("--show", action="store_true", help="print stderr of the last of each kind")
    options = parser.parse_args()
    bad = False
    for kind in options.kinds or CAUSES:
        runs = [once(kind, options.by) for _ in range(options.times)]
        seconds, statuses, said, left = zip(*runs, strict=True)
        counts = {
            "rank named": sum(bool(re.search(r"rank \d", text)) for text in said),
            "cause": sum(CAUSES[kind] in text for text in said),
            "left": sum(map(bool, left)),
        }
        bad |= 0 in statuses or any(left)
        print(
            f"{kind:24} {len(runs)} times, longest {max(seconds):5.2f} s, status",
            dict(Counter(statuses)),
            *(f"{name} {count}" for name, count in counts.items()),
            flush=True,
        )
        if options.show:
            print(said[-1])
    sys.exit(bad)


if __name__ == "__main__":
    main()
