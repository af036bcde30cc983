# SPDX-License-Identifier: Apache-2.0
"""What the two paths of a row-sparse gradient cost on this machine: measured once, then remembered.

Both are straight lines. The sparse path: a fixed cost, one for each looked-up id (sorting, summing)
and one for each distinct row (to read and write). The dense path: a fixed cost, one for each id of
the gradient (parting), one for each of a dense row (adding, clearing), and one for each row of the
table. How many rows are distinct is reckoned from ids that are drawn evenly.

Measuring takes about 50 ms besides compiling. The figures are kept in the folder of compiled
programs, by machine, threads, formula, width and the sources of this package; delete the folder and
they are measured anew. They decide speed, never bits.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import cycle
from math import expm1, isfinite
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparsetrain import cache as programs
from sparsetrain import runtime
from sparsetrain.optim.apply import Target, update_rows_
from sparsetrain.optim.dense_path import DensePath
from sparsetrain.optim.group import Range
from sparsetrain.optim.recipe import Recipe
from sparsetrain.optim.rule import Rule
from sparsetrain.optim.state import new_slots
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.sparse_tensor.coalesce import make_plan

FEW, MANY = 64, 16_384  # ids of a step
LOW, HIGH = 4096, 32_768  # rows of a table
HOT = 64  # distinct rows, where they are few
BATCHES = 4  # gradients that take turns, so that branches are not learnt by heart
REPEATS = 12
MOST_BITS = 31  # of an int32 id


class Costs(NamedTuple):
    """Microseconds.

    Parameters
    ----------
    sparse, dense : float
        Of a step at all, by each path.
    entry, touched : float
        Of an id and of a distinct row on the sparse path.
    part, add : float
        Of an id of any row, and of one of a dense row, where there is a dense path.
    row : float
        Of a row on the dense path.
    """

    sparse: float
    dense: float
    entry: float
    touched: float
    part: float
    add: float
    row: float

    def saved(self, rows: int, lookups: float) -> float:
        """Microseconds that a table of some rows saves on the dense path, fixed costs apart."""
        sparse = self.entry * lookups + self.touched * distinct_rows(rows, lookups)
        return sparse - self.add * lookups - self.row * rows


def distinct_rows(rows: int, lookups: float) -> float:
    """How many rows are drawn at least once, on average, if all are equally likely."""
    return -rows * expm1(-lookups / rows) if rows else 0.0


_known: dict[tuple[Recipe, int, str, int, int], Costs] = {}


def costs_of(rule: Rule, width: int, dtype: str, rows: int) -> Costs:
    """Costs of a formula, at a width, in a storage of some rows: as measured before, or now."""
    # Ids are sorted by the bits of the storage's rows.
    bits = min(rows.bit_length(), MOST_BITS)
    key = rule.recipe, width, dtype, bits, runtime.num_threads()
    if key not in _known:
        place = programs.folder()
        file = None if place is None else place / f"costs-{_digest(*key)}.json"
        found = None if file is None else _read(file)
        if found is None:
            found = measure(rule, width, dtype, bits)
            if file is not None:
                _write(file, found)
        _known[key] = found
    return _known[key]


def measure(rule: Rule, width: int, dtype: str, bits: int) -> Costs:
    """Time both paths on tables that are small enough for the choice to matter.

    The quarter of the times that is below the rest counts: what else runs only adds.
    """
    storage = 2**bits - 1
    low = min(LOW, storage)
    some = min(HOT, low)
    few, many = (_Trial(rule, width, dtype, storage, low, ids, low) for ids in (FEW, MANY))
    hot = _Trial(rule, width, dtype, storage, low, MANY, some)
    high = _Trial(rule, width, dtype, HIGH, HIGH, FEW, HIGH)
    works: list[Callable[[], object]] = [
        *(few.sparse_, hot.sparse_, many.sparse_),
        *(few.dense_, many.dense_, high.dense_, few.split, many.split),
    ]
    rounds = [_times(works) for _ in range(REPEATS)]
    seconds = [1e6 * float(np.quantile(times, 0.25)) for times in zip(*rounds, strict=True)]
    sparse_few, sparse_hot, sparse_many, dense_few, dense_many, dense_high, *splits = seconds
    ids = MANY - FEW
    distinct = [distinct_rows(n, ids) for n, ids in ((low, FEW), (some, MANY), (low, MANY))]
    touched = max(sparse_many - sparse_hot, 0.0) / max(distinct[2] - distinct[1], 1.0)
    entry = max(sparse_hot - sparse_few + touched * (distinct[0] - distinct[1]), 0.0) / ids
    both, part = max(dense_many - dense_few, 0.0) / ids, max(splits[1] - splits[0], 0.0) / ids
    row = max(dense_high - dense_few, 0.0) / (HIGH - low)
    return Costs(
        sparse=max(sparse_few - entry * FEW - touched * distinct[0], 0.0),
        dense=max(dense_few - both * FEW - row * low, 0.0),
        entry=entry,
        touched=touched,
        part=part,
        add=max(both - part, 0.0),
        row=row,
    )


class _Trial:
    """A table of some rows that both paths update, its ids sorted as those of a storage."""

    def __init__(
        self,
        rule: Rule,
        width: int,
        dtype: str,
        storage: int,
        rows: int,
        ids: int,
        distinct: int,
    ) -> None:
        self.storage = storage
        rng = np.random.default_rng(0)
        weight = runtime.zeros((rows, width), dtype)
        self.target = Target(weight, new_slots("a table to measure", rule.formula, weight))
        indices = rng.integers(0, distinct, (BATCHES, ids), dtype=np.int32) * (rows // distinct)
        values = np.zeros((ids, width), dtype)
        self.gradients = cycle([RowSparse.from_numpy(batch, values, rows) for batch in indices])
        self.rule = rule
        self.path = DensePath([Range(("a table to measure",), 0, rows, rule)], width, dtype)
        clip = () if rule.clip_value is None else (rule.clip_value,)
        self.scalars = (*rule.numbers(1), *(1.0,) * rule.scaled, *clip)

    def sparse_(self) -> None:
        gradient = next(self.gradients)
        plan = make_plan(gradient.indices, self.storage)
        span = (0, plan.num_unique)
        update_rows_(self.target, gradient, plan, self.rule, self.scalars, span, None)

    def dense_(self) -> None:
        near, _ = self.path.split(next(self.gradients))
        self.path.update_(self.target, near, lambda rule: self.scalars)

    def split(self) -> None:
        self.path.split(next(self.gradients))


def _times(works: Sequence[Callable[[], object]]) -> list[float]:
    """Seconds of each, called a second time after one that warms the caches."""
    seconds = []
    for work in works:
        work()
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return seconds


def _digest(recipe: Recipe, width: int, dtype: str, bits: int, threads: int) -> str:
    """Names the file; a formula counts with the code of its step."""
    formula = recipe.formula
    slots = [tuple(slot) for slot in formula.slots]
    described = (formula.name, slots, recipe.scalars, width, dtype, bits, threads)
    code = getattr(getattr(formula.step, "__code__", None), "co_code", b"")
    whole = hashlib.sha256(repr(described).encode() + code + programs.machine_digest().encode())
    return whole.hexdigest()[:32]


def _read(file: Path) -> Costs | None:
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads(file.read_text())
        costs = Costs(**{name: float(found[name]) for name in Costs._fields})
        if all(isfinite(value) and value >= 0 for value in costs):
            return costs
    return None


def _write(file: Path, costs: Costs) -> None:
    with suppress(OSError), tempfile.TemporaryDirectory(dir=file.parent) as draft:
        drafted = Path(draft) / file.name
        drafted.write_text(json.dumps(costs._asdict()))
        drafted.replace(file)
