# SPDX-License-Identifier: Apache-2.0
"""Rows of text files as Arrow tables, and the lines with too few or too many fields.

Fields stay text; labels, numbers and categories are parsed later, as in a parquet column of text.
If a caller passes `coded`, `read_numbers` parses the columns that have only numbers; keys, dense
values and labels are the same. Arrow parses all other columns, and text that is not plain (quotes,
carriage returns, a wrong number of fields, texts for missing values). A row of 40 fields takes
about 1 microsecond, or 0.3 if all are numbers.

A text file is one part, always read from its beginning, so a shuffle mixes rows only within its
buffer, and each epoch parses the file again. To train for many epochs on large text files, convert
them first.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from sparsetrain.data.read.source import CODED_ROWS, PIECE_ROWS, Part, Pieces
from sparsetrain.data.read.text_blocks import (
    BOM,
    NEWLINE,
    QUOTE,
    RETURN,
    Block,
    Dialect,
    count_bytes,
    find_dialect,
    lone_returns,
    read_blocks,
    row_ends,
)
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import Digits
from sparsetrain.data.values.location import Location
from sparsetrain.errors import DataError, first_line


class BadLine(NamedTuple):
    """A line that is not a row: its number from 1, its text and the error."""

    number: int
    text: str
    error: DataError


def raise_bad_line(bad: BadLine) -> None:
    """Raise the error of a bad line."""
    raise bad.error


OnBad = Callable[[BadLine], None]


class Parsed(NamedTuple):
    """The rows of a block, each row's line number, and the lines that are not rows."""

    table: pa.Table
    lines: Array
    bad: list[BadLine]


def parse_block(block: Block, dialect: Dialect, file: str, coded: Sequence[str] = ()) -> Parsed:
    """Parse a block of a file; `coded` is as in `Part.pieces`."""
    is_first, data = block.first_line == 1, block.data
    data = data[len(BOM) :] if is_first and data[: len(BOM)].tobytes() == BOM else data
    header = dialect.header and is_first
    numbers = read_numbers(block._replace(data=data), dialect, coded) if coded else {}
    names = [name for name in dialect.names if name not in numbers]
    if not names:
        table = pa.table({name: numbers[name] for name in dialect.names})
        return Parsed(table, np.arange(table.num_rows) + block.first_line + header, [])
    quotes = count_bytes(data, QUOTE) if dialect.quoted else 0
    if quotes % 2:
        _require_closed_quotes(data, dialect, file, block.first_line)
    invalid: list[Any] = []

    def skip(row: Any) -> str:
        invalid.append(row)
        return "skip"

    try:
        table = pc.read_csv(
            pa.BufferReader(pa.py_buffer(data)),
            pc.ReadOptions(
                use_threads=False, column_names=dialect.names, block_size=max(len(data), 1)
            ),
            pc.ParseOptions(
                delimiter=dialect.delimiter,
                quote_char='"' if quotes else False,
                newlines_in_values=quotes > 0,
                invalid_row_handler=skip,
            ),
            pc.ConvertOptions(
                include_columns=names,
                column_types=dict.fromkeys(names, pa.binary()),
                null_values=list(dialect.null),
                strings_can_be_null=bool(dialect.null),
            ),
        )
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{file}: from line {block.first_line}: not readable ({first_line(error)})"
        ) from None
    rows = len(invalid) + table.num_rows
    is_plain = rows == block.lines and not len(lone_returns(data))
    lines = np.arange(rows) if is_plain else _line_numbers(data, dialect)
    lines += block.first_line
    parsed = _assign(table, lines, invalid, file)
    if header and 1 in parsed.lines[:1]:
        parsed = Parsed(parsed.table.slice(1), parsed.lines[1:], parsed.bad)
    # UTF-8 is checked when a column is read, where the error can name the line.
    texts = [column.cast(pa.string(), safe=False) for column in parsed.table.columns]
    columns = dict(zip(names, texts, strict=True)) | numbers
    return parsed._replace(table=pa.table({name: columns[name] for name in dialect.names}))


def _require_closed_quotes(data: Array, dialect: Dialect, file: str, first_line: int) -> None:
    """Refuse a quoted field without an end, which Arrow would extend to the end of the data.

    A quote inside a field that does not begin with a quote is an ordinary character.
    """
    text = io.StringIO(data.tobytes().decode("utf-8", "replace"), newline="")
    rows = csv.reader(text, delimiter=dialect.delimiter, strict=True)
    line = 0
    try:
        for _ in rows:
            line = rows.line_num
    except csv.Error as error:
        if "unexpected end" in str(error) or "field limit" in str(error):
            raise DataError(
                f"{file}: line {first_line + line}: a quoted field has no end; close the quote, or "
                "double it if it is part of the text"
            ) from None


