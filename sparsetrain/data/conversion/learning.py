# SPDX-License-Identifier: Apache-2.0
"""One chunk read strictly: its faults, its statistics, the values of its columns with their counts.

The result is one Arrow file (`values_file`). A chunk of text, or a slice of a row group, leaves its
good rows as parquet beside it, so it is read once. Memory: the rows of such a chunk, or a piece of
another, and the distinct values of one chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparsetrain.data.conversion.chunks import Chunk
from sparsetrain.data.conversion.faults import Fault, find_faults
from sparsetrain.data.conversion.strict import CategorySeen, DenseSeen, StrictReader
from sparsetrain.data.conversion.values_file import read_summary, write_values
from sparsetrain.data.encode.counts import ValueCounts
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.read.text_rows import bad_line_error
from sparsetrain.data.values.place import Place, RowError
from sparsetrain.data.whole_file import whole_file

VALUES = "values-"  # how the files of what was learnt begin
_EXAMPLES = 5  # messages about bad rows that are kept in memory


class Task(NamedTuple):
    """What is the same for all chunks of a run.

    Attributes
    ----------
    encoder : Encoder
        Knows columns and settings; learnt already if `learn` is false.
    folder : Path
        Where results go.
    bad_rows : str
        One of `faults.POLICIES`.
    learn : bool
        Whether values are counted.
    """

    encoder: Encoder
    folder: Path
    bad_rows: str
    learn: bool

    def result_of(self, index: int) -> Path:
        """Return the file of a chunk's values."""
        return self.folder / f"{VALUES}{index:07d}.arrow"

    def rows_of(self, index: int) -> Path:
        """Return the file of the rows of a chunk that is read once."""
        return self.folder / f"rows-{index:07d}.parquet"


class Seen(NamedTuple):
    """A chunk that was read, without its rows, and the light part of what is known about it."""

    chunk: Chunk
    rows: int
    positive: int
    missing: dict[str, int]
    negative: dict[str, int]
    largest: list[int]
    bad: dict[str, int]
    examples: list[str]


def learn_chunk(task: Task, chunk: Chunk) -> Seen:
    """Read a chunk and write its results, unless they are there; return what is known about it."""
    path = task.result_of(chunk.index)
    if not path.exists():
        _learn(task, chunk, path)
    summary = read_summary(path)
    names = [fault["column"] or "fields" for fault in summary["bad"]]
    return Seen(
        chunk.without_rows(),
        summary["rows"],
        summary["positive"],
        summary["missing"],
        summary["negative"],
        summary["largest"],
        dict(Counter(names)),
        [fault["reason"] for fault in summary["bad"][:_EXAMPLES]],
    )


def _learn(task: Task, chunk: Chunk, path: Path) -> None:
    state = _Learner(task, chunk)
    pieces, bad_lines = chunk.pieces(task.encoder)
    for bad in bad_lines:
        error = bad_line_error(chunk.place.name, bad)
        if task.bad_rows == "error":
            raise error
        state.refuse(Fault(-1, bad.number, None, str(error)), {"text": bad.text})
    kept = [state.add(place, piece) for place, piece in pieces]
    if chunk.is_read_once:
        _write_rows(task.rows_of(chunk.index), kept, chunk)
    write_values(path, state.counts if task.learn else [], state.summary())


def _write_rows(path: Path, pieces: list[pa.RecordBatch], chunk: Chunk) -> None:
    schema = (
        pieces[0].schema if pieces else pa.schema([(n, pa.binary()) for n in chunk.columns.names])
    )
    table = pa.Table.from_batches(pieces, schema)
    with whole_file(path) as file:
        pq.write_table(table, file, compression="lz4", write_page_checksum=True)


class _Read(NamedTuple):
    """What was read of one piece."""

    positive: int
    dense: list[DenseSeen]
    categories: list[CategorySeen]


