# SPDX-License-Identifier: Apache-2.0
"""A text file in blocks of whole lines, plain or gzipped, in constant memory.

Where blocks end depends on the file alone.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import closing
from typing import IO, NamedTuple

import numpy as np

from sparsetrain.data.read.files import GZIP
from sparsetrain.errors import DataError, first_line

BLOCK_BYTES = 1 << 25
_NEWLINE, _QUOTE = 10, 34


class Block(NamedTuple):
    """Whole lines of a file.

    Attributes
    ----------
    data : bytes
    first_line : int
        Number of the first of them, from 1.
    file_bytes : int
        Bytes of the file, compressed or not, that were read for them.
    """

    data: bytes
    first_line: int
    file_bytes: int


def read_blocks(file: str, quoted: bool, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Yield the blocks of a file.

    Raises
    ------
    DataError
        If the file cannot be read, its compression is damaged or a line is longer than a block.
    """
    with closing(_open(file)) as raw, closing(_unpacked(raw)) as stream:
        line, rest, before = 1, b"", 0
        try:
            while data := stream.read(block_bytes - len(rest)):
                data = rest + data
                cut = _last_line_end(data, quoted)
                if not cut and len(data) >= block_bytes:
                    raise _too_long(file, line, quoted)
                data, rest = data[:cut], data[cut:]
                if data:
                    now = raw.tell()
                    yield Block(data, line, now - before)
                    before = now
                line += data.count(b"\n")
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{file}: after line {line - 1}: cannot be read on ({first_line(error)}); "
                "copy it again"
            ) from None
        if rest:
            yield Block(rest, line, raw.tell() - before)


def _too_long(file: str, line: int, quoted: bool) -> DataError:
    fix = "a quote may lack its end" if quoted else "is this a text file of rows?"
    return DataError(f"{file}: line {line}: no end of line found; {fix}")


def _open(file: str) -> IO[bytes]:
    try:
        return open(file, "rb")
    except FileNotFoundError:
        raise DataError(f"{file}: no such file") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from None


def _unpacked(raw: IO[bytes]) -> IO[bytes]:
    packed = raw.read(2) == GZIP
    raw.seek(0)
    return gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[return-value]


def _last_line_end(data: bytes, quoted: bool) -> int:
    """Return the bytes up to and with the last newline that ends a row, 0 if there is none."""
    if not quoted or b'"' not in data:
        return data.rfind(b"\n") + 1
    ends = row_ends(data)
    return int(ends[-1]) + 1 if len(ends) else 0


def row_ends(data: bytes) -> np.ndarray:
    """Return where the newlines outside of quotes are, (n,) int64; a block begins outside."""
    characters = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(characters == _NEWLINE)
    quotes = np.flatnonzero(characters == _QUOTE)
    return newlines[np.searchsorted(quotes, newlines) % 2 == 0]
