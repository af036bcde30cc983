# SPDX-License-Identifier: Apache-2.0
"""A block of text lines as an Arrow table of bytes, and the lines that have too few or many fields.

Every field stays text: the readers of labels, numbers and categories parse it, so that a value
means the same in a text file as in a parquet column of text. Cost: about 1 microsecond for a row of
40 fields.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from sparsetrain.errors import DataError

from ..schema.schema import TextFormat
from ..values.arrays import Array
from ..values.place import Place
from .files import check_familiar, delimiter_of
from .source import PIECE_ROWS, with_numbers
from .text_file import Block, read_blocks, row_ends

_BOM = b"\xef\xbb\xbf"
_CRITEO = tuple(f"I{i}" for i in range(1, 14)) + tuple(f"C{i}" for i in range(1, 27))
_CRITEO_NAMES = {40: ("label", *_CRITEO), 39: _CRITEO}


class BadLine(NamedTuple):
    """A line that is no row: its number from 1, its text and what is wrong."""

    number: int
    text: str
    reason: str


class Parsed(NamedTuple):
    """The rows of a block, the number of the line each begins at, and the lines that are none."""

    table: pa.Table
    lines: Array
    bad: list[BadLine]

    def pieces(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield columns of the rows, a piece at a time, with the numbers of their lines."""
        first = 0
        for piece in self.table.select(list(names)).to_batches(max_chunksize=PIECE_ROWS):
            yield with_numbers(piece, self.lines[first : first + piece.num_rows])
            first += piece.num_rows


class Dialect(NamedTuple):
    """How one file is written, everything decided.

    Attributes
    ----------
    delimiter : str
    quoted : bool
        Whether a field may stand in double quotes; in tab-separated files none does.
    names : tuple of str
    header : bool
        Whether the first line is not a row.
    null : tuple of str
    """

    delimiter: str
    quoted: bool
    names: tuple[str, ...]
    header: bool
    null: tuple[str, ...]


def find_dialect(file: str, text: TextFormat) -> Dialect:
    """Look at the first line of a file to settle what its schema leaves open.

    Raises
    ------
    DataError
        If the file is empty or cannot be read, or its columns have no names.
    """
    delimiter = text.delimiter or delimiter_of(file)
    quoted = delimiter != "\t"
    first = next(read_blocks(file, quoted, block_bytes=1 << 20), None)
    if first is None:
        raise DataError(f"{file}: the file is empty (0 bytes)")
    check_familiar(file, first.data)
    fields = _fields(first.data, delimiter, file)
    if len(fields) == 1 and text.delimiter is None:
        _check_delimiter(fields[0], file)
    header = text.header if text.header is not None else not text.names and _is_header(fields)
    names = text.names or (tuple(fields) if header else _CRITEO_NAMES.get(len(fields)))
    if names is None:
        raise DataError(
            f"{file}: line 1: {len(fields)} fields without names (Criteo's have 40, or 39 "
            "without the label); name them in a schema, [text] names = [...]"
        )
    return Dialect(delimiter, quoted, names, header, text.null)


def _fields(data: bytes, delimiter: str, file: str) -> list[str]:
    try:
        line = data.removeprefix(_BOM).split(b"\n", 1)[0].decode("utf-8").rstrip("\r")
    except UnicodeDecodeError:
        raise DataError(f"{file}: line 1: not UTF-8 text; is this a text file of rows?") from None
    if delimiter == "\t":
        return line.split("\t")
    return next(csv.reader(io.StringIO(line), delimiter=delimiter), [""])


def _check_delimiter(line: str, file: str) -> None:
    """Refuse a line of one field that looks like several; a column may well be alone."""
    for other in ("\t", ",", ";", "|"):
        if other in line:
            raise DataError(
                f"{file}: line 1: one field, or is {other!r} the delimiter? "
                "say so in a schema, [text] delimiter"
            )


def _is_header(fields: list[str]) -> bool:
    """Return whether all fields are names; a row of data has a number or an empty field.

    The first may be empty: so pandas writes the name of an index.
    """
    named = fields[1:] if len(fields) > 1 and not fields[0] else fields
    return all(field and not field[:1].isdigit() and field[0] != "-" for field in named)


def parse_block(block: Block, dialect: Dialect, file: str) -> Parsed:
    """Parse whole lines of a file.

    Raises
    ------
    DataError
        If the text cannot be cut into fields at all.
    """
    data = block.data.removeprefix(_BOM) if block.first_line == 1 else block.data
    invalid: list[Any] = []

    def skip(row: Any) -> str:
        invalid.append(row)
        return "skip"

    try:
        table = pc.read_csv(
            pa.BufferReader(data),
            pc.ReadOptions(
                use_threads=False, column_names=dialect.names, block_size=max(len(data), 1)
            ),
            _parse_options(dialect, data, skip),
            _convert_options(dialect),
        )
    except pa.ArrowInvalid as error:
        reason = str(error).split("\n")[0]
        raise DataError(f"{file}: from line {block.first_line}: not readable ({reason})") from None
    lines = _line_numbers(data, dialect, len(invalid) + table.num_rows) + block.first_line
    return _drop_header(_assign(table, lines, invalid), dialect, block)


def _parse_options(dialect: Dialect, data: bytes, skip: Any) -> pc.ParseOptions:
    quoted = dialect.quoted and b'"' in data
    return pc.ParseOptions(
        delimiter=dialect.delimiter,
        quote_char='"' if quoted else False,
        newlines_in_values=quoted,
        invalid_row_handler=skip,
    )


def _convert_options(dialect: Dialect) -> pc.ConvertOptions:
    return pc.ConvertOptions(
        column_types=dict.fromkeys(dialect.names, pa.binary()),
        null_values=list(dialect.null),
        strings_can_be_null=bool(dialect.null),
    )


def _line_numbers(data: bytes, dialect: Dialect, rows: int) -> Array:
    """Return the line, from 0, at which each row begins; blank lines are no rows."""
    newlines = data.count(b"\n")
    if newlines + (not data.endswith(b"\n")) == rows:
        return np.arange(rows)
    ends = row_ends(data) if dialect.quoted else np.flatnonzero(np.frombuffer(data, "u1") == 10)
    starts = np.r_[0, ends + 1]
    stops = np.r_[ends, len(data)]
    is_row = np.array([bool(data[a:b].strip(b"\r")) for a, b in zip(starts, stops, strict=True)])
    every = np.flatnonzero(np.frombuffer(data, "u1") == 10)
    return np.searchsorted(every, starts[is_row])


def _assign(table: pa.Table, lines: Array, invalid: list[Any]) -> Parsed:
    """Say which line each row is from; the parser counts the rows that it refuses from 1."""
    at = np.array([row.number - 1 for row in invalid], dtype=np.int64)
    bad = [
        BadLine(
            int(lines[index]),
            row.text,
            f"{row.actual_columns} fields, expected {row.expected_columns}",
        )
        for index, row in zip(at, invalid, strict=True)
    ]
    return Parsed(table, np.delete(lines, at), bad)


def _drop_header(parsed: Parsed, dialect: Dialect, block: Block) -> Parsed:
    if not dialect.header or block.first_line != 1 or 1 not in parsed.lines[:1]:
        return parsed
    return Parsed(parsed.table.slice(1), parsed.lines[1:], parsed.bad)


def bad_line_error(file: str, bad: BadLine) -> DataError:
    """Return the error about a line that is no row."""
    return Place(file, unit="line", first_row=bad.number).error(
        f"{bad.reason}; correct or drop the line (convert --bad-rows skip leaves it out)", 0
    )
