# SPDX-License-Identifier: Apache-2.0
"""Encoded parquet files and `dataset.json`, the description of the converted data.

Label and dense columns are float32, ids int32 (lists of them for bags), rows in the order of the
input, with page checksums and the encoder's fingerprint. A file depends on its chunks alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparsetrain.data.atomic_write import atomic_write, read_json, write_json
from sparsetrain.data.conversion.learn_chunks import ChunkSummary, Task, chunk_rows, read_summary
from sparsetrain.data.encode.bags import as_lists
from sparsetrain.data.encode.column_matching import dense_names, label_names, weight_names
from sparsetrain.data.encode.encoded_rows import Rows, regroup
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.encode.reserved import ReservedMeter
from sparsetrain.data.read.converted_files import MARK, footer_checksum
from sparsetrain.data.schema.columns import Columns

FILE_ROWS = 1 << 20
GROUP_ROWS = 1 << 16  # four of them fill the window of a shuffle


class LearnedEncoder(NamedTuple):
    """An encoder, and how many distinct values each column had; None where none were counted.

    Columns that share a table have the distinct values of all of them.
    """

    encoder: Encoder
    distinct: Sequence[int | None]


class Group(NamedTuple):
    """The chunks of one file, and what is known about them."""

    number: int
    chunks: Sequence[ChunkSummary]

    @property
    def name(self) -> str:
        """The file's name."""
        return f"part-{self.number:05d}.parquet"


def group_chunks(chunks: Iterable[ChunkSummary]) -> Iterator[Group]:
    """Yield runs of chunks of at least `FILE_ROWS` rows; the last may have fewer."""
    open_: list[ChunkSummary] = []
    index = rows = 0
    for seen in chunks:
        open_.append(seen)
        rows += seen.rows
        if rows >= FILE_ROWS:
            yield Group(index, tuple(open_))
            open_, index, rows = [], index + 1, 0
    if rows:
        yield Group(index, tuple(open_))


def write_group(task: Task, group: Group, out: Path) -> dict[str, Any]:
    """Write one file, unless it is there; return its entry of `dataset.json`."""
    notes = _notes_of(task, group)
    if not is_written(task, group, out):
        _write(task, group, out / group.name, notes)
    return read_json(notes)


def is_written(task: Task, group: Group, out: Path) -> bool:
    """Return whether a file and what is noted about it are there."""
    return (out / group.name).exists() and _notes_of(task, group).exists()


def _notes_of(task: Task, group: Group) -> Path:
    return task.folder / f"{group.name}.json"


def remove_written(folder: Path, out: Path) -> None:
    """Remove all files, and what is noted about them."""
    for path in (*folder.glob("part-*.json"), *out.glob("part-*.parquet")):
        path.unlink(missing_ok=True)


def _write(task: Task, group: Group, path: Path, notes: Path) -> None:
    encoder = task.encoder
    meter = ReservedMeter(encoder.columns)
    schema = _schema(encoder, group.chunks[0].chunk.columns)
    with (
        atomic_write(path) as file,
        # Of zstd's files, a fifth smaller, reading took twice as long.
        pq.ParquetWriter(file, schema, compression="lz4", write_page_checksum=True) as writer,
    ):
        for rows in regroup(_encoded(task, group, meter), GROUP_ROWS):
            writer.write_table(_table(rows, schema, weight_names(encoder)))
    with open(path, "rb") as written:
        size = written.seek(-8, 2) + 8
        length = int.from_bytes(written.read(4), "little")
        written.seek(size - 8 - length)
        footer = footer_checksum(written.read(length))
    counted = {share.column: [share.ids, share.missing, share.unseen] for share in meter.shares}
    rows_written = sum(seen.rows for seen in group.chunks)
    write_json(
        notes,
        {"name": path.name, "rows": rows_written, "footer": footer, "bytes": size, "ids": counted},
    )


def _encoded(task: Task, group: Group, meter: ReservedMeter) -> Iterator[Rows]:
    for seen in group.chunks:
        for location, piece in chunk_rows(task, seen.chunk):
            rows = task.encoder.encode_piece(piece, seen.chunk.columns, location)
            meter.add(rows)
            yield rows


