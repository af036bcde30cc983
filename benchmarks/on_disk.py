# SPDX-License-Identifier: Apache-2.0
"""Pace of training with tables on disk, beside tables in memory and the disk's own random reads.

    python benchmarks/on_disk.py /nvme/tables
    python benchmarks/on_disk.py /nvme/tables --rows 100_000_000 --no-memory

A step trains a small DLRM by row-wise Adagrad on 2,048 rows of 26 ids, Zipf(1.1) in each table.
Tables in memory and on disk take turns. The roof is of reads of
4 KiB at random places of a file, by threads and past the system's cache. To bound all memory, the
system's cache of files included, start it in a control group; what is printed of memory is this
process's own.
"""

from __future__ import annotations

import argparse
import mmap
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np

import sparsetrain as st

FEATURES, DENSE, EXPONENT, PAGE = 26, 13, 1.1, 4096
THREADS, SECONDS = 64, 2.0  # of the roof


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of all tables")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--cache-rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--warm", type=int, default=200, help="steps that fill the cache")
    parser.add_argument("--steps", type=int, default=20, help="of a turn")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--no-memory", action="store_true", help="leave tables in memory out")
    parser.add_argument("--shuffled", action="store_true", help="frequent ids are no neighbours")
    chosen = parser.parse_args()
    print(f"random reads of {PAGE} bytes: {roof(chosen.folder):,.0f} a second", flush=True)
    disk = made(chosen, st.tables.OnDisk(chosen.folder, cache_rows=chosen.cache_rows))
    print(f"{memory():,.0f} MB of memory with tables on disk alone", flush=True)
    arms = {"disk": disk}
    if not chosen.no_memory:
        arms["memory"] = made(chosen, None)
    rng = np.random.default_rng(0)
    run(disk, rng, chosen, chosen.warm)
    paces: dict[str, list[tuple[float, float, float]]] = {name: [] for name in arms}
    for _ in range(chosen.turns + 1):
        for name, trainer in arms.items():
            paces[name].append(run(trainer, rng, chosen, chosen.steps))
    for name, found in paces.items():
        low, middle, high = np.percentile(found[1:], [10, 50, 90], axis=0)
        print(
            f"{name:6} {middle[0]:8,.0f} rows a second ({low[0]:,.0f} to {high[0]:,.0f}), "
            f"{middle[1]:7,.0f} reads a step, {middle[2]:8,.0f} a second"
        )


def made(chosen: argparse.Namespace, tables: st.tables.OnDisk | None) -> st.Trainer:
    began, rows = time.perf_counter(), [chosen.rows // FEATURES] * FEATURES
    model = st.models.DLRM(rows=rows, dim=chosen.width, bottom=(64,), top=(64,), num_dense=13)
    trainer = st.Trainer(model, st.optim.rowwise_adagrad(0.05), target="cpu", tables=tables)
    where = "on disk" if tables else "in memory"
    print(f"{time.perf_counter() - began:.1f} s to make tables {where}", flush=True)
    return trainer


def run(
    trainer: st.Trainer, rng: np.random.Generator, chosen: argparse.Namespace, steps: int
) -> tuple[float, float, float]:
    """Rows a second of some steps, rows that each read from the file, and those a second."""
    batches = [batch(rng, chosen) for _ in range(steps)]
    before, began = reads_of(trainer), time.perf_counter()
    for each in batches:
        float(trainer.step(each))
    seconds, reads = time.perf_counter() - began, reads_of(trainer) - before
    return steps * chosen.batch / seconds, reads / steps, reads / seconds


def reads_of(trainer: st.Trainer) -> int:
    return sum(getattr(table, "reads", 0) for table in trainer.params.lagging)


def batch(rng: np.random.Generator, chosen: argparse.Namespace) -> st.Batch:
    rows = chosen.rows // FEATURES
    size = chosen.batch, FEATURES
    # The inverse of the distribution function of x ** -1.1 on [1, rows].
    base = 1 - rng.random(size) * (1 - rows ** (1 - EXPONENT))
    ids = np.minimum(base ** (1 / (1 - EXPONENT)) - 1, rows - 1).astype(np.int64)
    if chosen.shuffled:
        ids = ids * 2_654_435_761 % rows
    dense = rng.standard_normal((chosen.batch, DENSE)).astype(np.float32)
    return st.Batch(dense, ids, rng.integers(0, 2, chosen.batch))


def roof(folder: str, size: int = 1 << 30) -> float:
    """Reads a second of a page at random places, by threads, past the system's cache."""
    os.makedirs(folder, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        block = os.urandom(1 << 20)
        for _ in range(size >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        descriptor = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
        end = time.perf_counter() + SECONDS

        def read(seed: int) -> int:
            pages, page, done = Random(seed), mmap.mmap(-1, PAGE), 0  # noqa: S311
            while time.perf_counter() < end:
                os.preadv(descriptor, [page], PAGE * pages.randrange(size // PAGE))
                done += 1
            return done

        with ThreadPoolExecutor(THREADS) as pool:
            done = sum(pool.map(read, range(THREADS)))
        os.close(descriptor)
    return done / SECONDS


def memory() -> float:
    """Megabytes of this process that no file holds."""
    with open("/proc/self/status", encoding="ascii") as status:
        lines = dict(line.split(":", 1) for line in status)
    return int(lines["RssAnon"].split()[0]) / 1000


if __name__ == "__main__":
    main()
