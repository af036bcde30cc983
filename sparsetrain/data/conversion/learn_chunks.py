# SPDX-License-Identifier: Apache-2.0
"""First pass over one chunk: bad rows, statistics, and counted values of its columns.

The result is one Arrow file: a record batch for each column, of one row of six lists, ascending, so
that a later pass reads one column alone, and a summary in its metadata. A column that shares
another's table has empty lists; its values are with the other. Memory: a block of text or a piece
of parquet, and the distinct values of one chunk.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparsetrain.data.atomic_write import atomic_write
from sparsetrain.data.conversion.chunks import Chunk
from sparsetrain.data.conversion.strict_reader import (
    BadRow,
    CategoryValues,
    DenseCounts,
    LabelCounts,
    StrictReader,
    find_bad_rows,
)
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.encode.value_counts import ValueCounts
from sparsetrain.data.read.source import keep_rows
from sparsetrain.data.read.text_rows import bad_line_error
from sparsetrain.data.values import arrow_types
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.location import Location, RowError
from sparsetrain.errors import DataError

_META = b"chunk"
# Values as in `ValueCounts`, and how often each occurs.
_PARTS = ("numbers", "number_counts", "eights", "eight_counts", "texts", "text_counts")


def write_values(path: Path, counts: list[ValueCounts], summary: dict[str, Any]) -> None:
    """Write the values of each column and what else is kept of the chunk, fit for JSON."""
    columns = [(*count.numbers(), *count.eights(), *count.texts()) for count in counts]
    short = all(map(_fit_32_bits, (part for c in columns for part in (*c[:4], c[5]))))
    integers = pa.uint32() if short else pa.int64()  # half the bytes, and as quickly
    types = {part: pa.large_binary() if part == "texts" else integers for part in _PARTS}
    schema = pa.schema(
        [(part, pa.large_list(type_)) for part, type_ in types.items()],
        metadata={_META: json.dumps(summary)},
    )
    with atomic_write(path) as file, pa.ipc.new_file(file, schema) as writer:
        for column in columns:
            arrays = (pa.array(part, t) for part, t in zip(column, types.values(), strict=True))
            writer.write_batch(pa.record_batch([*map(_one_list, arrays)], schema=schema))


def _fit_32_bits(numbers: Array) -> bool:
    return not len(numbers) or (numbers.min() >= 0 and numbers.max() < 2**32)


def _one_list(values: pa.Array) -> pa.Array:
    """Return an array whose one value is the list of `values`."""
    return pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)


def read_summary(path: Path) -> dict[str, Any]:
    """Return the summary of a chunk's file."""
    with pa.memory_map(os.fsencode(path)) as source, pa.ipc.open_file(source) as reader:
        summary: dict[str, Any] = json.loads(reader.schema.metadata[_META])
        return summary


def read_column(path: Path, index: int) -> list[pa.Array]:
    """Return the values and counts of one column of a chunk's file, in the order of `_PARTS`."""
    with pa.memory_map(os.fsencode(path)) as source, pa.ipc.open_file(source) as reader:
        return [column.flatten() for column in reader.get_batch(index).columns]


VALUES = "counts-"  # how the files of what was learnt begin
_EXAMPLES = 5  # messages about bad rows that are kept in memory


class Task(NamedTuple):
    """Arguments common to all chunks of a run."""

    encoder: Encoder  # knows columns and settings; learnt already if `learn` is false
    folder: Path  # of the results
    bad_rows: str  # one of `POLICIES`
    learn: bool  # whether values are counted

    def result_of(self, index: int) -> Path:
        """Return the file of a chunk's values."""
        return self.folder / f"{VALUES}{index:07d}.arrow"


class ChunkSummary(NamedTuple):
    """The light part of what is known about a chunk."""

    rows: int
    positive: int
    missing: dict[str, int]
    negative: dict[str, int]
    largest: list[int]
    hexadecimal: list[bool | None]
    bad: dict[str, int]
    examples: list[str]


def learn_chunk(task: Task, chunk: Chunk) -> ChunkSummary:
    """Read a chunk and write its results, unless they are there; return what is known about it."""
    path = task.result_of(chunk.index)
    if not path.exists():
        _learn(task, chunk, path)
    summary = read_summary(path)
    names = [fault["column"] or "fields" for fault in summary["bad"]]
    return ChunkSummary(
        summary["rows"],
        summary["positive"],
        summary["missing"],
        summary["negative"],
        summary["largest"],
        summary["hexadecimal"],
        dict(Counter(names)),
        [fault["reason"] for fault in summary["bad"][:_EXAMPLES]],
    )