def _line_numbers(data: Array, dialect: Dialect) -> Array:
    """Return the line, from 0, at which each row begins; blank lines are not rows.

    A carriage return alone ends a row, as for Arrow.
    """
    every = np.flatnonzero(data == NEWLINE)
    both = np.sort(np.append(every, lone_returns(data)))
    ends = row_ends(data, both) if dialect.quoted else both
    starts = np.r_[0, ends + 1]
    stops = np.r_[ends, len(data)]
    is_row = np.array(
        [bool((data[a:b] != RETURN).any()) for a, b in zip(starts, stops, strict=True)]
    )
    return np.searchsorted(every, starts[is_row])


def _assign(table: pa.Table, lines: Array, invalid: list[Any], file: str) -> Parsed:
    """Number the rows by their lines; the parser counts refused rows from 1."""
    at = np.array([row.number - 1 for row in invalid], dtype=np.int64)
    found = Location(file, unit="line", numbers=lines)
    bad = [
        BadLine(
            int(lines[index]),
            row.text,
            found.error(
                f"{row.actual_columns} fields, expected {row.expected_columns}; correct or drop "
                "the line (convert --bad-rows skip leaves it out)",
                index,
            ),
        )
        for index, row in zip(at, invalid, strict=True)
    ]
    return Parsed(table, np.delete(lines, at), bad)


def text_parts(file: str, schema: Schema) -> list[Part]:
    """Open a text file."""
    return [text_part(file, find_dialect(file, schema.text))]


def text_part(
    file: str, dialect: Dialect, block: Block | None = None, on_bad: OnBad = raise_bad_line
) -> Part:
    """Return a part with the rows of a text file, or of one of its blocks.

    `on_bad` is called with each line that is not a row.
    """
    location = Location(file, unit="line")
    columns = pa.schema([(name, pa.string()) for name in dialect.names])
    read = partial(_read, location, dialect, block, on_bad)
    return Part(location, columns, None, read, dialect=dialect)


def _read(
    file: Location,
    dialect: Dialect,
    block: Block | None,
    on_bad: OnBad,
    names: Sequence[str],
    coded: Sequence[str],
) -> Pieces:
    for each in read_blocks(file.name, dialect.quoted) if block is None else [block]:
        parsed = parse_block(each, dialect, file.name, coded)
        for line in parsed.bad:
            on_bad(line)
        first, table = 0, parsed.table.select(list(names))
        is_text = any(pa.types.is_string(type_) for type_ in table.schema.types)
        for piece in table.to_batches(max_chunksize=PIECE_ROWS if is_text else CODED_ROWS):
            yield file.numbered(parsed.lines[first : first + piece.num_rows]), piece
            first += piece.num_rows


# Bytes of a file's first block for which the import of TVM saves more time than it takes.
LEAST_BYTES = 1 << 24


def read_numbers(block: Block, dialect: Dialect, categories: Sequence[str]) -> dict[str, Any]:
    """Return the columns that have only numbers: as `Digits` for `categories`, else int32."""
    data, lines, names, is_first = block.data, block.lines, dialect.names, block.first_line == 1
    is_plain = not dialect.null and len(names) > 1 and "\0" < dialect.delimiter < "\x80"
    if not is_plain or (is_first and len(data) < LEAST_BYTES):
        return {}
    from sparsetrain.parsing.fields import DECIMAL, EIGHT, HEX, TEXT, read_fields  # imports TVM

    if dialect.header and is_first:
        data, lines = data[int(np.argmax(data == NEWLINE)) + 1 :], lines - 1
    is_key = np.isin(names, categories)
    read = read_fields(data, lines, dialect.delimiter, dialect.quoted, is_key)
    columns = {}
    for name, key, values, valid, found in zip(names, is_key, *read, strict=True) if read else ():
        digits = found & (HEX | EIGHT)
        if not (found & TEXT or (key and digits and found & DECIMAL)):  # nor a mix of keys
            type_ = (Digits(16 if digits else 10)) if key else pa.int32()
            columns[name] = _as_arrow(type_, values, valid)
    return columns


def _as_arrow(type_: Any, values: Array, valid: Array) -> Any:
    nulls = len(valid) - int(np.count_nonzero(valid))
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    storage = type_.storage_type if isinstance(type_, Digits) else type_
    array = pa.Array.from_buffers(storage, len(values), [bitmap, pa.py_buffer(values)], nulls)
    return array if storage is type_ else pa.ExtensionArray.from_storage(type_, array)
