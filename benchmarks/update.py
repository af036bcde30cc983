# SPDX-License-Identifier: Apache-2.0
"""Exact mode by touched rows against every row: the crossing, `most_weights_dense` of the CPU.

    python benchmarks/update.py                            # Adam, uniform ids
    python benchmarks/update.py --optimizer momentum --skew zipf

One table is trained for some steps (catch up, then `apply_`) with `update="sparse"` and
`update="dense"`, which give the same bits. The two take turns of a few steps, in one order and then
the other; printed are the medians of the turns, in microseconds a step, and the median ratio of
neighbouring turns. Before the first turn enough steps run for most rows to have been touched, since
only touched rows have steps to replay.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from itertools import cycle

import numpy as np

from sparsetrain import optim, runtime
from sparsetrain.sparse_tensor import RowSparse

BATCHES, TURN, TURNS = 64, 8, 12
MOST_WARM_UP = 1000  # steps
MAKERS = {"adam": optim.adam, "momentum": optim.momentum, "rmsprop": optim.rmsprop}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--optimizer", choices=MAKERS, default="adam")
    parser.add_argument("--skew", choices=("uniform", "zipf"), default="uniform")
    parser.add_argument("--ids", type=int, nargs="+", default=[128, 2048, 16_384])
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 3000, 30_000, 300_000])
    parser.add_argument("--width", type=int, default=16)
    options = parser.parse_args()
    make, width, skew = MAKERS[options.optimizer], options.width, options.skew
    print(f"{options.optimizer}, {skew}, width {width}, {runtime.num_threads()} threads")
    print(f"{'ids':>8}{'rows':>10}{'sparse us':>11}{'dense us':>10}{'sparse / dense':>16}")
    for count in options.ids:
        for rows in options.rows:
            sparse, dense, ratio = compare(make, (rows, width), count, skew)
            print(f"{count:8,}{rows:10,}{sparse:11.1f}{dense:10.1f}{ratio:16.2f}", flush=True)
    return 0


def compare(
    make: Callable[..., optim.Optimizer], shape: tuple[int, int], count: int, skew: str
) -> tuple[float, float, float]:
    """Median microseconds of a sparse and of a dense step, and the median ratio of the turns."""
    gradients = [gradient_of(shape, count, skew, seed) for seed in range(BATCHES)]
    tables = [Table(make(1e-3, mode="exact", update=u), shape) for u in ("sparse", "dense")]
    for table in tables:
        for step in range(min(MOST_WARM_UP, 3 * shape[0] // count + BATCHES)):
            table.step(gradients[step % BATCHES])
    times = []
    draws = cycle(gradients)
    for turn in range(TURNS):
        some = [next(draws) for _ in range(TURN)]
        order = (0, 1) if turn % 2 == 0 else (1, 0)
        taken = {which: turn_of(tables[which], some) for which in order}
        times.append((taken[0], taken[1]))
    both = 1e6 * np.array(times)
    return *np.median(both, axis=0), float(np.median(both[:, 0] / both[:, 1]))


def turn_of(table: Table, gradients: list[RowSparse]) -> float:
    """Seconds of a step, over some."""
    begin = time.perf_counter()
    for gradient in gradients:
        table.step(gradient)
    return (time.perf_counter() - begin) / len(gradients)


class Table:
    """A table, its optimizer and its state."""

    def __init__(self, optimizer: optim.Optimizer, shape: tuple[int, int]) -> None:
        self.optimizer = optimizer
        self.params = {"t": runtime.zeros(shape, "float32")}
        self.state = optimizer.init(self.params, {"t": {"t": slice(0, shape[0])}})

    def step(self, gradient: RowSparse) -> None:
        """Read the rows, then update."""
        self.optimizer.catch_up_(self.params, {"t": gradient.indices}, self.state)
        self.optimizer.apply_(self.params, {"t": gradient}, self.state)


def gradient_of(shape: tuple[int, int], count: int, skew: str, seed: int) -> RowSparse:
    rows, width = shape
    rng = np.random.default_rng(seed)
    drawn = rng.zipf(1.05, count) * 7919 if skew == "zipf" else rng.integers(0, rows, count)
    values = rng.standard_normal((count, width), dtype="f4")
    return RowSparse.from_numpy((drawn % rows).astype("i4"), values, rows)


if __name__ == "__main__":
    sys.exit(main())
