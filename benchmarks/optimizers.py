# SPDX-License-Identifier: Apache-2.0
"""Cost of updates: modes, the row kernel on large tables, accumulation.

    python benchmarks/optimizers.py modes --rows 5000 --steps 1500
    python benchmarks/optimizers.py modes --rows 5000000 --steps 30
    python benchmarks/optimizers.py rows --rows 33800000
    python benchmarks/optimizers.py accumulate --rows 100000 --steps 200

`modes` trains one table of width 8 on 256 Zipf ids a step, with warm-up and a cosine, and checks
that exact equals dense bit for bit. `rows` times `apply_` on 53,248 Zipf ids of 26 tables in one
storage of width 16. `accumulate` times steps of the Kaggle DLRM, tables of `--rows` rows
each, whose batches are computed whole or in two parts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import sparsetrain as st
from sparsetrain import optim, runtime
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.sparse_tensor import RowSparse

WIDTH, IDS = 8, 256
FORMULAS: dict[str, Callable[..., optim.Optimizer]] = {
    "adam": optim.adam,
    "adamw": optim.adamw,
    "momentum": optim.momentum,
    "rmsprop": optim.rmsprop,
    "adam, decay": lambda lr, **o: optim.adam(lr, weight_decay=1e-3, **o),
}
WARM = 8  # steps that are not counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["modes", "rows", "accumulate"])
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=100)
    chosen = parser.parse_args()
    measures = {"modes": modes, "rows": row_updates, "accumulate": accumulate}
    measures[chosen.what](chosen.rows, chosen.steps)


def modes(rows: int, steps: int) -> None:
    """Seconds of the optimizer alone, and whether exact is dense."""
    lr = 0.01 * optim.warmup(max(steps // 15, 1)) * optim.cosine(steps)
    print(f"{rows:,} rows x {WIDTH}, {steps} steps of {IDS} ids: ms a step, then the flush in ms")
    for name, make in FORMULAS.items():
        weights, line = {}, f"{name:12}"
        for mode in ("lazy", "exact", "dense"):
            weights[mode], step_ms, flush_ms = train(make(lr, mode=mode), rows, steps)
            line += f"  {mode} {step_ms:8.3f}"
            line += f" + flush {flush_ms:7.1f}" if mode == "exact" else ""
        same = (weights["exact"].view("u4") == weights["dense"].view("u4")).all()
        off = np.abs(weights["lazy"] - weights["dense"]).max()
        print(f"{line}  exact is dense: {same}, lazy off by {off:.2g}", flush=True)


def train(optimizer: optim.Optimizer, rows: int, steps: int) -> tuple[np.ndarray, float, float]:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((rows, WIDTH), dtype="f4")
    params = {"t": as_tensor(weight)}
    state = optimizer.init(params, {"t": {"t": slice(0, rows)}})
    times = []
    for _ in range(steps):
        ids = (rng.zipf(1.2, IDS) - 1) % rows
        noise = rng.standard_normal((IDS, WIDTH))
        begin = time.perf_counter()
        optimizer.catch_up_(params, {"t": ids}, state)
        caught = time.perf_counter() - begin
        values = (0.1 * as_numpy(params["t"])[ids] + 0.01 * noise).astype("f4")
        gradient = RowSparse.from_numpy(ids, values, rows)
        begin = time.perf_counter()
        optimizer.apply_(params, {"t": gradient}, state)
        times.append(caught + time.perf_counter() - begin)
        if len(times) == 1:
            optimizer.flush_(params, state)  # compiles it; results do not change
    begin = time.perf_counter()
    optimizer.flush_(params, state)
    flush = time.perf_counter() - begin
    return as_numpy(params["t"]).copy(), 1e3 * float(np.mean(times[2:])), 1e3 * flush


def row_updates(rows: int, steps: int) -> None:
    """Time of one `apply_`, coalescing and the check for NaN included."""
    rng = np.random.default_rng(0)
    weight = runtime.zeros((rows, 16), "float32")
    batches = [large_batch(rng, rows) for _ in range(8)]
    for make in (optim.sgd, optim.adagrad, optim.rowwise_adagrad, optim.adam):
        optimizer = make(0.01)
        state = optimizer.init({"t": weight})
        times = []
        for step in range(max(steps, 20)):
            begin = time.perf_counter()
            optimizer.apply_({"t": weight}, {"t": batches[step % 8]}, state)
            times.append(1e3 * (time.perf_counter() - begin))
        low, middle, high = np.percentile(times[8:], [10, 50, 90])
        name = optimizer.formula.name
        print(f"{name:16} {rows:,} rows: {middle:.2f} ms ({low:.2f} to {high:.2f})", flush=True)


def large_batch(rng: np.random.Generator, rows: int) -> RowSparse:
    """A batch of 2,048 rows and 26 tables, half of the rows in the largest ones."""
    ends = np.cumsum(rows * np.array([0.3, 0.25, 0.2, 0.15] + 22 * [0.1 / 22])).astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    ids = np.stack([s + skewed(rng, e - s) for s, e in zip(starts, ends, strict=True)], axis=1)
    values = rng.standard_normal((ids.size, 16), dtype="f4")
    return RowSparse.from_numpy(ids.ravel().astype(np.int32), values, rows)


def skewed(rng: np.random.Generator, rows: int, exponent: float = 1.05) -> np.ndarray:
    """2,048 ids by a power law, scattered over the table."""
    rest = 1 - exponent
    rank = (1 + rng.random(2048) * ((rows + 1) ** rest - 1)) ** (1 / rest)
    return (np.minimum(rank.astype(np.int64) - 1, rows - 1) * 2654435761) % rows


def accumulate(rows: int, steps: int) -> None:
    """Time of a training step of the Kaggle DLRM, batches whole and in two parts, by turns."""
    model = st.models.DLRM(
        rows=[rows] * 26, dim=16, bottom=(512, 256, 64), top=(512, 256), num_dense=13
    )
    for size in (128, 2048):
        trainers = {
            f"accumulate={parts}": st.Trainer(model, optim.adagrad(0.01), accumulate=parts)
            for parts in (1, 2)
        }
        times = take_turns(trainers, [random_batch(rows, size, n) for n in range(16)], steps)
        figures = (np.percentile(ms, [10, 50, 90]) for ms in times.values())
        found = "  ".join(
            f"{name} {middle:.3f} ms ({low:.3f} to {high:.3f})"
            for name, (low, middle, high) in zip(times, figures, strict=True)
        )
        print(f"B = {size:5}: {found}", flush=True)


def take_turns(
    trainers: dict[str, st.Trainer], batches: list[st.data.Batch], steps: int
) -> dict[str, list[float]]:
    """Milliseconds of each step; the trainers alternate, so that a disturbance meets all."""
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for number in range(WARM + max(steps, 20)):
        for name, trainer in trainers.items():
            begin = time.perf_counter()
            trainer.step(batches[number % len(batches)])
            times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: taken[WARM:] for name, taken in times.items()}


def random_batch(rows: int, size: int, seed: int) -> st.data.Batch:
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((size, 13), dtype="f4")
    return st.data.Batch(dense, rng.integers(0, rows, (size, 26)), rng.random(size) < 0.25)


if __name__ == "__main__":
    main()
