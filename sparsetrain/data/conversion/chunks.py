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
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from sparsetrain.data.columns.category import Category
from sparsetrain.data.encode.reader import Reader
from sparsetrain.data.encode.rules import Rules
from sparsetrain.data.read.added_columns import derived_column, stored_names, with_partitions
from sparsetrain.data.read.source import (
    DATASET_FILE,
    Part,
    Pieces,
    is_url,
    keep_rows,
    size_and_time,
)
from sparsetrain.data.read.text_blocks import Block, read_blocks
from sparsetrain.data.read.text_rows import BadLine, OnBad, raise_bad_line, text_part
from sparsetrain.data.values import arrow_types
from sparsetrain.data.values.location import Location, RowError
from sparsetrain.errors import DataError

CHUNK_ROWS = 1 << 18
POLICIES = ("error", "skip", "quarantine")  # of bad rows

Inputs = Sequence[tuple[Part, Reader]]  # all parts of all files, with their readers
Report = dict[str, Any]  # on a bad row or line, for JSON
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

    files: Sequence[str]
    inputs: Inputs
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
        encoder = known.fingerprint if known else blank.manifest
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


class Chunk(NamedTuple):
    """Input of one task: row groups of a parquet file, or a block of lines of a text file."""

    parts: tuple[Part, ...]  # the row groups, or the whole text file
    reader: Reader  # reads their columns
    input_bytes: float  # approximate size of the chunk in its file
    block: Block | None = None

    @property
    def location(self) -> Location:
        """Location of the first row group, or of the text file."""
        return self.parts[0].location

    @property
    def rows(self) -> int:
        """Rows of the row groups."""
        return sum(part.num_rows or 0 for part in self.parts)

    def pieces(self, names: Sequence[str], coded: Sequence[str], on_bad: OnBad) -> Pieces:
        """Yield columns piece by piece, see `Part.pieces`; `on_bad` gets lines that are not rows.

        Derived columns are computed later, since they may refuse a row.
        """
        first, parts, derived = self.parts[0], self.parts, self.reader.rules.schema.made
        if self.block is not None:
            text = text_part(first.location.name, first.dialect, self.block, on_bad)
            has_partitions = first.schema.names != text.schema.names
            parts = (with_partitions(text) if has_partitions else text,)
        names = stored_names(names, derived, first.schema.names) if derived else names
        return (item for part in parts for item in part.pieces(names, coded))


def split_chunks(inputs: Inputs) -> Iterator[Chunk]:
    """Yield the chunks of all parts; text blocks are read here."""
    for file, group in groupby(inputs, lambda item: item[0].location.name):
        opened = [*group]
        rows = sum(part.num_rows or 0 for part, _ in opened)
        row_bytes = size_and_time(file)[0] / max(1, rows)
        full = [part for part, _ in opened if part.num_rows]
        for chosen in _row_groups(full):
            chunk = Chunk(tuple(chosen), opened[0][1], 0)
            yield chunk._replace(input_bytes=row_bytes * chunk.rows)
        for part, reader in opened if opened[0][0].dialect else ():
            for block in read_blocks(file, part.dialect.quoted):
                yield Chunk((part,), reader, block.file_bytes, block)


def _row_groups(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Yield the row groups of each chunk."""
    chosen, rows = list[Part](), 0
    for part in parts:
        count = part.num_rows or 0
        if chosen and rows + count > CHUNK_ROWS:
            yield chosen
            chosen, rows = [], 0
        chosen.append(part)
        rows += count
    if chosen:
        yield chosen


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
) -> tuple[Iterable[Result], list[Report]]:
    """Return the result of `read` for each piece, and reports of the bad rows left out.

    `strict` reads the same columns, to find bad rows. The list of reports is complete once all
    pieces are read. `bad_rows` is one of `POLICIES`. Text comes coded, see `Part.pieces`, unless
    there are derived columns, which need the text. If a row of a text file is bad, its chunk is
    read again as text, so that reports show the original.
    """
    coded = () if chunk.reader.rules.schema.made else chunk.reader.found.categories
    if coded and chunk.block is not None:
        with suppress(DataError):
            pieces = chunk.pieces(strict.names, coded, raise_bad_line)
            return [read(piece, here) for here, piece in pieces], []
        coded = ()
    if bad_rows == "error":
        pieces = chunk.pieces(strict.names, coded, raise_bad_line)
        return (read(piece, here) for here, piece in pieces), []
    reports = list[Report]()

    def on_bad(line: BadLine) -> None:
        reports.append(_report(chunk.location, line.number, None, str(line.error), text=line.text))

    return _read_pieces(chunk.pieces(strict.names, coded, on_bad), read, strict, reports), reports


def _report(
    location: Location, number: int, column: str | None, reason: str, **held: Any
) -> Report:
    """Return a report on a row or line for JSON; `held` is its content."""
    where = {"file": location.name, location.unit: number}
    return {**where, "column": column, "reason": reason, **held}


def _read_pieces(
    pieces: Pieces,
    read: Callable[[pa.RecordBatch, Location], Result],
    strict: StrictReader,
    reports: list[Report],
) -> Iterator[Result]:
    """Yield the result of `read` for each piece without its bad rows, and report these."""
    for location, piece in pieces:
        try:
            found = read(piece, location)
        except RowError:
            location, piece = _without_bad(location, piece, strict, reports)
            if not piece.num_rows:
                continue
            found = read(piece, location)
        yield found


def _without_bad(
    location: Location, piece: pa.RecordBatch, strict: StrictReader, reports: list[Report]
) -> tuple[Location, pa.RecordBatch]:
    good = np.ones(piece.num_rows, dtype=bool)
    for row, (column, reason) in sorted(_find_bad(piece, strict, location).items()):
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
