# SPDX-License-Identifier: Apache-2.0
"""Parquet files: one part per row group, validated when opened.

Every footer is read when the source is opened, so a missing, empty, truncated or non-parquet file
is reported before the first batch. Rows are read with `ParquetFile.iter_batches`, and page
checksums are verified if the file has them. Memory: the stored column chunks of one row group
(buffers of them if it is large), one unpacked page of each column, and a piece. A piece has fewer
rows if rows are long: a few kB on disk can repeat a text of 1 MB in every row. If the footer does
not bound the length of rows, the first piece has one row, and each piece sets the size of the next.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from sparsetrain.data.read.source import (
    CODED_ROWS,
    DATASET_FILE,
    PIECE_ROWS,
    Part,
    Pieces,
    Range,
    footer_checksum,
    is_url,
    located,
    open_file,
    read_footer,
    size_and_time,
)
from sparsetrain.data.values.arrow_types import TEXT, is_bag, kind_of
from sparsetrain.data.values.location import Location
from sparsetrain.errors import DataError, first_line
from sparsetrain.system.file_locks import read_json

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
# Text is read as codes only if its dictionary page has at most so many bytes, the usual limit of
# writers, because every piece searches the whole dictionary.
_DICTIONARY = 1 << 20
_PIECE_BYTES = 1 << 26  # most bytes of a piece, estimated from its row group's mean row
_GROWTH = 4  # largest ratio of a piece's rows to the previous piece's
# Encodings for which the footer gives the size of texts in memory, and dictionary encodings.
_TELLING = {"PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}
_TELLING |= {"RLE", "BIT_PACKED"}  # encodings of levels, not of values
_LARGE, _BUFFER = 1 << 27, 1 << 18  # bytes: larger row groups are read through buffers
# Endings of the path of the values in a list column; they depend on the writer.
_IN_LIST = (".list.element", ".list.item", ".bag.array_element", ".array")


def is_parquet(head: bytes) -> bool:
    """Return whether a file with these first bytes is parquet."""
    return head.startswith(_MAGIC)


def parquet_parts(file: str) -> Iterator[Part]:
    """Yield one part for each row group of a file."""
    footer = _check_frame(file)
    try:
        with pq.ParquetFile(_input(file)) as reader:
            metadata, schema = reader.metadata, reader.schema_arrow
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(
            f"{file}: the parquet footer is damaged ({first_line(error)}); write it again"
        ) from None
    leaves, written = _leaves(metadata.schema), (size_and_time(file), zlib.crc32(footer))
    first_row = 0
    for number in range(metadata.num_row_groups):
        group = _RowGroup(metadata, schema, leaves, Location(file, number, first_row), written)
        yield Part(group.location, schema, group.num_rows, group, group.range_of)
        first_row += group.num_rows


def _leaves(schema: Any) -> dict[str, int]:
    """Map each column to the leaf of the schema that holds its values, or its lists' values."""
    paths = {schema.column(index).path: index for index in range(len(schema))}
    inside = {path.removesuffix(end): i for path, i in paths.items() for end in _IN_LIST}
    return inside | paths


def _input(file: str) -> Any:
    """Return Arrow's argument for a file; a path is passed as bytes, since it need not be UTF-8."""
    return open_file(file) if is_url(file) else pa.OSFile(os.fsencode(file))


def _check_frame(file: str) -> bytes:
    """Return the footer; check the magic bytes first, for a plain error message."""
    try:
        with open_file(file) as stream:
            head = stream.read(8)
            size, footer, tail = read_footer(stream)
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {first_line(error)}") from None
    if not size:
        raise DataError(f"{file}: the file is empty (0 bytes)")
    if _ENCRYPTED in (head[:4], tail):
        raise DataError(f"{file}: the parquet file is encrypted; decrypt it first")
    if head[:4] != _MAGIC:
        raise DataError(
            f"{file}: not a parquet file (it begins with {head[:4]!r}); convert it to parquet "
            "first, or name it .csv, .tsv or .txt if it is text"
        )
    if tail != _MAGIC:
        raise DataError(
            f"{file}: the parquet file is truncated (its end is missing); copy or write it again"
        )
    _compare_footer(file, footer)
    return footer


def _compare_footer(file: str, footer: bytes) -> None:
    """Compare the footer of a converted file with the `dataset.json` beside it.

    Page checksums protect the data; this protects their positions and types.
    """
    known = _footers(os.path.dirname(file)).get(os.path.basename(file))
    if known is not None and known != footer_checksum(footer):
        raise DataError(f"{file}: the footer is damaged or replaced; convert the data again")


def _footers(folder: str) -> dict[str, str]:
    path = os.path.join(folder, DATASET_FILE)
    try:
        return _read_footers(path, os.stat(path).st_mtime_ns)
    except (FileNotFoundError, NotADirectoryError):
        return {}


@lru_cache(maxsize=16)
def _read_footers(path: str, changed: int) -> dict[str, str]:
    try:
        return {entry["name"]: entry["footer"] for entry in read_json(Path(path))["files"]}
    except (KeyError, TypeError):
        raise DataError(
            f"{path}: the file is incomplete or damaged; convert the data again"
        ) from None