def _learn(task: Task, chunk: Chunk, path: Path) -> None:
    state = _read_numbers(task, chunk) or _read(task, chunk)
    write_values(path, state.counts if task.learn else [], state.summary())


def _read_numbers(task: Task, chunk: Chunk) -> _Learner | None:
    """Read a chunk of text by the numbers it spells; None if a row is bad: its text is reported."""
    if chunk.block is None:
        return None
    with suppress(DataError):
        return _read(task._replace(bad_rows="error"), chunk, numbers=True)
    return None


def _read(task: Task, chunk: Chunk, numbers: bool = False) -> _Learner:
    """Return what is learnt of a chunk."""
    state = _Learner(task, chunk)
    pieces, bad_lines = chunk.pieces(task.encoder, numbers)
    for bad in bad_lines:
        error = bad_line_error(chunk.location.name, bad)
        if task.bad_rows == "error":
            raise error
        state.refuse(BadRow(-1, bad.number, None, str(error)), {"text": bad.text})
    for location, piece in pieces:
        state.add(location, piece)
    return state


class _Read(NamedTuple):
    """Counts and values of one piece."""

    positive: int
    dense: list[DenseCounts]
    categories: list[CategoryValues]


class _Learner:
    """Accumulated counts, values and bad rows of one chunk."""

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

    def refuse(self, fault: BadRow, values: dict[str, Any]) -> None:
        """Count a bad row and keep what is needed to report it."""
        where = {"file": self._chunk.location.name, self._chunk.location.unit: fault.number}
        self._bad.append({**where, "column": fault.column, "reason": fault.reason, **values})

    def add(self, location: Location, piece: pa.RecordBatch) -> None:
        """Take the good rows of a piece in."""
        try:
            read = self._read(location, piece)
        except RowError:
            if self._task.bad_rows == "error":
                raise
            location, piece = self._without_bad(location, piece)
            read = self._read(location, piece)
        self._seen += piece.num_rows
        self._rows += piece.num_rows
        self._take(read)

    def _without_bad(
        self, location: Location, piece: pa.RecordBatch
    ) -> tuple[Location, pa.RecordBatch]:
        faults = find_bad_rows(piece, self._columns, location, self._task.encoder)
        good = np.ones(piece.num_rows, dtype=bool)
        for fault in faults:
            good[fault.row] = False
            row = piece.slice(fault.row, 1)
            values = {n: _shown(array) for n, array in zip(row.schema.names, row, strict=True)}
            self.refuse(fault, {"values": values})
            self._dropped.append(self._seen + fault.row)
        self._seen += len(faults)
        return keep_rows(location, piece, good)

    def _read(self, location: Location, piece: pa.RecordBatch) -> _Read:
        """Read every column; nothing is counted before all are read, since each may refuse."""
        found = [
            read(piece, location.of_column(name))
            for name, read in StrictReader(self._columns, self._task.encoder).each()
        ]
        return _Read(
            sum(item.positive for item in found if isinstance(item, LabelCounts)),
            [item for item in found if isinstance(item, DenseCounts)],
            [item for item in found if isinstance(item, CategoryValues)],
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
            "hexadecimal": [count.hexadecimal for count in self.counts],
            "bad": self._bad,
            "dropped": self._dropped,
        }


def _shown(array: Any) -> Any:
    """Return the one value of an array, fit for JSON."""
    try:
        value = array[0].as_py()
    except UnicodeDecodeError:
        bags = arrow_types.is_bag(array.type)
        value = array.cast(pa.list_(pa.binary()) if bags else pa.binary())[0].as_py()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, (int, str, type(None))) else str(value)


def good_rows(task: Task, chunk: Chunk) -> Iterator[tuple[Location, pa.RecordBatch]]:
    """Yield the rows of a chunk again, without those that were bad in the first pass."""
    summary = read_summary(task.result_of(chunk.index))
    dropped, first = np.array(summary["dropped"], dtype=np.int64), 0
    for here, piece in chunk.pieces(task.encoder, numbers=not summary["bad"])[0]:
        rows = piece.num_rows
        bad = dropped[(dropped >= first) & (dropped < first + rows)] - first
        if len(bad):
            good = np.ones(rows, dtype=bool)
            good[bad] = False
            here, piece = keep_rows(here, piece, good)
        if piece.num_rows:
            yield here, piece
        first += rows