class _Learner:
    """What has been seen of one chunk."""

    def __init__(self, task: Task, chunk: Chunk) -> None:
        self._task, self._columns, self._chunk = task, chunk.columns, chunk
        encoder = task.encoder
        self.counts = [ValueCounts() for _ in encoder.columns]
        self._owners = encoder.owners  # whose counts those of a column are added to
        self._rows = self._seen = self._positive = 0
        self._missing = dict.fromkeys(encoder.dense_columns, 0)
        self._negative = dict.fromkeys(encoder.dense_columns, 0)
        self._largest = [-1] * len(encoder.columns)
        self._bad: list[dict[str, Any]] = []
        self._dropped: list[int] = []

    def refuse(self, fault: Fault, values: dict[str, Any]) -> None:
        """Count a bad row and keep what is needed to report it."""
        place = {"file": self._chunk.place.name, self._chunk.place.unit: fault.number}
        self._bad.append({**place, "column": fault.column, "reason": fault.reason, **values})

    def add(self, place: Place, piece: pa.RecordBatch) -> pa.RecordBatch:
        """Take a piece in and return its good rows."""
        try:
            read = self._read(place, piece)
        except RowError:
            if self._task.bad_rows == "error":
                raise
            place, piece = self._without_bad(place, piece)
            read = self._read(place, piece)
        self._seen += piece.num_rows
        self._rows += piece.num_rows
        self._take(read)
        return piece

    def _without_bad(self, place: Place, piece: pa.RecordBatch) -> tuple[Place, pa.RecordBatch]:
        faults = find_faults(piece, self._columns, place, self._task.encoder)
        good = np.ones(piece.num_rows, dtype=bool)
        for fault in faults:
            good[fault.row] = False
            row = piece.slice(fault.row, 1).to_pylist()[0]
            self.refuse(fault, {"values": {name: _shown(value) for name, value in row.items()}})
            self._dropped.append(self._seen + fault.row)
        self._seen += len(faults)
        return place.numbered(place.every_number(len(good))[good]), piece.filter(pa.array(good))

    def _read(self, place: Place, piece: pa.RecordBatch) -> _Read:
        """Read every column; nothing is counted before all are read, since each may refuse."""
        columns = self._columns
        reader, label = StrictReader(columns, self._task.encoder), columns.label
        if columns.row_weights:
            reader.weights(piece, place.of(columns.row_weights))
        return _Read(
            reader.label(piece, place.of(label)) if label else 0,
            [reader.dense(i, piece, place.of(name)) for i, name in enumerate(columns.dense)],
            [
                reader.category(i, piece, place.of(name))
                for i, name in enumerate(columns.categories)
            ],
        )

    def _take(self, read: _Read) -> None:
        self._positive += read.positive
        # Data that is encoded already may have columns of flags after the dense ones.
        for name, dense in zip(self._task.encoder.dense_columns, read.dense, strict=False):
            self._missing[name] += dense.missing
            self._negative[name] += dense.negative
        for index, category in enumerate(read.categories):
            self._largest[index] = max(self._largest[index], category.largest)
            if category.keys is not None and category.times is not None and self._task.learn:
                self.counts[self._owners[index]].add_keys(category.keys, category.times)

    def summary(self) -> dict[str, Any]:
        """Return what is kept of the chunk besides its values, fit for JSON."""
        return {
            "rows": self._rows,
            "positive": self._positive,
            "missing": self._missing,
            "negative": self._negative,
            "largest": self._largest,
            "bad": self._bad,
            "dropped": self._dropped,
        }


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, (int, str, type(None))) else str(value)


def chunk_rows(task: Task, chunk: Chunk) -> Iterator[tuple[Place, pa.RecordBatch]]:
    """Yield the good rows of a chunk again, from wherever they are now."""
    place = chunk.place
    if chunk.is_read_once:
        with pq.ParquetFile(task.rows_of(chunk.index), page_checksum_verification=True) as file:
            for piece in file.iter_batches(1 << 14):
                yield place, piece
        return
    summary = read_summary(task.result_of(chunk.index))
    dropped, first = np.array(summary["dropped"], dtype=np.int64), 0
    for here, piece in chunk.pieces(task.encoder)[0]:
        rows = piece.num_rows
        bad = dropped[(dropped >= first) & (dropped < first + rows)] - first
        if len(bad):
            good = np.ones(rows, dtype=bool)
            good[bad] = False
            here = here.numbered(here.every_number(rows)[good])
            piece = piece.filter(pa.array(good))
        if piece.num_rows:
            yield here, piece
        first += rows
