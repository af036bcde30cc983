# SPDX-License-Identifier: Apache-2.0
"""Both paths of a row-sparse gradient on tables made for the purpose, and which one is faster.

`contest` lets two ways take turns and compares them round by round, so that whatever slows the
machine down slows both. But seldom by as much: what one thread does loses less to a neighbour than
what all cores share. Of a machine that others use there are several, which take over from each
other every few tenths of a second; on a Zen 3 a way was up to 13 % faster in the quiet tenth of all
time and up to 20 % slower in the rest. So all rounds count, and unless the machine is steady or the
difference large, they go on for a second. What is found is an interval.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from math import inf, sqrt
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from sparsetrain import runtime
from sparsetrain.kernels.table_formats import computed_in, is_half, keys_of
from sparsetrain.optim.group import Range
from sparsetrain.optim.paths import dense
from sparsetrain.optim.paths.dense import DensePath
from sparsetrain.optim.range_update import RowUpdate, Target, compile_row_update
from sparsetrain.optim.rule import Rule
from sparsetrain.optim.state import new_slots
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.sparse_tensor.coalesce import Sort, compile_sort, sort_variant

TURN = 3  # steps that are timed, after one that is not, because the other way was there before
FEWEST, LEAST = 3, 15  # rounds: of dear steps, of others
SETTLED = 6  # rounds in which none was quieter by more than `FALL`
FALL = 0.02
STEADY = 1.02  # times the quietest round, of a median one
CLOSE = 0.01  # of a step's time: a difference known to so much is known well enough
CLEAR = 0.25  # of a step's time: a difference that outlasts the moment
SECONDS = 1.0
NORMAL = 1.96  # standard deviations: 95 in 100

_NAME = ("a table to measure",)

Work = Callable[[], object]
Clock = Callable[[], float]


class Kind(NamedTuple):
    """What decides the kernels: formula, width, dtype, and rows by whose bits ids are sorted."""

    rule: Rule
    width: int
    dtype: str
    storage: int


class Trial:
    """A storage that both paths update.

    Parameters
    ----------
    kind : Kind
        What it is a stand-in for.
    near, far : int
        Rows that the dense path updates, and rows behind them that it does not.
    batches : sequence of (N,) int32
        Ids of some steps, which take turns, so that branches are not learnt by heart.
    """

    def __init__(self, kind: Kind, near: int, far: int, batches: Sequence[np.ndarray]) -> None:
        rule, width, dtype, self.storage = kind
        rows = near + far
        weight = runtime.zeros((rows, width), dtype, _NAME[0])
        self.target = Target(weight, new_slots(_NAME[0], rule.formula, weight))
        self.update_rows_ = RowUpdate(self.target, rule)
        values = np.zeros((len(batches[0]), width), computed_in(dtype))
        self.gradients = cycle([RowSparse.from_numpy(batch, values, rows) for batch in batches])
        sort = Sort(next(self.gradients).indices, self.storage)
        self._sort = sort if sort.is_small else None  # what a step keeps for the next one
        self.path = DensePath([Range(_NAME, 0, near, rule)], width, dtype)
        keys = keys_of(0, _NAME[0], 1) if is_half(dtype) else ()
        self.scalars = (*rule.scalars(rule.numbers(1), 1.0), *keys)

    def sparse_(self) -> None:
        """A step of which all rows take the sparse path."""
        gradient = next(self.gradients)
        self._rows_(gradient, self._sort or Sort(gradient.indices, self.storage))

    def dense_(self) -> None:
        """A step of which the near rows take the dense path."""
        near, rest = self.path.split(next(self.gradients))
        self.path.update_(self.target, near, lambda rule: self.scalars)
        if rest is not None:
            self._rows_(rest, Sort(rest.indices, self.storage))

    def split(self) -> None:
        """Part the entries of a step."""
        near, _ = self.path.split(next(self.gradients))
        self.path.release(near)

    def _rows_(self, gradient: RowSparse, sort: Sort) -> None:
        plan = sort(gradient.indices)
        self.update_rows_(gradient, plan, self.scalars, (0, plan.num_unique))


def kernels_of(kind: Kind, counts: Sequence[int]) -> list[partial[Any]]:
    """What has the kernels ready that trials of so many ids run, one by one."""
    recipe, index = kind.rule.recipe, "int32"
    sorts = {sort_variant(count, kind.storage, index) for count in counts}
    return [
        *(partial(compile_sort, variant) for variant in sorted(sorts)),
        partial(compile_row_update, recipe, kind.width, kind.dtype, index),
        *dense.kernels_of(recipe, kind.width, kind.dtype, index),
    ]


class Verdict(NamedTuple):
    """Microseconds that the second way saves: with 95 % the median lies from `low` to `high`.

    `waited` says how long threads waited for a core meanwhile, in seconds of each second.
    """

    low: float
    high: float
    waited: float = 0.0

    @property
    def saved(self) -> float:
        """The estimate."""
        return (self.low + self.high) / 2


def contest(first: Work, second: Work, clock: Clock = time.perf_counter) -> Verdict:
    """Compare two ways to do the same, until it is known which one is faster."""
    rounds: list[tuple[float, float]] = []
    quietest, since, enough, end = inf, 0, LEAST, clock() + SECONDS
    while True:
        turns = [(first, 0), (second, 1)][:: 1 if len(rounds) % 2 else -1]
        took = dict(sorted((way, _turn(work, clock)) for work, way in turns))
        rounds.append((took[0], took[1]))
        whole = sum(rounds[-1])
        since = 0 if whole < quietest * (1 - FALL) else since + 1
        quietest = min(quietest, whole)
        if clock() > end and len(rounds) >= FEWEST:
            return _verdict(rounds)
        if since >= SETTLED and len(rounds) >= enough:
            verdict = _verdict(rounds)
            if _is_known(verdict, quietest / 2, _spread(rounds)):
                return verdict
            enough = len(rounds) * 5 // 4  # to sort them all takes as long as some of them


def _turn(work: Work, clock: Clock) -> float:
    """Microseconds of a step."""
    work()
    times = []
    for _ in range(TURN):
        begin = clock()
        work()
        times.append(1e6 * (clock() - begin))
    return median(times)


def _verdict(rounds: Sequence[tuple[float, float]]) -> Verdict:
    """The median difference within a round, by order statistics: no law of the noise is assumed."""
    saved = sorted(first - second for first, second in rounds)
    rank = max(int((len(saved) - NORMAL * sqrt(len(saved))) / 2), 0)
    return Verdict(saved[rank], saved[-1 - rank])


def _spread(rounds: Sequence[tuple[float, float]]) -> float:
    """How many times as long as the quietest round the median one took."""
    wholes = sorted(map(sum, rounds))
    return max(median(wholes) / (wholes[0] or 1.0), 1.0)


def _is_known(verdict: Verdict, step: float, spread: float) -> bool:
    """Whether more rounds would not change the answer; `step` is the time of a quiet one."""
    low, high = verdict[:2]
    if spread < STEADY and (low > 0 or high < 0 or high - low < CLOSE * step):
        return True
    return low > CLEAR * step or high < -CLEAR * step
