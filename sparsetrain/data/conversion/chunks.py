# SPDX-License-Identifier: Apache-2.0
"""Chunks of the input; they depend only on the input, not on memory, workers or earlier runs.

A chunk is a run of row groups of one parquet file, or a block of lines of a text file. A text file
cannot be read from the middle, so a block's lines are read while chunking and are part of the
chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from sparsetrain.data.encode.reader import Reader, bind
from sparsetrain.data.encode.rules import Rules
from sparsetrain.data.read.constant_columns import Constants, with_partitions
from sparsetrain.data.read.derived_columns import stored_names
from sparsetrain.data.read.file_systems import size_and_time
from sparsetrain.data.read.files import file_parts
from sparsetrain.data.read.source import Part
from sparsetrain.data.read.text_blocks import Block, Dialect, read_blocks
from sparsetrain.data.read.text_rows import BadLine, TextRows, parse_block
from sparsetrain.data.values.location import Location

CHUNK_ROWS = 1 << 18

Pieces = Iterator[tuple[Location, pa.RecordBatch]]


@dataclass(frozen=True)
class Chunk:
    """One task's input."""

    location: Location  # the file
    reader: Reader  # of its columns
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
        # Derived columns read the text.
        coded = self.reader.found.categories if numbers and not derived else ()
        parsed = parse_block(self.block, self.dialect, self.location.name, coded)
        part = Part(self.location, parsed.table.schema, None, parsed.pieces)
        part = with_partitions(part) if self.has_partitions else part
        return part.pieces(names), parsed.bad


def open_inputs(files: Sequence[str], encoder: Rules, label: bool) -> list[Chunk]:
    """Return one chunk per file, for the whole file's location and columns."""
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
