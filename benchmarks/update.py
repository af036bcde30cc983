# SPDX-License-Identifier: Apache-2.0
"""Whether `update="auto"` is as fast as the better of the two ways that it chooses from.

    python benchmarks/update.py                      # each table of Criteo Kaggle by itself
    python benchmarks/update.py --whole              # all 26 in one storage, as a DLRM has them
    python benchmarks/update.py --target cuda        # gpu.py rows and flat at width 16: see there

Tables have the rows of Criteo Kaggle and width 16, ids follow a Zipf law (as in step.py), batches
rotate. A time is that of one `apply_` without the check for NaN; coalescing is in it. The ways take
turns of some steps, in every order, so that a disturbance meets all. What is above `--most-rows` is
not updated densely: the buffer would take as much memory as the table, and the outcome is known.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, permutations
from typing import NamedTuple

import gpu
import numpy as np
from harness.batches import make_batches
from harness.configs import KAGGLE_ROWS, Config

from sparsetrain import optim, runtime
from sparsetrain.embedding import EmbeddingBagCollection, Table
from sparsetrain.optim.step import Step
from sparsetrain.runtime import NDArray
from sparsetrain.sparse_tensor import RowSparse

WIDTH, BATCHES = 16, 17
WARM, TURN = 3, 8  # steps of a turn: not measured, because another way was there before; measured
WAYS = ("sparse", "dense", "auto")
LIMIT = 1.05  # what auto may take of the better of the others
MAKERS = {"sgd": optim.sgd, "adagrad": optim.adagrad, "rowwise_adagrad": optim.rowwise_adagrad}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--optimizer", choices=MAKERS, default="sgd")
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 2048, 16_384])
    parser.add_argument("--steps", type=int, default=60, help="measured steps of each way")
    parser.add_argument("--most-rows", type=int, default=300_000)
    parser.add_argument("--whole", action="store_true", help="one storage of all tables")
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    chosen = parser.parse_args()
    if chosen.target == "cuda":
        return on_cuda(chosen, parser)
    measure = whole if chosen.whole else apart
    for size in chosen.batch:
        ids = [b.ids for b in make_batches(Config(KAGGLE_ROWS, WIDTH, (), ()), size, BATCHES)]
        found = [case for case in measure(MAKERS[chosen.optimizer](0.01), ids, chosen)]
        report(chosen.optimizer, size, found)
    return 0


def on_cuda(chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """A device always takes the sparse way; its cost is measured by `gpu.py`."""
    given = [name for name, value in vars(chosen).items() if value != parser.get_default(name)]
    if given != ["target"]:
        parser.error("--target cuda has no further options: see gpu.py rows and gpu.py flat")
    return max(gpu.main([measure, f"--width={WIDTH}"]) for measure in ("rows", "flat"))


class Case(NamedTuple):
    """Median microseconds of each way, and how many tables auto updates densely."""

    label: str
    times: dict[str, float]
    dense: str

    @property
    def ratio(self) -> float:
        """Of auto to the better of the forced ways."""
        return self.times["auto"] / min(self.times[way] for way in WAYS[:2] if way in self.times)


def apart(
    optimizer: optim.Optimizer, ids: Sequence[np.ndarray], chosen: argparse.Namespace
) -> Iterator[Case]:
    """Each table by itself."""
    for table in np.argsort(KAGGLE_ROWS, kind="stable"):
        rows = KAGGLE_ROWS[table]
        weight = runtime.zeros((rows, WIDTH), "float32")
        label = f"C{table + 1}, {rows:,} rows"
        columns = [batch[:, table] for batch in ids]
        tables = {label: slice(0, rows)}
        ways = WAYS if rows <= chosen.most_rows else ("sparse", "auto")
        yield compare(label, optimizer, ways, (weight, tables), columns, chosen.steps)


def whole(
    optimizer: optim.Optimizer, ids: Sequence[np.ndarray], chosen: argparse.Namespace
) -> Iterator[Case]:
    """All tables in one storage, as a model has them."""
    names = [f"C{n}" for n in range(1, 1 + len(KAGGLE_ROWS))]
    sizes = zip(names, KAGGLE_ROWS, strict=True)
    collection = EmbeddingBagCollection([Table(name, rows, WIDTH) for name, rows in sizes])
    slices = collection.slices()
    tables = {name: slices[name][1] for name in sorted(names, key=lambda n: slices[n][1].start)}
    weight = runtime.zeros((sum(KAGGLE_ROWS), WIDTH), "float32")
    rows = [collection.locate(batch)[WIDTH][0] for batch in ids]
    yield compare("26 tables", optimizer, ("sparse", "auto"), (weight, tables), rows, chosen.steps)


def compare(
    label: str,
    optimizer: optim.Optimizer,
    ways: Sequence[str],
    storage: tuple[NDArray, dict[str, slice]],
    ids: Sequence[np.ndarray],
    steps: int,
) -> Case:
    weight, tables = storage
    gradients = [gradient_of(batch, int(weight.shape[0]), n) for n, batch in enumerate(ids)]
    updates = {way: Update(optimizer, way, weight, tables) for way in ways}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    orders = cycle(permutations(ways))
    number = 0
    while len(seconds["auto"]) < steps:
        for way in next(orders):
            for turn in range(WARM + TURN):
                number += 1
                begin = time.perf_counter()
                updates[way](gradients[number % len(gradients)])
                if turn >= WARM:
                    seconds[way].append(time.perf_counter() - begin)
    times = {way: 1e6 * float(np.median(taken)) for way, taken in seconds.items()}
    return Case(label, times, updates["auto"].dense)


class Update:
    """A storage updated in one way; the ways share the weights and have slots of their own."""

    def __init__(
        self, optimizer: optim.Optimizer, way: str, weight: NDArray, tables: dict[str, slice]
    ) -> None:
        self.params = {"t": weight}
        self.state = replace(optimizer, update=way).init(self.params, {"t": tables})

    def __call__(self, gradient: RowSparse) -> None:
        Step(self.params, {"t": gradient}, self.state, 1.0, None).finish_()

    @property
    def dense(self) -> str:
        """The tables whose rows are all updated."""
        path = self.state.paths.get("t")
        if path is None:
            return "-"
        return ", ".join(name.split(",")[0] for part in path.parts for name in part.names)


def gradient_of(ids: np.ndarray, rows: int, seed: int) -> RowSparse:
    values = np.random.default_rng(seed).standard_normal((ids.size, WIDTH), dtype="f4")
    return RowSparse.from_numpy(ids.ravel().astype(np.int32), values, rows)


def report(name: str, size: int, cases: Sequence[Case]) -> None:
    print(
        f"\n{name}, B = {size:,}, width {WIDTH}, {runtime.num_threads()} threads: median us a step"
    )
    print(f"{'':24}{'sparse':>10}{'dense':>10}{'auto':>10}  auto / better  dense in auto")
    for case in cases:
        shown = {way: f"{micro:.1f}" for way, micro in case.times.items()}
        cells = "".join(f"{shown.get(way, '-'):>10}" for way in WAYS)
        print(f"{case.label:24}{cells}{case.ratio:15.2f}  {case.dense}")
    worst = max(cases, key=lambda case: case.ratio)
    verdict = "within" if worst.ratio <= LIMIT else "BEYOND"
    print(f"worst: {worst.label}, {worst.ratio:.2f} of the better, {verdict} {LIMIT}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