@dataclass(frozen=True)
class _RowGroup:
    """Reads one row group; reopens its file, since a shuffle reads groups in any order."""

    metadata: Any  # of the file
    schema: pa.Schema
    leaves: Mapping[str, int]
    location: Location
    written: tuple[tuple[int, int], int]  # size and time of the file, and the CRC of its footer

    @property
    def _stored(self) -> Any:
        # Not kept as a field: a row group's metadata cannot be pickled, but the file's can.
        return self.metadata.row_group(self.location.row_group)

    @property
    def num_rows(self) -> int:
        """Number of rows, from the footer."""
        return int(self._stored.num_rows)

    def range_of(self, name: str) -> Range | None:
        """Return the minimum and maximum of a column, or of its lists' values, from the footer."""
        if name not in self.leaves:
            return None
        known = self._stored.column(self.leaves[name]).statistics
        return (known.min, known.max) if known and known.has_min_max else None

    def __call__(self, names: Sequence[str], coded: Sequence[str]) -> Pieces:
        """Yield pieces, with the text columns among `coded` as dictionaries.

        Parquet stores most text as codes into a dictionary. Expanding the codes and then looking up
        each text took half of the reading time.
        """
        texts = [name for name in coded if pt.is_string(self.schema.field(name).type)]
        text = [name for name in texts if self._has_small_dictionary(name)]
        is_coded = bool(text) or bool(coded and not texts)
        piece_rows = CODED_ROWS if is_coded else PIECE_ROWS
        return located(self.location, self._read(names, piece_rows, text))

    def _check_unchanged(self) -> None:
        """Refuse a file that was replaced since it was opened."""
        if size_and_time(self.location.name) == self.written[0]:
            return
        with open_file(self.location.name) as stream:
            if zlib.crc32(read_footer(stream)[1]) != self.written[1]:
                raise self.location.error(
                    "the file was rewritten or truncated since it was opened; open it again"
                )

    def _has_small_dictionary(self, name: str) -> bool:
        column = self._stored.column(self.leaves[name])
        first = column.dictionary_page_offset
        return first is not None and column.data_page_offset - first <= _DICTIONARY

    def _read(
        self, names: Sequence[str], piece_rows: int, coded: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        rows = 0
        is_large = self._stored.total_byte_size > _LARGE
        try:
            row_bytes = sum(self._row_bytes(name, name in coded) for name in names)
            piece_rows = min(piece_rows, max(1, int(_PIECE_BYTES / max(row_bytes, 1))))
            size = piece_rows if all(map(self._tells_bytes, names)) else 1
            with self._opened(
                buffer_size=_BUFFER if is_large else 0,
                pre_buffer=not is_large,
                read_dictionary=list(coded),
            ) as reader:
                self._check_unchanged()
                for piece in reader.iter_batches(
                    size, row_groups=[self.location.row_group], columns=list(names)
                ):
                    rows += piece.num_rows
                    fitting = int(_PIECE_BYTES * piece.num_rows / max(_bytes_of(piece), 1))
                    size = min(piece_rows, size * _GROWTH, max(1, fitting))
                    reader.reader.set_batch_size(size)  # for the following pieces
                    yield piece
        except pa.ArrowMemoryError:
            raise  # this error is not about the file
        except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
            raise self.location.error(
                f"the data cannot be read ({first_line(error)}); copy or write the file again"
            ) from None
        if rows != self.num_rows:
            raise self.location.error(
                f"{rows} rows where the footer says {self.num_rows}; write the file again"
            )

    def _opened(self, **options: Any) -> Any:
        return pq.ParquetFile(
            _input(self.location.name),
            metadata=self.metadata,
            page_checksum_verification=True,
            **options,
        )

    def _tells_bytes(self, name: str) -> bool:
        """Return whether the footer gives the approximate size of a column's texts in memory."""
        if name not in self.leaves:
            return True
        column = self._stored.column(self.leaves[name])
        return column.physical_type != "BYTE_ARRAY" or _TELLING.issuperset(column.encodings)

    def _row_bytes(self, name: str, is_coded: bool) -> float:
        """Return the approximate bytes in memory that a column needs per row."""
        type_ = self.schema.field(name).type
        if name not in self.leaves or not (is_bag(type_) or kind_of(type_) == TEXT):
            return 8
        column = self._stored.column(self.leaves[name])
        stored, in_row = column.total_uncompressed_size, column.num_values / max(self.num_rows, 1)
        each = max(stored / max(column.num_values, 1), 8)
        is_coded |= column.physical_type != "BYTE_ARRAY" or not column.has_dictionary_page
        if not is_coded and stored * in_row * PIECE_ROWS > _PIECE_BYTES:
            each = max(each, self._longest(name))
        return each * in_row

    def _longest(self, name: str) -> int:
        """Return the size in bytes of the longest value in a column's dictionary."""
        path = self.metadata.schema.column(self.leaves[name]).path
        with self._opened(read_dictionary=[path]) as reader:
            group = [self.location.row_group]
            pieces = list(islice(reader.iter_batches(1, row_groups=group, columns=[name]), 1))
        arrays = [piece.column(0) for piece in pieces]
        values = [array.values if is_bag(array.type) else array for array in arrays]
        words = [array.dictionary for array in values if pt.is_dictionary(array.type)]
        return max((pc.max(pc.binary_length(each)).as_py() or 0 for each in words), default=0)


def _bytes_of(piece: pa.RecordBatch) -> int:
    """Return the bytes of a piece that depend on its number of rows: all but dictionaries."""
    arrays = (a.indices if pt.is_dictionary(a.type) else a for a in piece.columns)
    return sum(array.nbytes for array in arrays)
