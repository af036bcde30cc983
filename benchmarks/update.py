# SPDX-License-Identifier: Apache-2.0
"""Whether `update="auto"` is as fast as the better of the two ways that it chooses from.

    python benchmarks/update.py                      # each table of Criteo Kaggle by itself
    python benchmarks/update.py --whole              # all 26 in one storage, as a DLRM has them
    python benchmarks/update.py --target cuda        # gpu.py rows and flat at width 16: see there

Tables have the rows of Criteo Kaggle and width 16, ids follow a Zipf law (as in step.py), batches
rotate. A time is that of one `apply_` without the check for NaN; coalescing is in it. The ways take
turns of a few steps, in one order and then the other, so that a disturbance meets all and `sparse`
follows `dense` as often as `auto` does. They are compared within a round, as the machine may be
another one a moment later: the ratio to a way is the median of the rounds' ratios. A machine that
others use changes every few tenths of a second, so a table is visited for four rounds at a time,
all tables in turn, until the ratio is known to `WIDE` and known to lie on one side of `LIMIT`, each
visit with what it keeps between steps at another of a few places in memory: two that run the same
code were up to 8 % apart by their places alone. Beside it stand the 2.5th and 97.5th percentile of
what resampled visits give. For a table by itself `auto` runs the code of one of the forced ways, so
its ratio to that way is noise; what the choice costs is `choice`, the forced way that it took
beside the better one. What is above `--most-rows` is not updated densely: the buffer would take as
much memory as the table, and the outcome is known.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
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
VISIT = (1, -1, -1, 1)  # rounds of a visit: steps from one way to the next
WIDE = 0.03  # of the ratio's interval
MOST = 10  # times the wanted steps
RESAMPLED = 400
PLACES = 7  # in memory, of what a way keeps between steps
WAYS = ("sparse", "dense", "auto")
LIMIT = 1.05  # what auto may take of the better of the others
MAKERS = {"sgd": optim.sgd, "adagrad": optim.adagrad, "rowwise_adagrad": optim.rowwise_adagrad}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--optimizer", choices=MAKERS, default="sgd")
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 2048, 16_384])
    parser.add_argument("--steps", type=int, default=120, help="least steps of each way")
    parser.add_argument("--most-rows", type=int, default=300_000)
    parser.add_argument("--whole", action="store_true", help="one storage of all tables")
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    chosen = parser.parse_args()
    if chosen.target == "cuda":
        return on_cuda(chosen, parser)
    measure = whole if chosen.whole else apart
    for size in chosen.batch:
        ids = [b.ids for b in make_batches(Config(KAGGLE_ROWS, WIDTH, (), ()), size, BATCHES)]
        contests = list(measure(MAKERS[chosen.optimizer](0.01), ids, chosen))
        while some := [each for each in contests if each.is_open(chosen.steps)]:
            for contest in some:
                contest.visit()
        report(chosen.optimizer, size, [contest.case() for contest in contests])
    return 0


def on_cuda(chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """A device always takes the sparse way; its cost is measured by `gpu.py`."""
    given = [name for name, value in vars(chosen).items() if value != parser.get_default(name)]
    if given != ["target"]:
        parser.error("--target cuda has no further options: see gpu.py rows and gpu.py flat")
    return max(gpu.main([measure, f"--width={WIDTH}"]) for measure in ("rows", "flat"))


class Ratio(NamedTuple):
    """How many times as long as the better forced way something took, and how sure that is."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"

    @property
    def verdict(self) -> str:
        """On which side of the limit it lies."""
        if self.high <= LIMIT:
            return "within"
        return "BEYOND" if self.low > LIMIT else "NOT KNOWN to be within"


class Case(NamedTuple):
    """Median microseconds of each way, which tables auto updates densely, and what that cost.

    `auto` and `choice` are the ratios of auto, and of the forced way that it took, if it took one.
    """

    label: str
    times: dict[str, float]
    dense: str
    auto: Ratio
    choice: Ratio | None


def apart(
    optimizer: optim.Optimizer, ids: Sequence[np.ndarray], chosen: argparse.Namespace
) -> Iterator[Contest]:
    """Each table by itself."""
    for table in np.argsort(KAGGLE_ROWS, kind="stable"):
        rows = KAGGLE_ROWS[table]
        weight = runtime.zeros((rows, WIDTH), "float32")
        label = f"C{table + 1}, {rows:,} rows"
        columns = [batch[:, table] for batch in ids]
        tables = {label: slice(0, rows)}
        ways = WAYS if rows <= chosen.most_rows else ("sparse", "auto")
        yield Contest(label, optimizer, ways, (weight, tables), columns)


