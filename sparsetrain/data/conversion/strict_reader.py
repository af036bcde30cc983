# SPDX-License-Identifier: Apache-2.0
"""Strict reading of chunks, for an encoder that may lack values yet, and without their bad rows.

Encoding accepts exactly what these readers accept; what they refuse is a bad row. Both passes find
bad rows anew, by calling the reader of a column again on the rows before and after each refused
one. That is slow for many bad rows, so the search stops when more than half of a piece is bad.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from sparsetrain.data.columns.bags import read_bags
from sparsetrain.data.columns.counts import Counted, count_values
from sparsetrain.data.columns.dense import Dense
from sparsetrain.data.columns.plain import plain_ids
from sparsetrain.data.conversion.chunks import Chunk, Pieces
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.read.derived_columns import derived_column
from sparsetrain.data.read.source import keep_rows
from sparsetrain.data.read.text_rows import bad_line_error
from sparsetrain.data.schema.columns import Columns
from sparsetrain.data.values import arrow_types
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.labels import LabelKind, read_labels, read_row_weights
from sparsetrain.data.values.location import Location, RowError
from sparsetrain.errors import DataError

# Keys are ("missing", column), ("negative", column), ("rows", "") and, of labels, ("positive", "").
Statistics = Counter[tuple[str, str]]


class CategoryValues(NamedTuple):
    """The counts of a category column, or its largest encoded id."""

    counted: Counted | None
    largest: int


Read = Callable[[pa.RecordBatch, Location], Any]


class StrictReader(NamedTuple):
    """Reads pieces with these columns."""

    columns: Columns
    encoder: Encoder

    def read(
        self, piece: pa.RecordBatch, location: Location
    ) -> tuple[Statistics, list[CategoryValues]]:
        """Read all columns; each may refuse a row."""
        seen, categories = Statistics({("rows", ""): piece.num_rows}), list[CategoryValues]()
        for name, read in self.readers():
            found = read(piece, location.of_column(name))
            if isinstance(found, CategoryValues):
                categories.append(found)
            else:
                seen.update(found)
        return seen, categories

    def readers(self) -> Iterator[tuple[str, Read]]:
        """Yield every column and what reads it: its statistics or, of a category, its values."""
        columns, kinds = self.columns, self.encoder.labels.values()
        for name, kind in zip(columns.labels, kinds, strict=False):  # there may be none
            yield name, partial(self._label, name, kind)
        if columns.row_weights:
            yield columns.row_weights, partial(self._weights, columns.row_weights)
        own = self.encoder.plain if columns.encoded else self.encoder
        for name, column in zip(columns.all_dense, own.dense, strict=False):  # nor these
            yield name, partial(self._dense, name, column)
        for index, name in enumerate(columns.categories):
            yield name, partial(self._category, index)

    def _array(self, name: str, piece: pa.RecordBatch, location: Location) -> Any:
        place = piece.schema.get_field_index(name)
        if place >= 0:
            return piece.column(place)
        return derived_column(piece, self.encoder.schema.derived[name], location)

    def _label(
        self, name: str, kind: LabelKind, piece: pa.RecordBatch, location: Location
    ) -> Statistics:
        array, several = self._array(name, piece, location), len(self.columns.labels) > 1
        labels = read_labels(array, location, kind, several)
        return Statistics({("positive", ""): int(np.count_nonzero(labels == 1))})

    def _weights(self, name: str, piece: pa.RecordBatch, location: Location) -> Statistics:
        read_row_weights(self._array(name, piece, location), location)
        return Statistics()

    def _dense(
        self, name: str, column: Dense, piece: pa.RecordBatch, location: Location
    ) -> Statistics:
        values, missing = column.read(self._array(name, piece, location), location)
        negative = np.atleast_2d(values.T < 0).any(axis=0)  # in a vector, any of its numbers
        counts = {"missing": missing.sum(), "negative": negative.sum()}
        return Statistics({(what, column.name): int(n) for what, n in counts.items()})

    def _category(self, index: int, piece: pa.RecordBatch, location: Location) -> CategoryValues:
        """Read a column of categories, and the weights of its ids."""
        columns, seen = self.columns, list[CategoryValues]()
        array = self._array(columns.categories[index], piece, location)
        if not (columns.bags and columns.bags[index]):
            return self._values(index, array, location)

        def read(values: Any, here: Location) -> Array:
            seen.append(self._values(index, values, here))
            return np.zeros(len(values), dtype=np.int32)

        factors = columns.weights_of(index)
        weights = None if factors is None else self._array(factors, piece, location)
        read_bags(array, weights, self.encoder.features[index].rule, read, location)
        return seen[0]

    def _values(self, index: int, array: Any, location: Location) -> CategoryValues:
        if not self.columns.encoded:
            return CategoryValues(count_values(array, self.encoder.settings.nan_rule, location), -1)
        column = self.encoder.features[index]
        if column.values is None:
            ids = plain_ids(array, location)
        else:
            ids = self.encoder.plain.features[index].ids(array, location)
        return CategoryValues(None, int(ids.max(initial=-1)))


POLICIES = ("error", "skip", "quarantine")

Result = TypeVar("Result")


def read_good_rows(
    chunk: Chunk,
    encoder: Encoder,
    bad_rows: str,
    read: Callable[[pa.RecordBatch, Location], Result],
) -> tuple[Iterable[Result], list[dict[str, Any]]]:
    """Return what `read` makes of each piece, and reports of the bad rows left out of them.

    The list of reports is whole once all pieces are read. `bad_rows` is one of `POLICIES`. Text is
    read by the numbers it spells; if a row is bad, again as text, which is reported.
    """
    if chunk.block is not None:
        with suppress(DataError):
            pieces, bad_lines = chunk.pieces(encoder, numbers=True)
            if not bad_lines:
                return [read(piece, here) for here, piece in pieces], []
    pieces, bad_lines = chunk.pieces(encoder)
    reports = list[dict[str, Any]]()
    for line in bad_lines:
        error = bad_line_error(chunk.location.name, line)
        if bad_rows == "error":
            raise error
        reports.append(_report(chunk.location, line.number, None, str(error), text=line.text))
    reader = None if bad_rows == "error" else StrictReader(chunk.columns, encoder)
    return _read_pieces(pieces, read, reader, reports), reports


def _report(
    location: Location, number: int, column: str | None, reason: str, **held: Any
) -> dict[str, Any]:
    """Return all that is told of a row or line, fit for JSON; `held` is what it holds."""
    where = {"file": location.name, location.unit: number}
    return {**where, "column": column, "reason": reason, **held}


def _read_pieces(
    pieces: Pieces,
    read: Callable[[pa.RecordBatch, Location], Result],
    reader: StrictReader | None,
    reports: list[dict[str, Any]],
) -> Iterator[Result]:
    """Yield what is read of each piece; without a `reader` of bad rows, all rows are good."""
    for location, piece in pieces:
        try:
            found = read(piece, location)
        except RowError:
            if reader is None:
                raise
            location, piece = _without_bad(location, piece, reader, reports)
            if not piece.num_rows:
                continue
            found = read(piece, location)
        yield found


def _without_bad(
    location: Location, piece: pa.RecordBatch, reader: StrictReader, reports: list[dict[str, Any]]
) -> tuple[Location, pa.RecordBatch]:
    good = np.ones(piece.num_rows, dtype=bool)
    for row, (column, reason) in sorted(_find_bad(piece, reader, location).items()):
        good[row] = False
        held = zip(piece.schema.names, piece.slice(row, 1), strict=True)
        values = {name: _shown(array) for name, array in held}
        reports.append(_report(location, location.number(row), column, reason, values=values))
    return keep_rows(location, piece, good)


def _shown(array: Any) -> Any:
    """Return the one value of an array, fit for JSON."""
    try:
        value = array[0].as_py()
    except UnicodeDecodeError:
        bags = arrow_types.is_bag(array.type)
        value = array.cast(pa.list_(pa.binary()) if bags else pa.binary())[0].as_py()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, (int, str, type(None))) else str(value)


def _find_bad(
    piece: pa.RecordBatch, reader: StrictReader, location: Location
) -> dict[int, tuple[str, str]]:
    """Return the first bad column of each bad row, and why; refuse if more than half are bad."""
    faults: dict[int, tuple[str, str]] = {}
    for name, read in reader.readers():
        for row, reason in _in_column(piece, read, location.of_column(name)):
            faults.setdefault(row, (name, reason))
            if 2 * len(faults) > piece.num_rows > 1:
                raise location.error(
                    f"more than half of {piece.num_rows} rows are bad, which no rule about bad "
                    f"rows is meant for; one of them: {reason}"
                )
    return faults


def _in_column(piece: pa.RecordBatch, read: Read, location: Location) -> Iterator[tuple[int, str]]:
    unread = [(0, piece.num_rows)]
    while unread:
        first, end = unread.pop()
        try:
            if first < end:
                read(piece.slice(first, end - first), location.moved(first))
        except RowError as error:
            if error.row is None:
                raise
            row = first + error.row
            yield row, str(error)
            unread += [(row + 1, end), (first, row)]
