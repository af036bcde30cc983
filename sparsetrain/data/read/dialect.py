# SPDX-License-Identifier: Apache-2.0
"""How a text file is written: what its schema says of it, then its name, then its first line."""

from __future__ import annotations

import csv
import io
from typing import NamedTuple

from sparsetrain.data.read.files import check_familiar, delimiter_of
from sparsetrain.data.read.text_file import read_blocks
from sparsetrain.data.schema.schema import TextFormat
from sparsetrain.errors import DataError

BOM = b"\xef\xbb\xbf"  # what some writers begin a UTF-8 file with
_CRITEO = tuple(f"I{i}" for i in range(1, 14)) + tuple(f"C{i}" for i in range(1, 27))
_CRITEO_NAMES = {40: ("label", *_CRITEO), 39: _CRITEO}


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
    if header and not quoted:
        _check_quotes(fields, file)
    names = text.names or (tuple(fields) if header else _CRITEO_NAMES.get(len(fields)))
    if names is None:
        raise DataError(
            f"{file}: line 1: {len(fields)} fields without names (Criteo's have 40, or 39 "
            "without the label); name them in a schema, [text] names = [...]"
        )
    return Dialect(delimiter, quoted, names, header, text.null)


def _fields(data: bytes, delimiter: str, file: str) -> list[str]:
    try:
        line = data.removeprefix(BOM).split(b"\n", 1)[0].decode("utf-8").rstrip("\r")
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


def _check_quotes(names: list[str], file: str) -> None:
    """Refuse names in quotes where a quote is a letter like others."""
    for name in names:
        if len(name) > 1 and name[0] == name[-1] == '"':
            raise DataError(
                f"{file}: line 1: the name {name} stands in double quotes, which are letters in a "
                "tab-separated file: write it without them, or separated by commas"
            )


def _is_header(fields: list[str]) -> bool:
    """Return whether all fields are names; a row of data has a number or an empty field.

    The first may be empty: so pandas writes the name of an index.
    """
    named = fields[1:] if len(fields) > 1 and not fields[0] else fields
    return all(field and not field[:1].isdigit() and field[0] != "-" for field in named)
