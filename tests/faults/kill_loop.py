# SPDX-License-Identifier: Apache-2.0
"""Kill a training run with SIGKILL at random moments, resume it, and compare every bit.

One process compiles, and forks a child for each life of the run, so that a life costs milliseconds.
Kernels run on the calling thread: a forked child has no other. A child that resumes compares its
weights with those that an uncut run had after as many steps; so does the end of each run.

    python -m tests.faults.kill_loop --kills 200
"""

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

os.environ["TVM_NUM_THREADS"] = "1"

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

import sparsetrain as st  # noqa: E402
from sparsetrain.training.fit.record import Record  # noqa: E402
from tests import small_dlrm  # noqa: E402

EPOCHS, BATCH, EVERY = 4, 16, 3
pa.set_cpu_count(1)
pa.set_io_thread_count(1)


def digest(trainer: st.Trainer) -> str:
    whole = hashlib.sha256()
    for name, array in sorted(trainer.state_dict().items()):
        whole.update(name.encode() + array.tobytes())
    return whole.hexdigest()


def fit(trainer: st.Trainer, data: Path, folder: Path, **options) -> None:
    trainer.fit(
        str(data / "train.parquet"),
        validation=str(data / "valid.parquet"),
        epochs=EPOCHS,
        batch_size=BATCH,
        validate_every=5,
        progress=None,
        run=st.Run(folder, every=EVERY, log_every=2, keep=2),
        **options,
    )


def straight(data: Path, folder: Path) -> dict[int, str]:
    """Train without a cut; return the hash at the beginning and after each checkpointed step."""
    trainer = small_dlrm.trainer(encoder=small_dlrm.encoder(), seed=3)
    digests = {0: digest(trainer)}
    save = Record.save

    def note(self, trainer, state, *, best):
        digests[trainer.steps] = digest(trainer)
        save(self, trainer, state, best=best)

    Record.save = note
    fit(trainer, data, folder)
    Record.save = save
    return digests


def live(data: Path, folder: Path, expected: dict[int, str]) -> None:
    """One life of the run: begin or resume it, compare, train on."""
    begun = st.Run(folder).latest is not None
    if begun:
        trainer = small_dlrm.share_programs(st.load(folder))
    else:
        trainer = small_dlrm.trainer(encoder=small_dlrm.encoder(), seed=3)
    if digest(trainer) != expected[trainer.steps]:
        raise AssertionError(f"other weights after {trainer.steps} steps")
    fit(trainer, data, folder, resume=begun)
    if digest(trainer) != expected[max(expected)]:
        raise AssertionError("other weights at the end")


def life(data: Path, folder: Path, expected: dict[int, str], seconds: float) -> int:
    """Fork a life, kill it after `seconds`; return its exit status."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            live(data, folder, expected)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    due = time.monotonic() + seconds
    while time.monotonic() < due:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        data = Path(place)
        for seed, (name, rows) in enumerate({"train": 100, "valid": 60}.items()):
            table = pa.table(small_dlrm.raw_rows(rows, seed=seed))
            pq.write_table(table, data / f"{name}.parquet", row_group_size=30)
        expected = straight(data, data / "straight")
        began = time.monotonic()
        if life(data, data / "timed", expected, 60.0) != 0:
            sys.exit("a life without a kill failed")
        whole = time.monotonic() - began
        kills = runs = resumes = 0
        while kills < options.kills:
            folder = data / f"run {runs}"
            while kills < options.kills:
                resumes += st.Run(folder).latest is not None
                status = life(data, folder, expected, rng.uniform(0.0, 0.7 * whole))
                if status not in (0, -signal.SIGKILL):
                    sys.exit(f"life {kills} of run {runs} failed: see {folder}")
                if status == 0:
                    break
                kills += 1
            runs += 1
            if life(data, folder, expected, 60.0) != 0:
                sys.exit(f"run {runs} did not end as the uncut one")
    report = {"kills": kills, "runs": runs, "resumes": resumes, "life_s": round(whole, 3)}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
