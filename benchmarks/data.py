# SPDX-License-Identifier: Apache-2.0
"""Rates and memory of converting and reading synthetic Criteo rows.

    taskset -c 0 python benchmarks/data.py --rows 4000000 --folder DIR

Makes the rows once, converts them from parquet and, with --tsv, from text, and reads the result for
some epochs. Prints one line for each, with rows/s and the peak memory so far.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

import sparsetrain as st


def measure(name: str, rows: int, run: Callable[[], object]) -> None:
    began = time.perf_counter()
    run()
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{name:<32} {seconds:7.1f} s {rows / seconds:12,.0f} rows/s  peak {peak} MB", flush=True)


def write_text(source: Path, path: Path) -> None:
    options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    with open(path, "wb") as file:
        for piece in pq.ParquetFile(source).iter_batches(65_536):
            csv.write_csv(piece, file, options)


def convert(source: Path, out: Path, workers: int) -> None:
    shutil.rmtree(out, ignore_errors=True)
    st.data.convert_files(source, out, workers=workers, memory=1_500_000_000)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--tsv", action="store_true")
    given = parser.parse_args()
    pa.set_cpu_count(given.workers)
    given.folder.mkdir(parents=True, exist_ok=True)
    raw, text = given.folder / "raw.parquet", given.folder / "raw.tsv"
    out, rows = given.folder / "converted", given.rows
    measure("generate", rows, lambda: st.data.SyntheticCriteo(0).write(raw, rows))
    if given.tsv:
        write_text(raw, text)
        measure(
            f"convert tsv workers={given.workers}", rows, lambda: convert(text, out, given.workers)
        )
    measure(
        f"convert parquet workers={given.workers}", rows, lambda: convert(raw, out, given.workers)
    )
    encoder = st.data.Encoder.fit(out)
    dataset = st.data.Dataset(out, encoder)
    for seed in (None, 0):
        for epoch in range(1 if seed is None else given.epochs):
            batches = dataset.batches(2048, seed=seed, epoch=epoch, workers=given.workers)
            measure(f"read seed={seed} epoch={epoch}", rows, lambda b=batches: sum(map(len, b)))


if __name__ == "__main__":
    main()
