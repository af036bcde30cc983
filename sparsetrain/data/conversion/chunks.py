# SPDX-License-Identifier: Apache-2.0
"""`Job`: the arguments of one conversion; its input in chunks, and their good rows.

Chunks depend only on the input, not on memory, workers or earlier runs. A chunk is a sequence of
row groups of one parquet file, or a block of lines of a text file. A text file cannot be read from
the middle, so a block's lines are read while chunking and are part of the chunk.

A row is bad if the strict reader refuses it; encoding accepts all other rows. Both passes find bad
rows by calling a column's reader again on the rows before and after each refused row. That is slow
for many bad rows, so the search stops when more than half of a piece is bad.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from sparsetrain.data.columns.category import Category
from sparsetrain.data.encode.encoder_state import write_manifest
from sparsetrain.data.encode.reader import Reader, bind
from sparsetrain.data.encode.rules import Rules
from sparsetrain.data.read.added_columns import (
    Constants,
    derived_column,
    stored_names,
    with_partitions,
)
from sparsetrain.data.read.file_systems import is_url, size_and_time
from sparsetrain.data.read.open_source import file_parts
from sparsetrain.data.read.parquet import DATASET_FILE
from sparsetrain.data.read.source import Part, keep_rows
from sparsetrain.data.read.text_blocks import Block, Dialect, read_blocks
from sparsetrain.data.read.text_rows import BadLine, TextRows, bad_line_error, parse_block
from sparsetrain.data.values import arrow_types
from sparsetrain.data.values.location import Location, RowError
from sparsetrain.errors import DataError

CHUNK_ROWS = 1 << 18
POLICIES = ("error", "skip", "quarantine")  # of bad rows

Pieces = Iterator[tuple[Location, pa.RecordBatch]]
Read = Callable[[pa.RecordBatch, Location], Any]
Result = TypeVar("Result")


class Progress(Protocol):
    """Callback that reports the progress of a pass."""

    def __call__(self, what: str, rows: int, done: float) -> None:
        """Report that pass `what` has read `rows` more rows, and is complete to the share `done`.

        Work of an earlier run counts only in `done`.
        """


@dataclass(frozen=True)
class Job:
    """Arguments of one conversion; see `convert_files` for the fields."""

    files: list[str]
    out: Path
    blank: Rules
    known: Rules | None
    label: bool
    bad_rows: str
    memory: int
    workers: int
    progress: Progress

    @property
    def work(self) -> Path:
        """Work folder, removed at the end."""
        return self.out / "_work"

    @property
    def state(self) -> Path:
        """File of the state so far: an unfinished `dataset.json`."""
        return self.work / DATASET_FILE

    @cached_property
    def plan(self) -> str:
        """A digest of everything the result depends on."""
        known, blank = self.known, self.blank
        encoder = known.fingerprint if known else write_manifest(blank.fields)
        plan = {
            "version": 3,
            "inputs": _identity(self.files),
            "encoder": encoder,
            "label": self.label,
            "bad_rows": self.bad_rows,
        }
        return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:32]


def _identity(files: Sequence[str]) -> list[dict[str, object]]:
    """Return path, size and modification time of each input."""
    stats = [(file, size_and_time(file)) for file in files]
    return [
        {"path": file if is_url(file) else str(Path(file).absolute()), "size": s, "changed": t}
        for file, (s, t) in stats
    ]


@dataclass(frozen=True)
class Chunk:
    """Input of one task: row groups of a parquet file, or a block of lines of a text file."""

    location: Location  # the file
    reader: Reader  # reads its columns
    parts: tuple[Part, ...] = ()  # where to read them
    block: Block | None = None  # the lines of a text chunk
    dialect: Dialect | None = None
    file_rows: int = 0  # of the whole parquet file
    has_partitions: bool = False  # columns in the path of the text file

    @property
    def rows(self) -> int:
        """Rows of the row groups."""
        return sum(part.num_rows or 0 for part in self.parts)

    @property
    def input_bytes(self) -> float:
        """Approximate size of the chunk in its file, in bytes."""
        if self.block is not None:
            return self.block.file_bytes
        return size_and_time(self.location.name)[0] * self.rows / max(1, self.file_rows)

    def pieces(self, names: Sequence[str], numbers: bool = False) -> tuple[Pieces, list[BadLine]]:
        """Return columns as record batches with their locations, and the lines that are not rows.

        Derived columns are computed later, since they may refuse a row. With `numbers`, numbers in
        text are parsed; see `Part.pieces`.
        """
        derived = self.reader.rules.schema.made
        if derived:
            names = stored_names(names, derived, self.parts[0].schema.names)
        if self.block is None or self.dialect is None:
            return (item for part in self.parts for item in part.pieces(names)), []
        # Derived columns need the text itself, so its numbers are not parsed here.
        coded = self.reader.found.categories if numbers and not derived else ()
        parsed = parse_block(self.block, self.dialect, self.location.name, coded)
        part = Part(self.location, parsed.table.schema, None, parsed.pieces)
        part = with_partitions(part) if self.has_partitions else part
        return part.pieces(names), parsed.bad


def open_inputs(files: Sequence[str], encoder: Rules, label: bool) -> list[Chunk]:
    """Return one chunk per file, with the location and columns of the whole file."""
    opened = [tuple(file_parts(file, encoder.schema)) for file in files]
    first = [
        parts[0] if parts else Part(Location(file), pa.schema([]), 0, lambda *_: iter(()))
        for file, parts in zip(files, opened, strict=True)
    ]
    bound = bind(encoder, first, require_label=label)
    return [
        _whole(part, parts, reader)
        for part, parts, (_, reader) in zip(first, opened, bound, strict=True)
    ]


def _whole(first: Part, parts: tuple[Part, ...], reader: Reader) -> Chunk:
    full = tuple(part for part in parts if part.num_rows != 0)
    rows = sum(part.num_rows or 0 for part in full)
    has_partitions = isinstance(first.read, Constants)
    read = first.read.inner if isinstance(first.read, Constants) else first.read
    dialect = read.dialect if isinstance(read, TextRows) else None
    location = Location(first.location.name, unit=first.location.unit)
    return Chunk(location, reader, full, None, dialect, rows, has_partitions)


def split_chunks(inputs: Sequence[Chunk]) -> Iterator[Chunk]:
    """Yield the chunks of all inputs; text blocks are read here."""
    for source in inputs:
        yield from _split_text(source) if source.dialect else _split_row_groups(source)


def _split_text(source: Chunk) -> Iterator[Chunk]:
    assert source.dialect is not None
    for block in read_blocks(source.location.name, source.dialect.quoted):
        yield replace(source, block=block)


def _split_row_groups(source: Chunk) -> Iterator[Chunk]:
    open_: list[Part] = []
    rows = 0
    for part in source.parts:
        if open_ and rows + (part.num_rows or 0) > CHUNK_ROWS:
            yield replace(source, parts=tuple(open_))
            open_, rows = [], 0
        open_.append(part)
        rows += part.num_rows or 0
    if open_:
        yield replace(source, parts=tuple(open_))


class StrictReader(NamedTuple):
    """Columns to read, each with its reader, which may refuse a row."""

    names: Sequence[str]
    readers: Sequence[tuple[str, Read]]

    def read(self, piece: pa.RecordBatch, location: Location) -> list[Any]:
        """Return the columns read."""
        return [read(piece, location.of_column(name)) for name, read in self.readers]


def strict_reader(
    reader: Reader, of_category: Callable[..., Any] = Category.encode
) -> StrictReader:
    """Return a strict reader of an encoder's columns; see `Reader.columns`."""
    derived = reader.rules.schema.made

    def array(name: str | None, piece: pa.RecordBatch, location: Location) -> Any:
        if name is None:
            return None
        place = piece.schema.get_field_index(name)
        return piece.column(place) if place >= 0 else derived_column(piece, derived[name], location)

    def bound(names: Sequence[str | None], read: Callable[..., Any]) -> Read:
        return lambda piece, here: read(*(array(name, piece, here) for name in names), here)

    columns = reader.columns(of_category)
    return StrictReader(reader.names, [(str(n[0]), bound(n, read)) for n, read in columns])


