# SPDX-License-Identifier: Apache-2.0
"""Text files in blocks of whole lines, plain or compressed, and the dialect they are written in.

Memory does not grow with the file, and the ends of blocks depend only on the file. The dialect is
the schema's; the file's suffix, then its first line, decide anything that the schema leaves open.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparsetrain.data.read.source import open_file, suffix_of
from sparsetrain.data.schema.column_rule import TextFormat
from sparsetrain.data.values.arrays import Array
from sparsetrain.errors import DataError, first_line
from sparsetrain.system.memory import aligned_empty

BLOCK_BYTES = 1 << 25
_PART = 1 << 17
DELIMITERS = {".tsv": "\t", ".txt": "\t", ".csv": ","}
# First bytes of compressed files, and their decompressors.
_PACKED: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda raw: gzip.GzipFile(fileobj=raw),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": lambda raw: pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"),
}
NEWLINE, RETURN, QUOTE = 10, 13, 34


def is_text(head: bytes) -> bool:
    """Return whether a file begins like compressed data, or like a line with tabs."""
    return head.startswith(tuple(_PACKED)) or b"\t" in head


class Block(NamedTuple):
    """Whole lines of a file."""

    data: Array  # (N,) uint8, ending in a newline
    first_line: int  # number of the first line, from 1
    lines: int  # number of newlines
    file_bytes: int  # bytes of the file, as stored, read for this block


def read_blocks(file: str, quoted: bool, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Yield the blocks of a file."""
    with closing(open_file(file)) as raw, closing(_unpacked(raw)) as stream:
        line, rest, before = 1, np.empty(0, np.uint8), 0
        opened, sums = _size_and_time(raw), list[int]()
        try:
            while True:
                memory = aligned_empty(block_bytes)
                memory[: len(rest)] = rest
                size = len(rest) + stream.readinto(memory[len(rest) :])
                if size == len(rest):
                    break
                data = memory[:size]
                cut = _last_line_end(data, quoted)
                if not cut and size >= block_bytes:
                    fix = "a quote may lack its end" if quoted else "is this a text file of rows?"
                    raise DataError(f"{file}: line {line}: no end of line found; {fix}")
                rest = data[cut:].copy()
                if cut:
                    sums.append(_sum(data[:cut]))
                    now, lines = raw.tell(), count_bytes(data[:cut], NEWLINE)
                    yield Block(data[:cut], line, lines, now - before)
                    before, line = now, line + lines
                del memory, data  # freed before more is read
        except (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
            raise DataError(
                f"{file}: after line {line - 1}: cannot be read on ({first_line(error)}); "
                "copy it again"
            ) from None
        if len(rest):
            # An unpaired quote that is an ordinary character can leave several whole lines here.
            rest = rest if rest[-1] == NEWLINE else np.append(rest, np.uint8(NEWLINE))
            sums.append(_sum(rest))
        found = _size_and_time(raw)
        if found[0] != opened[0]:
            raise DataError(
                f"{file}: after line {line - 1}: the file had {opened[0]:,} bytes when it was "
                f"opened and has {found[0]:,} now; wait until it is complete, or "
                "read a copy"
            )
        if found != opened and sums != [
            _sum(b.data) for b in read_blocks(file, quoted, block_bytes)
        ]:
            raise DataError(
                f"{file}: the file was rewritten while it was read; wait until it is complete, or "
                "read a copy"
            )
        if len(rest):
            yield Block(rest, line, count_bytes(rest, NEWLINE), raw.tell() - before)


def _sum(data: Array) -> int:
    """Return a checksum, ten times as fast as a CRC."""
    words = len(data) // 8 * 8
    return int(data[:words].view(np.uint64).sum()) + int(data[words:].sum())


def count_bytes(data: Array, byte: int) -> int:
    """Return how often a byte occurs, counted in parts that fit a core's cache."""
    parts = (data[first : first + _PART] for first in range(0, len(data), _PART))
    return sum(int(np.count_nonzero(part == byte)) for part in parts)


def _size_and_time(raw: IO[bytes]) -> tuple[int, int]:
    """Return a file's size in bytes and modification time in ns; zeros for a URL."""
    if not isinstance(raw, io.BufferedReader):
        return 0, 0
    found = os.fstat(raw.fileno())
    return found.st_size, found.st_mtime_ns


def _unpacked(raw: IO[bytes]) -> Any:
    head = raw.read(max(map(len, _PACKED)))
    raw.seek(0)
    unpack = next((make for magic, make in _PACKED.items() if head.startswith(magic)), None)
    return raw if unpack is None else unpack(raw)


def _last_line_end(data: Array, quoted: bool) -> int:
    """Return the length of the data up to the last newline that ends a row; 0 if none does."""
    if quoted and count_bytes(data, QUOTE):
        ends = row_ends(data)
        return int(ends[-1]) + 1 if len(ends) else 0
    for first in reversed(range(0, len(data), _PART)):
        ends = np.flatnonzero(data[first : first + _PART] == NEWLINE)
        if len(ends):
            return first + int(ends[-1]) + 1
    return 0


def row_ends(data: Array, newlines: Array | None = None) -> Array:
    """Return the positions of newlines outside quotes, (n,) int64; a block begins outside."""
    newlines = np.flatnonzero(data == NEWLINE) if newlines is None else newlines
    quotes = np.flatnonzero(data == QUOTE)
    return newlines[np.searchsorted(quotes, newlines) % 2 == 0]


def lone_returns(data: Array) -> Array:
    """Return the positions of carriage returns without a following newline, (n,) int64."""
    returns = np.flatnonzero(data == RETURN) if count_bytes(data, RETURN) else np.zeros(0, int)
    return returns[np.append(data, np.uint8(NEWLINE))[returns + 1] != NEWLINE]


BOM = b"\xef\xbb\xbf"  # byte order mark, which some programs write first
_CRITEO = tuple(f"I{i}" for i in range(1, 14)) + tuple(f"C{i}" for i in range(1, 27))
_CRITEO_NAMES = {40: ("label", *_CRITEO), 39: _CRITEO}


class Dialect(NamedTuple):
    """Format of one text file, with every option resolved."""

    delimiter: str
    quoted: bool  # whether fields may be in double quotes; never in tab-separated files
    names: tuple[str, ...]
    header: bool  # whether the first line is a header, not a row
    null: tuple[str, ...]


def find_dialect(file: str, text: TextFormat) -> Dialect:
    """Complete a schema's text format from the first line of a file."""
    delimiter = text.delimiter or DELIMITERS.get(suffix_of(file), "\t")
    quoted = delimiter != "\t"
    first = next(read_blocks(file, quoted, block_bytes=1 << 20), None)
    if first is None:
        raise DataError(f"{file}: the file is empty (0 bytes)")
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


def _fields(data: Array, delimiter: str, file: str) -> list[str]:
    line = first_line_of(data, file)
    if delimiter == "\t":
        return line.split("\t")
    try:
        return next(csv.reader(io.StringIO(line), delimiter=delimiter), [""])
    except csv.Error as error:
        raise DataError(f"{file}: line 1: not readable ({error})") from None


def first_line_of(data: Array, file: str) -> str:
    """Return the first line of a file, given its first block."""
    try:
        line = data.tobytes().removeprefix(BOM).split(b"\n", 1)[0].decode("utf-8").rstrip("\r")
    except UnicodeDecodeError:
        raise DataError(f"{file}: line 1: not UTF-8 text; is this a text file of rows?") from None
    if "\r" in line:
        raise DataError(
            f"{file}: line 1: its lines end in a carriage return (old Mac); end them in a newline"
        )
    return line


def _check_delimiter(line: str, file: str) -> None:
    """Refuse a first line with one field if it contains a common delimiter."""
    for other in ("\t", ",", ";", "|"):
        if other in line:
            raise DataError(
                f"{file}: line 1: only one field was found; if {other!r} is the delimiter, set it "
                "in a schema file: [text] delimiter"
            )


def _check_quotes(names: list[str], file: str) -> None:
    """Refuse names in double quotes in a file where quotes are ordinary characters."""
    for name in names:
        if len(name) > 1 and name[0] == name[-1] == '"':
            raise DataError(
                f"{file}: line 1: the name {name} is in double quotes, which are plain letters in "
                "a tab-separated file: write it without them, or separated by commas"
            )


def _is_header(fields: list[str]) -> bool:
    """Return whether all fields are names; a row of data has a number or an empty field.

    The first name may be empty, as pandas writes it for an index. Empty names at the end are
    ignored.
    """
    named = fields[1:] if len(fields) > 1 and not fields[0] else [*fields]
    while named and not named[-1]:
        named.pop()
    plain = (field and not field[:1].isdigit() and field[0] != "-" for field in named)
    return bool(named) and all(plain)
