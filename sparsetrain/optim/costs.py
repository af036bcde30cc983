# SPDX-License-Identifier: Apache-2.0
"""What the two paths of a row-sparse gradient cost on this machine: measured once, then remembered.

The sparse path: a fixed cost, one for each looked-up id (sorting, summing), one for each distinct
row (to read and write). The dense path: a fixed cost, one for each id of the gradient (parting),
one for each of a dense row (adding, clearing), and one for each row of the table. How many rows are
distinct is reckoned from ids that are drawn evenly. Two things bend the lines: few ids are sorted
by one thread and many by all, and rows cost more where the caches end. So there are figures for few
ids and for many, and a row beyond `HIGH_BYTES` of its table has a price of its own.

Measuring takes about 70 ms besides compiling. The figures are kept in the folder of compiled
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
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from sparsetrain import cache as programs
from sparsetrain import runtime
from sparsetrain.formats import computed_in, is_half, keys_of
from sparsetrain.optim.apply import RowUpdate, Target
from sparsetrain.optim.dense_path import DensePath
from sparsetrain.optim.group import Range
from sparsetrain.optim.recipe import Recipe
from sparsetrain.optim.rule import Rule
from sparsetrain.optim.state import new_slots
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.sparse_tensor.coalesce import SHARED_FROM, make_plan

IDS = {False: (64, 6144), True: (8192, 32_768)}  # of two steps; whether all threads sort them
# Of tables: below where both paths cost the same, above it, and beyond the near caches.
LOW_BYTES, HIGH_BYTES, FAR_BYTES = 2**18, 2**21, 2**24
HOT = 64  # distinct rows, where they are few
BATCHES = 4  # gradients that take turns, so that branches are not learnt by heart
SETTLED = 10  # rounds in which no time fell by more than `FALL`
FALL = 0.02
MOST_ROUNDS = 100
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
    row, far_row : float
        Of a row on the dense path, up to the number `high` and beyond.
    high : float
        Rows.
    """

    sparse: float
    dense: float
    entry: float
    touched: float
    part: float
    add: float
    row: float
    far_row: float
    high: float

    def saved(self, rows: int, lookups: float) -> float:
        """Microseconds that a table of some rows saves on the dense path, fixed costs apart."""
        sparse = self.entry * lookups + self.touched * distinct_rows(rows, lookups)
        beyond = max(rows - self.high, 0.0)
        dense = self.add * lookups + self.row * (rows - beyond) + self.far_row * beyond
        return sparse - dense


def distinct_rows(rows: int, lookups: float) -> float:
    """How many rows are drawn at least once, on average, if all are equally likely."""
    return -rows * expm1(-lookups / rows) if rows else 0.0


_known: dict[tuple[Recipe, int, str, int, bool, int], Costs] = {}


def costs_of(rule: Rule, width: int, dtype: str, rows: int, lookups: int) -> Costs:
    """Costs of a formula, at a width, in a storage of some rows that is looked up at some ids.

    As measured before, or now.
    """
    # Ids are sorted by the bits of the storage's rows.
    bits = min(rows.bit_length(), MOST_BITS)
    key = rule.recipe, width, dtype, bits, lookups >= SHARED_FROM, runtime.num_threads()
    if key not in _known:
        place = programs.folder()
        file = None if place is None else place / f"costs-{_digest(*key)}.json"
        found = None if file is None else _read(file)
        if found is None:
            found = measure(rule, width, dtype, bits, many=lookups >= SHARED_FROM)
            if file is not None:
                _write(file, found)
        _known[key] = found
    return _known[key]


