# SPDX-License-Identifier: Apache-2.0
"""`Source`: tabular data as a sequence of parts, which are read in pieces.

A part is the unit that a shuffle moves (a row group, or a slice of a table); a piece is the unit
held in memory (a record batch of at most `PIECE_ROWS` rows). No more than a piece is decoded at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparsetrain.data.batch import Batch
from sparsetrain.data.values.arrow_types import has_views, view_lengths, without_views
from sparsetrain.data.values.location import Location
from sparsetrain.errors import DataError

PIECE_ROWS = 16_384  # 40 columns of it fit a core's second-level cache several times over
CODED_ROWS = 16 * PIECE_ROWS  # larger, since the dictionary of each piece has to be encoded
HELD_ROWS = 1 << 20  # a part with more rows is never in memory as a whole
# Metadata key of a file that `convert` wrote; the value is the fingerprint of its encoder.
MARK = b"sparsetrain.converted"

Range = tuple[Any, Any]
Pieces = Iterator[tuple[Location, pa.RecordBatch]]


def encoder_fingerprint(schema: pa.Schema) -> str | None:
    """Return the fingerprint of the encoder that converted the rows, or None."""
    mark = (schema.metadata or {}).get(MARK)
    return None if mark is None else mark.decode()


@dataclass(frozen=True)
class Part:
    """Rows of one file or table.

    Attributes
    ----------
    location : Location
        Location of the rows, for messages.
    schema : pyarrow.Schema
    num_rows : int or None
        None for a stream of unknown length.
    read : callable
        Given column names and the argument `coded` of `pieces`, yields pieces of at most
        `PIECE_ROWS` rows, or `CODED_ROWS` if columns are coded, with their locations.
    ranges : callable, optional
        Given a column name, returns its minimum and maximum if known without reading, else None.
    is_stream : bool
        Whether the rows can be read only once.
    dialect : Dialect, optional
        The format of a text file, which can be read in blocks.
    """

    location: Location
    schema: pa.Schema
    num_rows: int | None
    read: Callable[[Sequence[str], Sequence[str]], Pieces]
    ranges: Callable[[str], Range | None] | None = None
    is_stream: bool = False
    dialect: Any = None

    def pieces(self, names: Sequence[str], coded: Sequence[str] = ()) -> Pieces:
        """Yield the record batches with rows, and their locations.

        If `coded` names the category columns, text may come in an equivalent form: a category
        column as a dictionary or `Digits`, any other column of a text file as parsed numbers.
        """
        for location, piece in self.read(names, coded):
            if piece.num_rows:
                _check_codes(piece, location)
                yield location, _without_views(piece, location)

    @property
    def is_converted(self) -> bool:
        """Whether `convert` wrote this data, so that its values are already encoded."""
        return encoder_fingerprint(self.schema) is not None

    def range_of(self, name: str) -> Range | None:
        """Return the minimum and maximum of a column if known without reading."""
        return None if self.ranges is None else self.ranges(name)


def _check_codes(piece: pa.RecordBatch, location: Location) -> None:
    """Refuse codes outside their dictionary, which Arrow does not check by default."""
    for name, column in zip(piece.schema.names, piece.columns, strict=True):
        is_list = hasattr(column, "value_parent_indices")  # for a list, the row of each value
        array = column.flatten() if is_list else column
        if not pa.types.is_dictionary(array.type):
            continue
        extremes = pc.min_max(array.indices).as_py()
        for code in (extremes["min"], extremes["max"]):
            if code is not None and not 0 <= code < len(array.dictionary):
                row = pc.index(array.indices, code).as_py()
                row = column.value_parent_indices()[row].as_py() if is_list else row
                raise location.of_column(name).error(
                    f"code {code} is outside its dictionary of {len(array.dictionary)} values; "
                    "write the data again",
                    row,
                )


def _without_views(piece: pa.RecordBatch, location: Location) -> pa.RecordBatch:
    if not any(map(has_views, piece.schema.types)):
        return piece
    for name, column in zip(piece.schema.names, piece.columns, strict=True):
        if (view_lengths(column) < 0).any():
            raise location.of_column(name).error(
                "a text has a length below 0; write the data again"
            )
    arrays = [without_views(column) for column in piece.columns]
    return pa.RecordBatch.from_arrays(arrays, names=piece.schema.names)


def located(location: Location, batches: Iterable[pa.RecordBatch]) -> Pieces:
    """Yield consecutive record batches with their locations; `location` is the first one's."""
    for batch in batches:
        yield location, batch
        location = location.moved(batch.num_rows)


def keep_rows(
    location: Location, piece: pa.RecordBatch, keep: np.ndarray
) -> tuple[Location, pa.RecordBatch]:
    """Return the rows of a record batch where `keep` (n,) bool is true; they keep their numbers."""
    numbers = location.row_numbers(len(keep))[keep]
    return location.numbered(numbers), piece.filter(pa.array(keep))


@dataclass(frozen=True)
class Source:
    """Tabular data in parts that can be read in any order.

    Attributes
    ----------
    name : str
        The name in messages.
    parts : tuple of Part
    files : tuple of str
        The files with the rows; none for rows in memory.
    """

    name: str
    parts: tuple[Part, ...]
    files: tuple[str, ...] = ()

    @property
    def num_rows(self) -> int | None:
        """Number of rows in all parts; None if it is unknown for a part."""
        counts = [part.num_rows for part in self.parts]
        return None if None in counts else sum(count or 0 for count in counts)


@dataclass(frozen=True)
class BatchSource:
    """A user's own batches, of any size and in any order.

    Attributes
    ----------
    name : str
    items : iterable of Batch
    """

    name: str
    items: Iterable[Any]

    num_rows = None

    def batches(self) -> Iterator[Batch]:
        """Yield the batches.

        Raises
        ------
        DataError
            If an item is not a `Batch`, or there are no items, for example when an iterator is read
            twice.
        """
        index = -1
        for index, item in enumerate(self.items):
            if not isinstance(item, Batch):
                raise DataError(
                    f"{self.name}: item {index} is a {type(item).__name__}; it must be a Batch: "
                    f"{_as_batch(item)}"
                )
            yield item
        if index < 0:
            raise DataError(
                f"{self.name}: no batches; an iterator can be read only once, "
                "give a list or an object whose __iter__ starts anew"
            )


def _as_batch(item: Any) -> str:
    """Describe how to make a batch of an item."""
    if isinstance(item, (list, tuple)):
        return "(Batch(*arrays) for arrays in ...) makes batches of dense, ids and labels"
    if isinstance(item, Mapping):
        return (
            "(encoder.encode(table) for table in ...) makes a batch of each dict of columns; rows "
            "that are dicts can be given as a list, [*rows]"
        )
    return (
        "(encoder.encode(table) for table in ...) makes a batch of each table; to read one table, "
        "give a DataFrame, an Arrow table or a dict of columns itself"
    )
