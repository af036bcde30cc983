# SPDX-License-Identifier: Apache-2.0
"""Strict reading of one column of a piece, with statistics, and the search for bad rows.

Encoding accepts exactly what these readers accept; what they refuse is a bad row. Bad rows are
found by calling the reader again on the rows before and after each refused one, so detection and
encoding cannot differ. That is slow for many bad rows, so the search stops when more than half of a
piece is bad.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparsetrain.data.encode.bags import read_bags
from sparsetrain.data.encode.dense import EncodedDense
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.encode.rules import PlainIds, plain_ids
from sparsetrain.data.encode.value_counts import Keys, count_keys
from sparsetrain.data.schema.columns import Columns
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.labels import LabelKind, read_labels, read_row_weights
from sparsetrain.data.values.location import Location, RowError
from sparsetrain.data.values.numeric import read_numbers


class DenseCounts(NamedTuple):
    """Counts of missing and of negative values in a dense column."""

    missing: int
    negative: int


class LabelCounts(NamedTuple):
    """Count of the labels that are 1."""

    positive: int


class CategoryValues(NamedTuple):
    """The keys of a category column and how often each occurs, or its largest encoded id."""

    keys: Keys | None
    times: Array | None
    largest: int


Read = Callable[[pa.RecordBatch, Location], Any]


class StrictReader(NamedTuple):
    """Reads pieces with these columns, for an encoder that may have learnt nothing yet."""

    columns: Columns
    encoder: Encoder

    def each(self) -> Iterator[tuple[str, Read]]:
        """Yield every column and what reads it."""
        kinds = self.encoder.labels.values()
        for name, kind in zip(self.columns.labels, kinds, strict=False):  # there may be none
            yield name, partial(self.label, name, kind)
        if self.columns.row_weights:
            yield self.columns.row_weights, self.weights
        for index, name in enumerate(self.columns.dense):
            yield name, partial(self.dense, index)
        for index, name in enumerate(self.columns.categories):
            yield name, partial(self.category, index)

    def label(
        self, name: str, kind: LabelKind, piece: pa.RecordBatch, location: Location
    ) -> LabelCounts:
        """Read a label column."""
        labels = read_labels(piece.column(name), location, kind, len(self.columns.labels) > 1)
        return LabelCounts(int(np.count_nonzero(labels == 1)))

    def weights(self, piece: pa.RecordBatch, location: Location) -> None:
        """Read the weights of rows."""
        read_row_weights(piece.column(self.columns.row_weights), location)

    def dense(self, index: int, piece: pa.RecordBatch, location: Location) -> DenseCounts:
        """Read the dense column at `index`."""
        name = self.columns.dense[index]
        if self.columns.encoded:
            values = EncodedDense().matrix([piece.column(name)], [name], location, piece.num_rows)
            return DenseCounts(0, int((values < 0).sum()))
        nan = self.encoder.settings.nan_rule
        values, missing = read_numbers(piece.column(name), nan, location)
        return DenseCounts(int(missing.sum()), int((values < 0).sum()))

    def category(self, index: int, piece: pa.RecordBatch, location: Location) -> CategoryValues:
        """Read the category column at `index`, and the weights of its ids."""
        columns, seen = self.columns, list[CategoryValues]()
        array = piece.column(columns.categories[index])
        if not (columns.bags and columns.bags[index]):
            return self._values(index, array, location)

        def read(values: Any, here: Location) -> Array:
            seen.append(self._values(index, values, here))
            return np.zeros(len(values), dtype=np.int32)

        factors = columns.weights_of(index)
        weights = None if factors is None else piece.column(factors)
        rule = self.encoder.schema.rule(self.encoder.columns[index])
        read_bags(array, weights, rule, read, location)
        return seen[0]

    def _values(self, index: int, array: Any, location: Location) -> CategoryValues:
        if not self.columns.encoded:
            return CategoryValues(*count_keys(array, self.encoder.settings.nan_rule, location), -1)
        if self.encoder.categories:
            ids = PlainIds(self.encoder.rows[index]).encode(array, location)
        else:
            ids = plain_ids(array, location)
        return CategoryValues(None, None, int(ids.max(initial=-1)))


POLICIES = ("error", "skip", "quarantine")


class BadRow(NamedTuple):
    """A bad row of a piece, or a line that is not a row."""

    row: int  # of the piece; -1 for a line that is not a row
    number: int  # of the row or line in the file
    column: str | None
    reason: str  # the whole message


def find_bad_rows(
    piece: pa.RecordBatch, columns: Columns, location: Location, encoder: Encoder
) -> list[BadRow]:
    """Return the bad rows of a piece, each once, in order; refuse if more than half are bad."""
    faults: dict[int, BadRow] = {}
    for name, read in StrictReader(columns, encoder).each():
        for fault in _in_column(piece, name, read, location.of_column(name)):
            faults.setdefault(fault.row, fault)
            if 2 * len(faults) > piece.num_rows > 1:
                raise location.error(
                    f"more than half of {piece.num_rows} rows are bad, which no rule about bad "
                    f"rows is meant for; one of them: {fault.reason}"
                )
    return [faults[row] for row in sorted(faults)]


def _in_column(
    piece: pa.RecordBatch, name: str, read: Read, location: Location
) -> Iterator[BadRow]:
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
            yield BadRow(row, location.number(row), name, str(error))
            unread += [(row + 1, end), (first, row)]