def read_good_rows(
    chunk: Chunk,
    strict: StrictReader,
    bad_rows: str,
    read: Callable[[pa.RecordBatch, Location], Result],
) -> tuple[Iterable[Result], list[dict[str, Any]]]:
    """Return the result of `read` for each piece, and reports of the bad rows left out.

    `strict` reads the same columns, to find bad rows. The list of reports is complete once all
    pieces are read. `bad_rows` is one of `POLICIES`. A text chunk is first read with its numbers
    parsed. If a row is bad, the chunk is read again as text, so that reports show the original.
    """
    if chunk.block is not None:
        with suppress(DataError):
            pieces, bad_lines = chunk.pieces(strict.names, numbers=True)
            if not bad_lines:
                return [read(piece, here) for here, piece in pieces], []
    pieces, bad_lines = chunk.pieces(strict.names)
    reports = list[dict[str, Any]]()
    for line in bad_lines:
        error = bad_line_error(chunk.location.name, line)
        if bad_rows == "error":
            raise error
        reports.append(_report(chunk.location, line.number, None, str(error), text=line.text))
    reader = None if bad_rows == "error" else strict
    return _read_pieces(pieces, read, reader, reports), reports


def _report(
    location: Location, number: int, column: str | None, reason: str, **held: Any
) -> dict[str, Any]:
    """Return a report on a row or line for JSON; `held` is its content."""
    where = {"file": location.name, location.unit: number}
    return {**where, "column": column, "reason": reason, **held}


def _read_pieces(
    pieces: Pieces,
    read: Callable[[pa.RecordBatch, Location], Result],
    reader: StrictReader | None,
    reports: list[dict[str, Any]],
) -> Iterator[Result]:
    """Yield the result of `read` for each piece; `reader` finds bad rows, None refuses them."""
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
    """Return the only value of an array, as a JSON value."""
    try:
        value = array[0].as_py()
    except UnicodeDecodeError:
        type_ = pa.list_(pa.binary()) if arrow_types.is_bag(array.type) else pa.binary()
        value = array.cast(type_)[0].as_py()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, (int, str, type(None))) else str(value)


def _find_bad(
    piece: pa.RecordBatch, reader: StrictReader, location: Location
) -> dict[int, tuple[str, str]]:
    """Return each bad row's first bad column and the reason; raise if more than half are bad."""
    faults: dict[int, tuple[str, str]] = {}
    for name, read in reader.readers:
        for row, reason in _in_column(piece, read, location.of_column(name)):
            faults.setdefault(row, (name, reason))
            if 2 * len(faults) > piece.num_rows > 1:
                raise location.error(
                    f"more than half of {piece.num_rows} rows are bad, too many to skip or "
                    f"quarantine; correct the data or their schema; one of them: {reason}"
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