def whole(
    optimizer: optim.Optimizer, ids: Sequence[np.ndarray], chosen: argparse.Namespace
) -> Iterator[Contest]:
    """All tables in one storage, as a model has them."""
    names = [f"C{n}" for n in range(1, 1 + len(KAGGLE_ROWS))]
    sizes = zip(names, KAGGLE_ROWS, strict=True)
    collection = EmbeddingBagCollection([Table(name, rows, WIDTH) for name, rows in sizes])
    slices = collection.slices()
    tables = {name: slices[name][1] for name in sorted(names, key=lambda n: slices[n][1].start)}
    weight = runtime.zeros((sum(KAGGLE_ROWS), WIDTH), "float32")
    rows = [collection.locate(batch)[WIDTH][0] for batch in ids]
    yield Contest("26 tables", optimizer, ("sparse", "auto"), (weight, tables), rows)


class Contest:
    """The ways to update one storage, timed by turns; the last of them is auto."""

    def __init__(
        self,
        label: str,
        optimizer: optim.Optimizer,
        ways: Sequence[str],
        storage: tuple[NDArray, dict[str, slice]],
        ids: Sequence[np.ndarray],
    ) -> None:
        weight, tables = storage
        self.label, self.ways = label, ways
        gradients = [gradient_of(batch, int(weight.shape[0]), n) for n, batch in enumerate(ids)]
        self._gradients = cycle(gradients)
        self._updates = [Update(optimizer, way, weight, tables) for way in ways]
        others = [
            [Update(optimizer, way, weight, tables) for way in ways] for _ in range(PLACES - 1)
        ]
        self._places = cycle([self._updates, *others])
        self._visits: list[list[list[float]]] = []  # microseconds of each way's turn in each round

    def visit(self) -> None:
        """Take some rounds."""
        rounds, updates = [], next(self._places)
        for step in VISIT:
            order = range(len(self.ways))[::step]
            times = {way: self._turn(updates[way]) for way in order}
            rounds.append([times[way] for way in range(len(self.ways))])
        self._visits.append(rounds)

    def _turn(self, update: Update) -> float:
        taken = []
        for _ in range(WARM + TURN):
            gradient = next(self._gradients)
            begin = time.perf_counter()
            update(gradient)
            taken.append(time.perf_counter() - begin)
        return 1e6 * float(np.median(taken[WARM:]))

    def is_open(self, steps: int) -> bool:
        """Whether more visits would tell more; `steps` is the least number of each way."""
        done = TURN * len(VISIT) * len(self._visits)
        if done < steps or done >= MOST * steps:
            return done < steps
        auto = self._ratio(len(self.ways) - 1)
        return auto.high - auto.low >= WIDE or auto.low <= LIMIT < auto.high

    def case(self) -> Case:
        """What was found."""
        medians = np.median(self._visits, axis=(0, 1))
        shown = dict(zip(self.ways, map(float, medians), strict=True))
        dense = self._updates[-1].dense
        took = {"-": "sparse", self.label.split(",")[0]: "dense"}.get(dense)
        choice = self._ratio(self.ways.index(took)) if took in self.ways else None
        return Case(self.label, shown, dense, self._ratio(len(self.ways) - 1), choice)

    def _ratio(self, way: int) -> Ratio:
        """Of a way to the better of the forced ones."""
        visits = np.array(self._visits)  # (visits, rounds, ways)
        ratios = visits[..., way, None] / visits[..., :-1]

        def worst(some: np.ndarray) -> np.ndarray:
            rounds = some.reshape(*some.shape[:-3], -1, some.shape[-1])
            return np.median(rounds, axis=-2).max(axis=-1)

        drawn = np.random.default_rng(0).integers(0, len(ratios), (RESAMPLED, len(ratios)))
        low, high = np.percentile(worst(ratios[drawn]), [2.5, 97.5])
        return Ratio(float(worst(ratios)), float(low), float(high))


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
    return RowSparse(runtime.as_tensor(ids.ravel(), "int32"), values_of(ids.size, seed), rows)


@lru_cache(maxsize=BATCHES)
def values_of(count: int, seed: int) -> NDArray:
    """Value rows; all tables share them."""
    drawn = np.random.default_rng(seed).standard_normal((count, WIDTH), dtype="f4")
    return runtime.as_tensor(drawn)


def report(name: str, size: int, cases: Sequence[Case]) -> None:
    print(
        f"\n{name}, B = {size:,}, width {WIDTH}, {runtime.num_threads()} threads: median us a step"
    )
    head = "".join(f"{way:>9}" for way in WAYS)
    print(f"{'':24}{head}  auto / better (95 %)    choice                   dense in auto")
    for case in cases:
        shown = {way: f"{micro:.1f}" for way, micro in case.times.items()}
        cells = "".join(f"{shown.get(way, '-'):>9}" for way in WAYS)
        print(f"{case.label:24}{cells}  {case.auto!s:24}{case.choice or '-'!s:24} {case.dense}")
    worst = max(cases, key=lambda case: case.auto.value)
    print(f"worst: {worst.label}, {worst.auto} of the better, {worst.auto.verdict} {LIMIT}")
    for verdict in ("BEYOND", "NOT KNOWN to be within"):
        found = [case.label for case in cases if case.auto.verdict == verdict]
        print(f"{verdict} {LIMIT}: {'; '.join(found) or 'none'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
