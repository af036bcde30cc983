# SPDX-License-Identifier: Apache-2.0
"""Whether `update="auto"` is as fast as the better of the two ways that it chooses from.

    python benchmarks/update.py                      # each table of Criteo Kaggle by itself
    python benchmarks/update.py --whole              # all 26 in one storage, as a DLRM has them
    python benchmarks/update.py --target cuda        # gpu.py rows and flat at width 16: see there

Tables have the rows of Criteo Kaggle and width 16, ids follow a Zipf law (as in step.py), batches
rotate. A time is that of one `apply_` without the check for NaN; coalescing is in it. The ways take
turns of a few steps, in one order and then the other, so that a disturbance meets all and `sparse`
follows `dense` as often as `auto` does, until the ratio is known to `WIDE`; beside it stand the
2.5th and 97.5th percentile of what resampled rounds give. For a table by itself `auto` runs the
code of one of the forced ways, so its ratio to that way is noise; what the choice costs is
`choice`, the forced way that it took beside the better one. What is above `--most-rows` is not
updated densely: the buffer would take as much memory as the table, and the outcome is known.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
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
WARM, TURN = 2, 3  # steps of a turn: not measured, because another way was there before; measured
WIDE = 0.03  # of the ratio's interval
MOST = 10  # times the wanted steps
RESAMPLED = 400
WAYS = ("sparse", "dense", "auto")
LIMIT = 1.05  # what auto may take of the better of the others
MAKERS = {"sgd": optim.sgd, "adagrad": optim.adagrad, "rowwise_adagrad": optim.rowwise_adagrad}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--optimizer", choices=MAKERS, default="sgd")
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 2048, 16_384])
    parser.add_argument("--steps", type=int, default=60, help="least steps of each way")
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
    """Median microseconds of each way, and which tables auto updates densely.

    `ratio` is that of auto to the better of the forced ways, `low` and `high` its interval.
    """

    label: str
    times: dict[str, float]
    dense: str
    ratio: float
    low: float
    high: float

    @property
    def choice(self) -> float | None:
        """Of the forced way that auto took to the better one, where it took one."""
        forced = {way: self.times[way] for way in WAYS[:2] if way in self.times}
        took = {"-": "sparse", self.label.split(",")[0]: "dense"}.get(self.dense)
        return forced[took] / min(forced.values()) if took in forced else None


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
    rounds: list[list[float]] = []  # microseconds of each way in its turn
    orders = cycle((range(len(ways)), range(len(ways))[::-1]))
    number = 0
    while True:
        times = [0.0] * len(ways)
        for place in next(orders):
            taken = []
            for _ in range(WARM + TURN):
                number += 1
                begin = time.perf_counter()
                updates[ways[place]](gradients[number % len(gradients)])
                taken.append(time.perf_counter() - begin)
            times[place] = 1e6 * float(np.median(taken[WARM:]))
        rounds.append(times)
        steps_done = TURN * len(rounds)
        if steps_done < steps or len(rounds) % 10:
            continue
        ratio, low, high = interval(np.array(rounds))
        if high - low < WIDE or steps_done >= MOST * steps:
            break
    medians = np.median(rounds, axis=0)
    shown = dict(zip(ways, map(float, medians), strict=True))
    return Case(label, shown, updates["auto"].dense, ratio, low, high)


def interval(rounds: np.ndarray) -> tuple[float, float, float]:
    """Of rounds (R, ways), auto last: its ratio to the better of the others, and how sure it is."""

    def ratio(some: np.ndarray) -> np.ndarray:
        medians = np.median(some, axis=-2)
        return medians[..., -1] / medians[..., :-1].min(axis=-1)

    drawn = np.random.default_rng(0).integers(0, len(rounds), (RESAMPLED, len(rounds)))
    low, high = np.percentile(ratio(rounds[drawn]), [2.5, 97.5])
    return float(ratio(rounds)), float(low), float(high)


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
    head = "".join(f"{way:>9}" for way in WAYS)
    print(f"{'':24}{head}  auto / better (95 %)   choice  dense in auto")
    for case in cases:
        shown = {way: f"{micro:.1f}" for way, micro in case.times.items()}
        cells = "".join(f"{shown.get(way, '-'):>9}" for way in WAYS)
        known = f"{case.ratio:8.3f} ({case.low:.3f} to {case.high:.3f})"
        choice = "-" if case.choice is None else f"{case.choice:.3f}"
        print(f"{case.label:24}{cells}{known}{choice:>8}  {case.dense}")
    worst = max(cases, key=lambda case: case.ratio)
    verdict = "within" if worst.ratio <= LIMIT else "BEYOND"
    print(
        f"worst: {worst.label}, {worst.ratio:.3f} ({worst.low:.3f} to {worst.high:.3f}) of the "
        f"better, {verdict} {LIMIT}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
