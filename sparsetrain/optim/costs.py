# SPDX-License-Identifier: Apache-2.0
"""What the two paths of a row-sparse gradient cost on this machine: measured once, then remembered.

Both are straight lines. The sparse path: a fixed cost, and one for each looked-up id (sorting,
summing, a row to read and write). The dense path: a fixed cost, one for each id of the gradient
(parting), one for each of a dense row (adding, clearing), and one for each row of the table.

Measuring takes about 20 ms besides compiling. The figures are kept in the folder of compiled
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
from math import isfinite
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

FEW, MANY = 64, 4096  # ids of a step
LOW, HIGH = 4096, 32_768  # rows of a table
REPEATS = 9


class Costs(NamedTuple):
    """Microseconds.

    Parameters
    ----------
    sparse, dense : float
        Of a step at all, by each path.
    entry : float
        Of an id on the sparse path.
    part, add : float
        Of an id of any row, and of one of a dense row, where there is a dense path.
    row : float
        Of a row on the dense path.
    """

    sparse: float
    dense: float
    entry: float
    part: float
    add: float
    row: float

    def saved(self, rows: int, lookups: float) -> float:
        """Microseconds that a table of some rows saves on the dense path, fixed costs apart."""
        return (self.entry - self.add) * lookups - self.row * rows


_known: dict[tuple[Recipe, int, str, int], Costs] = {}


def costs_of(rule: Rule, width: int, dtype: str) -> Costs:
    """Costs of a formula at a width: as measured before, in this process or another, or now."""
    key = rule.recipe, width, dtype, runtime.num_threads()
    if key not in _known:
        place = programs.folder()
        file = None if place is None else place / f"costs-{_digest(*key)}.json"
        found = None if file is None else _read(file)
        if found is None:
            found = measure(rule, width, dtype)
            if file is not None:
                _write(file, found)
        _known[key] = found
    return _known[key]


def measure(rule: Rule, width: int, dtype: str) -> Costs:
    """Time both paths on tables that are small enough for the choice to matter.

    The least of several times counts: what else runs on the machine only adds.
    """
    few, many = (_Trial(rule, width, dtype, LOW, ids) for ids in (FEW, MANY))
    high = _Trial(rule, width, dtype, HIGH, FEW)
    works: list[Callable[[], object]] = [
        *(few.sparse_, many.sparse_, few.dense_, many.dense_, high.dense_, few.split, many.split)
    ]
    rounds = [_times(works) for _ in range(REPEATS)]
    least = [1e6 * min(seconds) for seconds in zip(*rounds, strict=True)]
    sparse_few, sparse_many, dense_few, dense_many, dense_high, split_few, split_many = least
    entry, both, part = (
        max(large - small, 0.0) / (MANY - FEW)
        for small, large in (
            (sparse_few, sparse_many),
            (dense_few, dense_many),
            (split_few, split_many),
        )
    )
    row = max(dense_high - dense_few, 0.0) / (HIGH - LOW)
    return Costs(
        sparse=max(sparse_few - entry * FEW, 0.0),
        dense=max(dense_few - both * FEW - row * LOW, 0.0),
        entry=entry,
        part=part,
        add=max(both - part, 0.0),
        row=row,
    )


class _Trial:
    """A table that both paths update."""

    def __init__(self, rule: Rule, width: int, dtype: str, rows: int, ids: int) -> None:
        rng = np.random.default_rng(0)
        weight = runtime.zeros((rows, width), dtype)
        self.target = Target(weight, new_slots("a table to measure", rule.formula, weight))
        values = np.zeros((ids, width), dtype)
        indices = rng.integers(0, rows, ids, dtype=np.int32)
        self.gradient = RowSparse.from_numpy(indices, values, rows)
        self.rule = rule
        self.path = DensePath([Range(("a table to measure",), 0, rows, rule)], width, dtype)
        clip = () if rule.clip_value is None else (rule.clip_value,)
        self.scalars = (*rule.numbers(1), *(1.0,) * rule.scaled, *clip)

    def sparse_(self) -> None:
        plan = self.gradient.plan()
        span = (0, plan.num_unique)
        update_rows_(self.target, self.gradient, plan, self.rule, self.scalars, span, None)

    def dense_(self) -> None:
        near, _ = self.path.split(self.gradient)
        self.path.update_(self.target, near, lambda rule: self.scalars)

    def split(self) -> None:
        self.path.split(self.gradient)


def _times(works: Sequence[Callable[[], object]]) -> list[float]:
    """Seconds of each, called a second time after one that warms the caches."""
    seconds = []
    for work in works:
        work()
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return seconds


def _digest(recipe: Recipe, width: int, dtype: str, threads: int) -> str:
    """Names the file; a formula counts with the code of its step."""
    formula = recipe.formula
    slots = [tuple(slot) for slot in formula.slots]
    described = (formula.name, slots, recipe.scalars, width, dtype, threads)
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
