# SPDX-License-Identifier: Apache-2.0
"""`profile`: statistics of raw or converted rows.

Clicks, missing values, frequent ids. Rows are read from the beginning up to a
limit; counts are exact for what was read. Memory: the distinct values of every category column.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparsetrain.data.encode.column_matching import label_names
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.encode.learn import count_column
from sparsetrain.data.encode.rules import Settings
from sparsetrain.data.encode.value_counts import ValueCounts, resolved
from sparsetrain.data.encode.vocabulary import FIRST, UNSEEN
from sparsetrain.data.read.converted_files import is_converted
from sparsetrain.data.read.open_source import open_source
from sparsetrain.data.read.source import BatchSource, Part
from sparsetrain.data.schema.columns import Columns
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values import arrow_types
from sparsetrain.data.values.labels import read_labels
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.numeric import NanRule, read_numbers
from sparsetrain.system.argument_checks import require_int
from sparsetrain.system.html import describe, table

_TOP = 5


class DenseProfile(NamedTuple):
    """A dense column: how many values are missing or below 0, and the range of the others.

    Of converted data the two are None: missing values are filled there, and all are logarithms.
    """

    column: str
    missing: int | None
    negative: int | None
    least: float | None
    greatest: float | None


class CategoryProfile(NamedTuple):
    """A category column.

    Attributes
    ----------
    column : str
    ids : int
        Values read, missing ones included.
    missing, distinct, once : int
        Missing values, distinct others, and distinct ones that occur once.
    rare : int or None
        Of converted data, the values that share the row for rare ones; they are no one's others.
    top : list of (str, int)
        The most frequent values and their counts.
    """

    column: str
    ids: int
    missing: int
    distinct: int
    once: int
    rare: int | None
    top: list[tuple[str, int]]


class Profile(NamedTuple):
    """Statistics of the rows read.

    Attributes
    ----------
    name, layout : str
    rows : int
        Rows read.
    total_rows : int or None
        Rows there are; None where only reading would tell.
    positive : int or None
        Clicks among the rows read; None without labels of clicks.
    dense : list of DenseProfile
    categories : list of CategoryProfile
    """

    name: str
    layout: str
    rows: int
    total_rows: int | None
    positive: int | None
    dense: list[DenseProfile]
    categories: list[CategoryProfile]

    def _repr_html_(self) -> str:
        facts = {"layout": self.layout, "rows": self.rows, "clicks": self.positive}
        tables = [
            table(columns, kind._fields)
            for columns, kind in (
                (self.dense, DenseProfile),
                (self.categories, CategoryProfile),
            )
            if columns
        ]
        return "\n".join([describe(self.name, facts), *tables])


def profile(data: Any, *, schema: Schema | None = None, max_rows: int = 1_000_000) -> Profile:
    """Read rows and describe them.

    Parameters
    ----------
    data : anything `open_source` takes, except batches
    schema : Schema, optional
        Names the columns where they are not Criteo's.
    max_rows : int
        Stop after about so many.

    Returns
    -------
    Profile

    Raises
    ------
    DataError
        If the data cannot be read, or are batches.
    """
    require_int("max_rows", max_rows)
    schema = schema or Schema()
    source = open_source(data, schema)
    if isinstance(source, BatchSource):
        raise source.rows_wanted()
    first = source.parts[0]
    encoder = Encoder.read_converted(first) or Encoder.blank(first, Settings(nan="missing"), schema)
    seen = _Seen(encoder)
    parts = encoder.bind(source.parts, require_label=_has_labels(first, encoder.schema))
    for part, columns in parts:
        for location, piece in part.pieces(columns.names):
            seen.add(location, piece, columns)
            if seen.rows >= max_rows:
                return seen.result(source.name, parts[0][1].layout, source.num_rows)
    return seen.result(source.name, parts[0][1].layout, source.num_rows)


def _has_labels(part: Part, schema: Schema) -> bool:
    wanted = label_names(schema) if is_converted(part.schema) else schema.label_kinds
    return {name.lower() for name in part.schema.names} >= {name.lower() for name in wanted}


class _Seen:
    """Accumulated counts of the rows read."""

    def __init__(self, encoder: Encoder) -> None:
        self._columns = encoder.columns
        # Whether what is read are the ids that an encoder gave to raw values.
        self._is_converted = bool(encoder.categories) and not encoder.encoded
        self._is_clicks = encoder.schema.is_clicks
        self.rows = 0
        self._positive: int | None = None
        self._counts = [ValueCounts() for _ in encoder.columns]
        self._ids = [0] * len(encoder.columns)
        self._is_unsigned = [False] * len(encoder.columns)
        self._dense: dict[str, list[float]] = {}

    def add(self, location: Location, piece: pa.RecordBatch, columns: Columns) -> None:
        """Count a piece."""
        self.rows += piece.num_rows
        for name in columns.labels if self._is_clicks else ():
            labels = read_labels(piece.column(name), location.of_column(name))
            self._positive = (self._positive or 0) + int(np.count_nonzero(labels))
        for name in columns.dense:
            self._add_dense(name, piece.column(name), location.of_column(name))
        for index, name in enumerate(columns.categories):
            array = piece.column(name)
            self._is_unsigned[index] |= arrow_types.is_unsigned(array.type)
            lists = bool(columns.bags) and columns.bags[index]
            self._ids[index] += len(array.flatten()) if lists else len(array)
            count_column(self._counts[index], array, NanRule("missing"), location.of_column(name))

    def _add_dense(self, name: str, array: Any, location: Location) -> None:
        values, missing = read_numbers(array, NanRule("missing"), location)
        there = values[~missing]
        seen = self._dense.setdefault(name, [0, 0, np.inf, -np.inf])
        seen[0] += int(missing.sum())
        seen[1] += int((there < 0).sum())
        if len(there):
            seen[2], seen[3] = min(seen[2], there.min()), max(seen[3], there.max())

    def _counted(self, count: float) -> int | None:
        return None if self._is_converted else int(count)

    def result(self, name: str, layout: str, total: int | None) -> Profile:
        """Return everything."""
        return Profile(
            name,
            layout,
            self.rows,
            total,
            self._positive,
            [
                DenseProfile(column, self._counted(m), self._counted(n), *_finite(low, high))
                for column, (m, n, low, high) in self._dense.items()
            ],
            [self._category(index, name) for index, name in enumerate(self._columns)],
        )

    def _category(self, index: int, column: str) -> CategoryProfile:
        numbers, times, texts, text_times, _ = resolved(self._counts[index])
        rare = None
        if self._is_converted:  # missing and rare values have ids
            rare = int(times[numbers == UNSEEN].sum())
            times, numbers = times[numbers >= FIRST], numbers[numbers >= FIRST]
        both = np.concatenate([times, text_times])
        order = np.argsort(-both, kind="stable")
        ranked = both[order]
        values = [
            int(numbers[i]) if i < len(numbers) else texts[i - len(numbers)] for i in order[:_TOP]
        ]
        top = [(self._shown(index, v), int(n)) for v, n in zip(values, ranked, strict=False)]
        ids = self._ids[index]
        missing, once = ids - int(both.sum()) - (rare or 0), int((ranked == 1).sum())
        return CategoryProfile(column, ids, missing, len(ranked), once, rare, top)

    def _shown(self, index: int, value: int | bytes) -> str:
        """Return a value of a column as it is written where it was read."""
        if isinstance(value, bytes):
            return value.decode("utf-8", "backslashreplace")
        if self._counts[index].hexadecimal:
            return f"{value:08x}"
        return str(value % 2**64 if self._is_unsigned[index] else value)


def _finite(low: float, high: float) -> tuple[float | None, float | None]:
    return (float(low), float(high)) if low <= high else (None, None)
