# SPDX-License-Identifier: Apache-2.0
"""Tables of clicks of five kinds, as a stranger brings them, each with the best possible AUC.

A click's logit is a sum of curves of the numbers, of an effect for each value of an id, and of
products of hidden vectors of two ids. Ids follow Zipf's law. Columns are named as in a log, and
none of them is prepared: texts, gaps, lists and timestamps are what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

LABEL = "clicked"
_VECTOR = 4  # width of hidden vectors
_RATE = 0.2  # of clicks, about
_DAYS, _BEGIN = 28, np.datetime64("2024-03-01T00:00:00", "s")


@dataclass
class _Table:
    """Columns so far, and the logit that they add up to."""

    rng: np.random.Generator
    rows: int
    columns: dict[str, Any] = field(default_factory=dict)
    logit: Any = 0.0
    vectors: dict[str, np.ndarray] = field(default_factory=dict)  # (rows, _VECTOR) of each id

    def ids(
        self, name: str, values: int, effect: float, write: Callable[[np.ndarray], Any]
    ) -> np.ndarray:
        """Add a column of ids by Zipf's law; return them as drawn, (rows,)."""
        drawn = self._zipf(values, self.rows)
        self.columns[name] = write(drawn)
        self.logit = self.logit + effect * self.rng.normal(size=values)[drawn]
        self.vectors[name] = self.rng.normal(size=(values, _VECTOR))[drawn]
        return drawn

    def pair(self, first: str, second: str, effect: float) -> None:
        """Let the hidden vectors of two ids meet."""
        met = np.einsum("nd,nd->n", self.vectors[first], self.vectors[second])
        self.logit = self.logit + effect * met / np.sqrt(_VECTOR)

    def number(self, name: str, effect: float, *, missing: float = 0.0, tail: bool = False) -> None:
        """Add a column of numbers, with gaps; a long tail is that of counts."""
        hidden = self.rng.normal(size=self.rows)
        bend = self.rng.uniform(0.5, 2.0)
        self.logit = self.logit + effect * np.sin(bend * hidden + self.rng.uniform(0, 3))
        values = np.floor(np.exp(1.5 + 1.2 * hidden)) if tail else 40 + 12 * hidden
        gone = self.rng.random(self.rows) < missing
        self.columns[name] = pa.array(values.astype("int64" if tail else "float64"), mask=gone)

    def lists(self, name: str, values: int, most: int, effect: float, whom: str) -> None:
        """Add a column of lists of ids, which the hidden vector of `whom` meets."""
        lengths = self.rng.integers(0, most + 1, self.rows)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        drawn = self._zipf(values, int(offsets[-1]))
        texts = pa.array([f"{name[:3]}{i}" for i in range(values)])
        items = texts.take(pa.array(drawn))
        self.columns[name] = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)
        hidden = self.rng.normal(size=(values, _VECTOR))
        total = np.concatenate([np.zeros((1, _VECTOR)), np.cumsum(hidden[drawn], axis=0)])
        mean = (total[offsets[1:]] - total[offsets[:-1]]) / np.maximum(lengths, 1)[:, None]
        met = mean.sum(1) + np.einsum("nd,nd->n", mean, self.vectors[whom])
        self.logit = self.logit + effect * met / np.sqrt(_VECTOR)

    def times(self, name: str, effect: float, whose: np.ndarray) -> None:
        """Add a column of rising timestamps: hours matter, and values of `whose` drift."""
        seconds = np.sort(self.rng.integers(0, _DAYS * 86400, self.rows))
        self.columns[name] = _BEGIN + seconds.astype("timedelta64[s]")
        hour, day = seconds // 3600 % 24, seconds / 86400
        drift = self.rng.normal(size=int(whose.max()) + 1)[whose] * (day / _DAYS - 0.5)
        curve = self.rng.normal(size=24)[hour] + self.rng.normal(size=(24, 8))[hour, whose % 8]
        self.logit = self.logit + effect * (drift + curve)

    def _zipf(self, values: int, count: int) -> np.ndarray:
        drawn = np.exp(self.rng.random(count) * np.log(values + 1)).astype(np.int64) - 1
        return np.asarray(self.rng.permutation(values)[np.clip(drawn, 0, values - 1)])


