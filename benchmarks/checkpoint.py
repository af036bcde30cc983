# SPDX-License-Identifier: Apache-2.0
"""Speed of saving and loading next to the disk's, and the memory of a save.

    python benchmarks/checkpoint.py --gigabytes 1 --rounds 5 --folder /some/disk

The disk's speed is that of one file of the same bytes, written in blocks of 16 MiB and fsynced, and
read back after it was dropped from the page cache. Rounds alternate between file and checkpoint;
the first one, in which a virtual machine gets its memory, does not count.

A load needs new memory for the tables, a read of the file does not. On a virtual machine a GiB of
it took 1 to 2 s of processor in some rounds, probably where the host had taken it back. With
MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=99999999999 a load gets the memory of the trainer before
it, as far as that is still there.
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import sparsetrain as st

_BLOCK = 16 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", default=None, help="on the disk to measure")
    options = parser.parse_args()
    rows = int(options.gigabytes * 1e9 / 2 / (32 * 4) / 4)  # 4 tables, weights and slots
    model = st.models.DLRM(rows=[rows] * 4, dim=32, bottom=(8,), top=(8,), num_dense=13)
    trainer = st.Trainer(model, st.optim.adagrad(0.1), target="llvm")
    with trainer.snapshot() as state:
        size = sum(array.nbytes for array in state.arrays.values())
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        times, growth = _measure(trainer, Path(place), size, options.rounds)
    gb = {name: size / 1e9 / statistics.median(taken) for name, taken in times.items()}
    report = {
        "bytes": size,
        "GB/s": {name: round(speed, 3) for name, speed in gb.items()},
        "seconds": {n: [round(t, 3) for t in taken] for n, taken in times.items()},
        "save / write": round(gb["save"] / gb["write"], 3),
        "load / read": round(gb["load"] / gb["read"], 3),
        "best save / best write": round(min(times["write"]) / min(times["save"]), 3),
        "best load / best read": round(min(times["read"]) / min(times["load"]), 3),
        "peak growth of a save": round(growth / size, 4),
    }
    print(json.dumps(report, indent=1))


def _measure(
    trainer: st.Trainer, place: Path, size: int, rounds: int
) -> tuple[dict[str, list[float]], int]:
    times: dict[str, list[float]] = {name: [] for name in ("write", "save", "read", "load")}
    growth = 0
    block = np.random.default_rng(0).integers(0, 256, _BLOCK, dtype=np.uint8).data
    for _ in range(rounds + 1):
        times["write"].append(_timed(lambda: _write(place / "file", block, size)))
        before = _peak()
        times["save"].append(_timed(lambda: trainer.save(place / "run")))
        growth = max(growth, _peak() - before)
        _drop(place)
        times["read"].append(_timed(lambda: _read(place / "file")))
        _drop(place)
        times["load"].append(_timed(lambda: st.load(place / "run", target="llvm")))
    return {name: taken[1:] for name, taken in times.items()}, growth


def _timed(task: Callable[[], object]) -> float:
    began = time.perf_counter()
    task()
    return time.perf_counter() - began


def _write(path: Path, block: memoryview, size: int) -> None:
    with open(path, "wb", buffering=0) as file:
        for start in range(0, size, _BLOCK):
            file.write(block[: size - start])
        os.fsync(file.fileno())


def _read(path: Path) -> None:
    block = bytearray(_BLOCK)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(block):
            pass


def _drop(place: Path) -> None:
    """Drop all files from the page cache."""
    for path in place.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