def measure(rule: Rule, width: int, dtype: str, bits: int, *, many: bool) -> Costs:
    """Time both paths on tables that are small enough for the choice to matter.

    The shortest times count: what else runs only adds.
    """
    storage = 2**bits - 1
    fewer, more = IDS[many]
    row_bytes = width * np.dtype(dtype).itemsize
    low = min(max(LOW_BYTES // row_bytes, 1), storage)
    some = min(HOT, low)
    high = max(HIGH_BYTES // row_bytes, 2 * low)
    far = max(FAR_BYTES // row_bytes, 2 * high)
    less, full = (_Trial(rule, width, dtype, storage, low, ids, low) for ids in (fewer, more))
    hot = _Trial(rule, width, dtype, storage, low, more, some)
    most = min(far, storage)
    wide = _Trial(rule, width, dtype, storage, most, more, most)
    above, beyond = (_Trial(rule, width, dtype, rows, rows, fewer, rows) for rows in (high, far))
    works: dict[str, Callable[[], object]] = {
        "sparse_fewer": less.sparse_,
        "sparse_hot": hot.sparse_,
        "sparse_wide": wide.sparse_,
        "dense_fewer": less.dense_,
        "dense_more": full.dense_,
        "dense_high": above.dense_,
        "dense_far": beyond.dense_,
        "split_fewer": less.split,
        "split_more": full.split,
    }
    at = SimpleNamespace(**dict(zip(works, _shortest(list(works.values())), strict=True)))
    return _fit(at, (fewer, more), (some, low, most), (high, far))


def _fit(
    at: SimpleNamespace, ids: tuple[int, int], spread: tuple[int, int, int], large: tuple[int, int]
) -> Costs:
    """The lines through the measured points; noise makes no cost negative."""
    (fewer, more), (some, low, most), (high, far) = ids, spread, large
    between = more - fewer
    few_rows, hot_rows, wide_rows = (
        distinct_rows(rows, count) for rows, count in ((low, fewer), (some, more), (most, more))
    )
    touched = max(at.sparse_wide - at.sparse_hot, 0.0) / max(wide_rows - hot_rows, 1.0)
    entries = at.sparse_hot - at.sparse_fewer + touched * (few_rows - hot_rows)
    entry = max(entries, 0.0) / between
    both = max(at.dense_more - at.dense_fewer, 0.0) / between
    part = max(at.split_more - at.split_fewer, 0.0) / between
    row = max(at.dense_high - at.dense_fewer, 0.0) / (high - low)
    return Costs(
        sparse=max(at.sparse_fewer - entry * fewer - touched * few_rows, 0.0),
        dense=max(at.dense_fewer - both * fewer - row * low, 0.0),
        entry=entry,
        touched=touched,
        part=part,
        add=max(both - part, 0.0),
        row=row,
        far_row=max(at.dense_far - at.dense_high, 0.0) / (far - high),
        high=high,
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
        self.update_rows_ = RowUpdate(self.target, rule)
        indices = rng.integers(0, distinct, (BATCHES, ids), dtype=np.int32) * (rows // distinct)
        values = np.zeros((ids, width), computed_in(dtype))
        self.gradients = cycle([RowSparse.from_numpy(batch, values, rows) for batch in indices])
        self.path = DensePath([Range(("a table to measure",), 0, rows, rule)], width, dtype)
        clip = () if rule.clip_value is None else (rule.clip_value,)
        keys = keys_of(0, "a table to measure", 1) if is_half(dtype) else ()
        self.scalars = (*rule.numbers(1), *(1.0,) * rule.scaled, *clip, *keys)

    def sparse_(self) -> None:
        gradient = next(self.gradients)
        plan = make_plan(gradient.indices, self.storage)
        span = (0, plan.num_unique)
        self.update_rows_(gradient, plan, self.scalars, span)

    def dense_(self) -> None:
        near, _ = self.path.split(next(self.gradients))
        self.path.update_(self.target, near, lambda rule: self.scalars)

    def split(self) -> None:
        self.path.split(next(self.gradients))


def _shortest(works: Sequence[Callable[[], object]]) -> list[float]:
    """Microseconds of each at its shortest, measured in rounds until nothing becomes shorter.

    Each is called a second time, after one that warms the caches.
    """
    best, quiet = np.full(len(works), np.inf), 0
    for _ in range(MOST_ROUNDS):
        times = []
        for work in works:
            work()
            begin = time.perf_counter()
            work()
            times.append(1e6 * (time.perf_counter() - begin))
        quiet = 0 if (times < best * (1 - FALL)).any() else quiet + 1
        best = np.minimum(best, times)
        if quiet == SETTLED:
            break
    return [float(value) for value in best]


def _digest(recipe: Recipe, width: int, dtype: str, bits: int, many: bool, threads: int) -> str:
    """Names the file; a formula counts with the code of its step."""
    formula = recipe.formula
    slots = [tuple(slot) for slot in formula.slots]
    described = (formula.name, slots, recipe.scalars, width, dtype, bits, many, threads)
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
