# SPDX-License-Identifier: Apache-2.0
"""Rates and memory of generating, converting and reading synthetic Criteo rows.

    taskset -c 0 python benchmarks/data.py --rows 20000000 --folder DIR

Each step runs in a process of its own, so that its peak of memory is its own, and prints rows/s and
that peak. What a step needs and finds in the folder is not made again: 20 million rows
are 1 GB of parquet, 4.9 GB of text, and as much again while text is converted.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc

import sparsetrain as st

COLUMNS = ["label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))]
MEMORY = 1_500_000_000  # what the conversions are given


def measure(name: str, rows: int, run: Callable[[], object]) -> None:
    """Run, then print the rate, and the peak of this process so far."""
    began = time.perf_counter()
    run()
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(
        f"{name:<28} {seconds:7.1f} s {rows / seconds:12,.0f} rows/s  {peak:6,.0f} MB", flush=True
    )


def generate(given: Namespace) -> None:
    generator = st.data.SyntheticCriteo(0)
    for name in ("raw.parquet", "raw.tsv"):
        path = given.folder / name
        if not path.exists():
            measure(f"generate {name}", given.rows, lambda p=path: generator.write(p, given.rows))


def _convert(given: Namespace, source: str) -> None:
    out = given.folder / "converted"
    shutil.rmtree(out, ignore_errors=True)

    def run() -> object:
        return st.data.convert_files(
            given.folder / source, out, workers=given.workers, memory=MEMORY
        )

    measure(f"convert {source}", given.rows, run)


def convert_text(given: Namespace) -> None:
    _convert(given, "raw.tsv")


def convert_parquet(given: Namespace) -> None:
    _convert(given, "raw.parquet")


def arrow_alone(given: Namespace) -> None:
    """Read the text by Arrow's reader, which infers integers and leaves keys text."""
    options = pc.ReadOptions(
        column_names=COLUMNS, use_threads=given.workers > 1, block_size=1 << 25
    )

    def run() -> None:
        with pc.open_csv(
            given.folder / "raw.tsv", options, pc.ParseOptions(delimiter="\t")
        ) as reader:
            for _ in reader:
                pass

    measure("pyarrow's CSV reader alone", given.rows, run)


def pandas_alone(given: Namespace) -> None:
    def run() -> None:
        with pd.read_csv(
            given.folder / "raw.tsv", sep="\t", header=None, names=COLUMNS, chunksize=1 << 17
        ) as chunks:
            for _ in chunks:
                pass

    measure("pandas.read_csv alone", given.rows, run)


def train_text(given: Namespace) -> None:
    """Train a small DLRM: tables of width 16, MLPs of 64 and 64."""
    st.set_num_threads(given.workers)
    head = given.folder / "head.tsv"  # compiles the step, and the encoder's values are of it
    with open(given.folder / "raw.tsv", "rb") as file:
        head.write_bytes(b"".join(islice(file, 200_000)))
    encoder = st.data.Encoder.fit(head)
    model = st.models.DLRM(
        rows=encoder.rows, dim=16, bottom=(64,), top=(64,), num_dense=encoder.num_dense
    )
    trainer = st.Trainer(model, st.optim.adagrad(0.02), encoder=encoder)
    fit = partial(trainer.fit, batch_size=2048, shuffle=False, progress=None)
    fit(head)
    measure("train on raw.tsv", given.rows, lambda: fit(given.folder / "raw.tsv"))


def _read(given: Namespace, seed: int | None, epochs: int) -> None:
    out = given.folder / "converted"
    dataset = st.data.Dataset(out, st.data.Encoder.fit(out))
    for epoch in range(epochs):
        batches = dataset.batches(2048, seed=seed, epoch=epoch, workers=given.workers)
        order = "file order" if seed is None else f"shuffled, epoch {epoch + 1}"
        measure(f"read, {order}", given.rows, lambda batches=batches: sum(map(len, batches)))


def read_in_order(given: Namespace) -> None:
    _read(given, None, 1)


def read_shuffled(given: Namespace) -> None:
    _read(given, 0, given.epochs)


STEPS = {
    step.__name__: step
    for step in (
        *(generate, arrow_alone, pandas_alone, convert_text, convert_parquet),
        *(read_in_order, read_shuffled, train_text),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--step", choices=STEPS, help="one step alone; by default all, in order")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.step:
        pa.set_cpu_count(given.workers)
        STEPS[given.step](given)
        return
    for step in STEPS:
        subprocess.run([sys.executable, *sys.argv, "--step", step], check=True)


if __name__ == "__main__":
    main()
