# SPDX-License-Identifier: Apache-2.0
"""The ways to update one table: a rule table, one line each.

All start from the same thing, ids and the cotangent of what was looked up, and end with a table
that is written. A new arm is one entry of `ARMS`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparsetrain import runtime
from sparsetrain.compare import traffic
from sparsetrain.compare.batch import Batch
from sparsetrain.compare.case import Case
from sparsetrain.compare.stock import OPTIMIZERS as STOCK_OPTIMIZERS
from sparsetrain.compare.stock import StockUpdate
from sparsetrain.optim import OPTIMIZERS, Optimizer, TableUpdate
from sparsetrain.optim.rule import Mode

LEARNING_RATE = 0.01


class Taken(NamedTuple):
    """Seconds of a step, and of its second half, which writes; None where there is one half."""

    whole: float
    writes: float | None = None


Step = Callable[[Batch], Taken]


@dataclass(frozen=True)
class Arm:
    """One way to update a table.

    Parameters
    ----------
    name : str
        In options and results.
    label : str
        In pictures.
    dense : bool
        Whether its cost grows with the rows of the table.
    prepare : callable
        From a case to a function that takes one step and says how long it took.
    traffic : callable
        From a case and its unique rows to the bytes that a step must move.
    memory : callable
        From a case to the bytes that a step needs beside table and slots.
    why_not : callable
        From a case to the reason why this arm has nothing to measure, or None.
    elsewhere : callable, optional
        From a case and the ids of its steps to their seconds, for what runs in another process.
    """

    name: str
    label: str
    dense: bool
    prepare: Callable[[Case], Step]
    traffic: Callable[[Case, float], float]
    memory: Callable[[Case], int]
    why_not: Callable[[Case], str | None] = lambda case: None
    elsewhere: Callable[[Case, Sequence[np.ndarray]], list[float]] | None = None

    def needs(self, case: Case) -> int:
        """Bytes that a measurement holds at its peak."""
        return case.table_bytes + traffic.state_bytes(case) + self.memory(case)


def new_table(case: Case) -> runtime.NDArray:
    """A table whose memory is there: pages that were never written are no pages."""
    return runtime.zeros((case.rows, case.width), "float32", f"a table of {case.rows:,} rows")


def optimizer_of(case: Case) -> Optimizer:
    """The formula of a case, with the numbers that all arms use."""
    return OPTIMIZERS[case.formula](LEARNING_RATE)


def _stock(case: Case) -> Step:
    return _timed(StockUpdate(case, new_table(case)))


def _fair_dense(case: Case) -> Step:
    update = TableUpdate(optimizer_of(case), new_table(case), "dense", "dense")
    return _timed(lambda batch: update(batch.gradient))


def _row_sparse(mode: Mode) -> Callable[[Case], Step]:
    def prepare(case: Case) -> Step:
        return Halves(TableUpdate(optimizer_of(case), new_table(case), "sparse", mode))

    return prepare


@dataclass(frozen=True)
class Halves:
    """A step of `update`, and how long both of its halves took."""

    update: TableUpdate

    def __call__(self, batch: Batch) -> Taken:
        """Take it."""
        begin = time.perf_counter()
        ready = self.update.prepare(batch.gradient)
        planned = time.perf_counter()
        ready.finish_()
        end = time.perf_counter()
        return Taken(end - begin, end - planned)


def _timed(update: Callable[[Batch], object]) -> Step:
    def step(batch: Batch) -> Taken:
        begin = time.perf_counter()
        update(batch)
        return Taken(time.perf_counter() - begin)

    return step


def _stock_lacks(case: Case) -> str | None:
    known = case.formula in STOCK_OPTIMIZERS
    return None if known else f"TVM's relax.training has no {case.formula}"


def _exact_is_lazy(case: Case) -> str | None:
    if traffic.formula_of(case).noop_on_zero_grad != "always":
        return None
    return f"{case.formula}: lazy is exact, a gradient of 0 changes nothing"


ARMS = {
    arm.name: arm
    for arm in (
        Arm(
            *("stock", "TVM stock dense", True, _stock),
            *(traffic.stock_traffic, traffic.stock_memory, _stock_lacks),
        ),
        Arm(
            *("dense", "fair dense", True, _fair_dense),
            *(traffic.dense_traffic, traffic.dense_memory),
        ),
        Arm(
            *("sparse", "row-sparse", False, _row_sparse("lazy")),
            *(traffic.sparse_traffic, traffic.sparse_memory),
        ),
        Arm(
            *("exact", "row-sparse, exact", False, _row_sparse("exact")),
            *(traffic.sparse_traffic, traffic.sparse_memory, _exact_is_lazy),
        ),
    )
}