def _schema(encoder: Encoder, found: Columns) -> pa.Schema:
    columns = {name: pa.float32() for name in label_names(encoder.schema) if found.labels}
    columns |= {found.row_weights: pa.float32()} if found.row_weights else {}
    columns |= {name: pa.float32() for name in dense_names(encoder)}
    ids = pa.list_(pa.int32()) if encoder.has_bags else pa.int32()
    for name, weights in zip(encoder.columns, weight_names(encoder), strict=True):
        columns[name] = ids
        if weights:
            columns[weights] = pa.list_(pa.float32())
    # Columns that may hold nulls say of each value whether it is one, and take longer to read.
    fields = [pa.field(name, type_, nullable=False) for name, type_ in columns.items()]
    return pa.schema(fields, metadata={MARK: encoder.fingerprint})


def _table(rows: Rows, schema: pa.Schema, weights: Sequence[str | None]) -> pa.Table:
    of_rows = (array for array in (rows.labels, rows.weights) if array is not None)
    arrays = [pa.array(np.ascontiguousarray(c)) for a in of_rows for c in np.atleast_2d(a.T)]
    arrays += [pa.array(np.ascontiguousarray(column)) for column in rows.dense.T]
    if isinstance(rows.ids, tuple):
        # Where a column has no weights of its own, the ones that fill in are not stored.
        for bags, weighted in zip(rows.ids, weights, strict=True):
            ids, factors = as_lists(bags)
            arrays += [ids, factors] if weighted else [ids]
    else:
        arrays += [pa.array(np.ascontiguousarray(column)) for column in rows.ids.T]
    return pa.Table.from_arrays(arrays, schema=schema)


QUARANTINE = "_quarantine.jsonl"
_SUMMARY_EXAMPLES = 20
_FILE = ("name", "rows", "bytes", "footer")


def describe(
    learnt: LearnedEncoder,
    chunks: Sequence[ChunkSummary],
    files: Sequence[dict[str, Any]],
    plan: str,
) -> dict[str, Any]:
    """Return the contents of `dataset.json`."""
    encoder = learnt.encoder
    bad = _sum(seen.bad for seen in chunks)
    return {
        "format": "sparsetrain.dataset",
        "version": 1,
        "plan": plan,
        "fingerprint": encoder.fingerprint,
        "layout": encoder.layout,
        "schema": encoder.schema.to_dict(),
        "rows": sum(seen.rows for seen in chunks),
        "labels": encoder.labels,
        "positive": sum(seen.positive for seen in chunks) if encoder.schema.is_clicks else None,
        "bad_rows": sum(bad.values()),
        "bad_rows_by_column": bad,
        "bad_row_examples": list(
            islice((e for s in chunks for e in s.examples), _SUMMARY_EXAMPLES)
        ),
        "dense": _dense(learnt, chunks),
        "categories": _categories(learnt, files),
        "files": [{key: entry[key] for key in _FILE} for entry in files],
    }


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))


def _dense(learnt: LearnedEncoder, chunks: Sequence[ChunkSummary]) -> dict[str, dict[str, int]]:
    missing, negative = (_sum(getattr(s, k) for s in chunks) for k in ("missing", "negative"))
    return {
        name: {"missing": missing.get(name, 0), "negative": negative.get(name, 0)}
        for name in learnt.encoder.dense_columns
    }


def _categories(
    learnt: LearnedEncoder, files: Sequence[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    encoder, share = learnt.encoder, learnt.encoder.share_embedding
    found = {}
    for name, rows, distinct in zip(encoder.columns, encoder.rows, learnt.distinct, strict=True):
        ids, missing, rare = (sum(entry["ids"][name][i] for entry in files) for i in range(3))
        reserved = {} if encoder.encoded else {"missing": missing, "rare": rare}
        counted = {} if distinct is None else {"distinct": distinct}
        whose = {"share_embedding": share[name]} if name in share else {}
        found[name] = {"rows": rows, "ids": ids, **reserved, **counted, **whose}
    return found


def write_bad_rows(path: Path, task: Task, chunks: Sequence[ChunkSummary]) -> None:
    """Write one JSON object for each bad row, in the order of the input."""
    with atomic_write(path) as file:
        for seen in chunks:
            if not seen.bad:
                continue
            for fault in read_summary(task.result_of(seen.chunk.index))["bad"]:
                file.write(json.dumps(fault, ensure_ascii=False).encode() + b"\n")