def _text(mark: str) -> Callable[[np.ndarray], Any]:
    return lambda drawn: pa.array(np.char.add(mark, drawn.astype("U8")))


def _hex(drawn: np.ndarray) -> Any:
    names = np.array([f"{i * 2654435761 % 2**32:08x}" for i in range(int(drawn.max()) + 1)])
    return pa.array(names[drawn])


def _whole(drawn: np.ndarray) -> Any:
    return drawn * 7 + 1000


def _ids_and_numbers(table: _Table) -> None:
    table.ids("user_id", 20_000, 0.5, _whole)
    table.ids("item_id", 5_000, 0.5, _whole)
    for name, values in {"site": 800, "city": 400, "brand": 150, "device": 40}.items():
        table.ids(name, values, 0.3, _text(name[:2]))
    for name, values in {"os": 12, "layout": 6, "slot": 5, "plan": 4, "gender": 3}.items():
        table.ids(name, values, 0.2, _text(name))
    for first, second in (("user_id", "item_id"), ("site", "brand"), ("city", "device")):
        table.pair(first, second, 0.5)
    for number in range(8):
        table.number(f"x{number}", 0.3, missing=0.1 * (number % 3), tail=number % 2 == 0)


def _with_lists(table: _Table) -> None:
    _ids_and_numbers(table)
    table.lists("tags", 300, 6, 0.5, "item_id")
    table.lists("recent_items", 5_000, 10, 0.5, "item_id")


def _by_time(table: _Table) -> None:
    items = table.ids("item_id", 5_000, 0.4, _whole)
    table.ids("user_id", 20_000, 0.4, _whole)
    for name, values in {"site": 500, "campaign": 200, "device": 20}.items():
        table.ids(name, values, 0.3, _text(name[:2]))
    table.pair("user_id", "item_id", 0.4)
    for number in range(5):
        table.number(f"x{number}", 0.3, tail=number % 2 == 0)
    table.times("time", 0.5, items)


def _many_values(table: _Table) -> None:
    most = max(table.rows // 4, 1000)
    columns = {"user": most, "item": most // 4, "page": most // 2, "ip": most, "query": most // 8}
    for name, values in columns.items():
        table.ids(name, values, 0.4, _hex)
    for first, second in (("user", "item"), ("page", "query")):
        table.pair(first, second, 0.4)
    for name in ("age_days", "bids", "price"):
        table.number(name, 0.3, tail=True)


def _wide_numbers(table: _Table) -> None:
    for number in range(60):
        table.number(f"f{number}", 0.3 if number < 30 else 0.0, tail=number % 3 == 0)
    table.ids("group", 30, 0.3, _text("g"))
    table.ids("kind", 8, 0.3, _text("k"))
    table.pair("group", "kind", 0.3)


# By name; rows of the one by time are in its order, and the last ones are the test.
KINDS: dict[str, Callable[[_Table], None]] = {
    "ids": _ids_and_numbers,
    "lists": _with_lists,
    "times": _by_time,
    "many": _many_values,
    "wide": _wide_numbers,
}


def make_table(kind: str, rows: int, seed: int = 0) -> tuple[pa.Table, np.ndarray]:
    """Return a table with its label, and the probabilities that the label was drawn by."""
    table = _Table(np.random.default_rng(seed), rows)
    KINDS[kind](table)
    logit = table.logit - np.quantile(table.logit, 1 - _RATE)
    probability = 1 / (1 + np.exp(-1.5 * logit))
    labels = (table.rng.random(rows) < probability).astype(np.int64)
    return pa.table({**table.columns, LABEL: labels}), probability
