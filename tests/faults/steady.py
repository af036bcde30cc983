# SPDX-License-Identifier: Apache-2.0
"""A long run that saves all the time: memory, open files, threads and the folder stay as they are.

One process trains, validates, logs and saves, more than once a second. After each checkpoint it
counts the memory and files that it holds; the first tenth is left out, in which memory is taken
that is used again.

    python -m tests.faults.steady --minutes 10
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa

import sparsetrain as st
from sparsetrain.training.run import Run
from tests import small_dlrm
from tests.heap import resident_bytes


class Watched(Run):
    """A run that notes after each checkpoint what the process and the folder hold."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.held = []

    def save(self, *arguments, **options):
        super().save(*arguments, **options)
        self.held.append(
            {
                "bytes": resident_bytes(),
                "files": len(os.listdir("/proc/self/fd")),
                "threads": threading.active_count(),
                "names": len(os.listdir(self.folder)),
            }
        )


def train(folder, *, saves=None, seconds=None, rows=128_000, every=500):
    """What was held after each checkpoint, of a run of so many, or of so many seconds."""
    trainer = small_dlrm.trainer(encoder=small_dlrm.encoder(), seed=3)
    run = Watched(folder / "run", every=every, log_every=every, keep=2, tensorboard=True)
    began = time.monotonic()
    trainer.fit(
        pa.table(small_dlrm.raw_rows(rows)),
        validation=small_dlrm.raw_rows(100, seed=1),
        epochs=1_000_000,
        batch_size=64,
        validate_every=every,
        early_stopping=st.EarlyStopping(patience=1_000_000),
        progress=None,
        run=run,
        stop=lambda: len(run.held) >= saves if saves else time.monotonic() - began > seconds,
    )
    return run.held


def growth(held):
    """By how much each number is larger at the end than after the first tenth."""
    early = held[len(held) // 10 :][:5]
    return {
        name: min(each[name] for each in held[-5:]) - max(each[name] for each in early)
        for name in held[0]
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        held = train(Path(name), seconds=60 * options.minutes)
    grown = growth(held)
    print(json.dumps({"saves": len(held), "last": held[-1], "growth": grown}))
    sys.exit(grown["bytes"] > 8e6 or grown["files"] > 0 or grown["threads"] > 0)


if __name__ == "__main__":
    main()
