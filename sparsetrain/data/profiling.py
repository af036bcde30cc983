# SPDX-License-Identifier: Apache-2.0
"""`profile`: statistics of raw or converted rows: clicks, missing values, frequent ids.

Rows are read from the beginning up to a limit; counts are exact for the rows read. Memory: the
distinct values of every category column.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparsetrain.data.columns.category import FIRST, Category
from sparsetrain.data.columns.counts import ValueCounts, kind_of_column, of_kind
from sparsetrain.data.encode.learn import encoder_of
from sparsetrain.data.encode.reader import Reader, bind, labels_in
from sparsetrain.data.encode.rules import Rules, Settings
from sparsetrain.data.read.open_source import open_rows
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import is_bag
from sparsetrain.data.values.arrow_values import NanRule
from sparsetrain.data.values.location import Location
from sparsetrain.parsing.identity import HEXADECIMAL, UNSEEN
from sparsetrain.system.argument_checks import require_int
from sparsetrain.system.html import describe, table

_TOP = 5
_NAN = NanRule("missing")


class DenseProfile(NamedTuple):
    """A dense column: counts of missing and of negative values, and the range of all values.

    Both counts are None for converted data, where missing values are filled and all values are
    logarithms.
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
        Number of values read, including missing ones.
    missing, distinct, once : int
        Number of missing values, of distinct values, and of values that occur once.
    rare : int or None
        In converted data, the number of values in the row of rare values; they do not count as
        distinct.
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
        Rows in the data; None if unknown before reading.
    positive : int or None
        Clicks among the rows read; None without click labels.
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


def profile(
    data: Any, *, schema: Schema | str | Path | None = None, max_rows: int = 1_000_000
) -> Profile:
    """Read rows and describe them.

    Parameters
    ----------
    data : anything `open_source` takes, except batches
    schema : Schema or path, optional
        Names the columns if they do not have Criteo's names.
    max_rows : int
        Stop after about this number of rows.

    Returns
    -------
    Profile

    Raises
    ------
    DataError
        If the data cannot be read, or consist of batches.
    """
    require_int("max_rows", max_rows)
    schema = Schema.read(schema)
    source = open_rows(data, schema)
    first = source.parts[0]
    encoder = encoder_of(first, Settings(nan="missing"), schema)
    wanted = labels_in(encoder.schema, first)
    there = {name.lower() for name in first.schema.names}
    bound = bind(encoder, source.parts, require_label=there >= {name.lower() for name in wanted})
    seen = _Seen(encoder)
    pieces = ((each, *item) for part, each in bound for item in part.pieces(each.names))
    for reader, location, piece in pieces:
        seen.add(location, piece, reader)
        if seen.rows >= max_rows:
            break
    layout = bound[0][1].found.layout
    return Profile(source.name, layout, seen.rows, source.num_rows, seen.positive, *seen.columns())


class _Seen:
    """Accumulated counts of the rows read."""

    def __init__(self, encoder: Rules) -> None:
        self._encoder = encoder
        self.rows = 0
        self.positive: int | None = None
        self._dense: dict[str, DenseProfile] = {}
        self._counts = [ValueCounts() for _ in encoder.features]
        self._ids = [0] * len(encoder.features)

    def add(self, location: Location, piece: pa.RecordBatch, reader: Reader) -> None:
        """Count a piece."""
        self.rows += piece.num_rows
        for name, read in reader.labels if self._encoder.schema.all_labels.is_yes_or_no else ():
            labels = read(piece.column(name), location.of_column(name))
            self.positive = (self.positive or 0) + int(np.count_nonzero(labels))
        for name, column in reader.dense:
            self._add_dense(name, *column.read(piece.column(name), location.of_column(name)))
        for index, (name, _, _) in enumerate(reader.categories):
            array = piece.column(name)
            self._ids[index] += len(array.flatten() if is_bag(array.type) else array)
            self._counts[index].read(array, _NAN, location.of_column(name))

    def _add_dense(self, name: str, values: Array, missing: Array) -> None:
        there = values[~missing]
        _, lost, negative, *known = self._dense.get(name, DenseProfile(name, 0, 0, None, None))
        ends = [end for end in known if end is not None]
        ends += [float(there.min()), float(there.max())] if len(there) else []
        below = np.atleast_2d(there.T < 0).any(axis=0)  # a vector, if any number is
        lost, negative = (lost or 0) + int(missing.sum()), (negative or 0) + int(below.sum())
        low, high = min(ends, default=None), max(ends, default=None)
        self._dense[name] = DenseProfile(name, lost, negative, low, high)

    def columns(self) -> tuple[list[DenseProfile], list[CategoryProfile]]:
        """Return the profiles of all columns; converted columns hold ids."""
        has_ids = all(column.rows and column.reserves for column in self._encoder.features)
        dense = list(self._dense.values())
        if has_ids:
            dense = [column._replace(missing=None, negative=None) for column in dense]
        each = zip(self._encoder.features, self._ids, self._counts, strict=True)
        return dense, [self._category(*column, has_ids) for column in each]

    def _category(
        self, column: Category, ids: int, counts: ValueCounts, has_ids: bool
    ) -> CategoryProfile:
        total = counts.total
        kind = kind_of_column(total)
        numbers, times, texts, text_times, _ = of_kind(total, kind)
        rare = None
        if has_ids:  # missing and rare values have ids
            rare = int(times[numbers == UNSEEN].sum())
            times, numbers = times[numbers >= FIRST], numbers[numbers >= FIRST]

        def shown(place: int) -> str:
            """Return a value in the form in which it was read."""
            if place >= len(numbers):
                return texts[place - len(numbers)].as_py().decode("utf-8", "backslashreplace")
            number = int(numbers[place])
            if kind == HEXADECIMAL:
                return f"{number:08x}"
            return str(column.shown(number))

        both = np.concatenate([times, text_times])
        top = [(shown(i), int(both[i])) for i in np.argsort(-both, kind="stable")[:_TOP]]
        missing, once = ids - int(both.sum()) - (rare or 0), int((both == 1).sum())
        return CategoryProfile(column.name, ids, missing, len(both), once, rare, top)
