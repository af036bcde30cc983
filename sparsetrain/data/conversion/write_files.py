# SPDX-License-Identifier: Apache-2.0
"""Encoded parquet files and `dataset.json`, the description of the converted data.

Label and dense columns are float32, ids int32 (lists of them for bags), rows in the order of the
input, with page checksums and the encoder's fingerprint. A file depends on its chunks alone.
Chunks are encoded by threads, and written one after another.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparsetrain.data.atomic_write import atomic_write, read_json, write_json
from sparsetrain.data.conversion.chunks import Chunk, split_chunks
from sparsetrain.data.conversion.learn_chunks import ChunkSummary, Task, good_rows, read_summary
from sparsetrain.data.encode.bags import as_lists
from sparsetrain.data.encode.column_matching import dense_names, label_names, weight_names
from sparsetrain.data.encode.encoded_rows import Rows, regroup
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.encode.reserved import ReservedMeter
from sparsetrain.data.read.converted_files import MARK, footer_checksum
from sparsetrain.data.read.source import HELD_ROWS
from sparsetrain.data.schema.columns import Columns
from sparsetrain.data.stream.threads import ordered_map

FILE_ROWS = 1 << 20
GROUP_ROWS = 1 << 16  # four of them fill the window of a shuffle
_DICTIONARY = 1 << 8  # the rows of a table whose ids are stored by a dictionary


class LearnedEncoder(NamedTuple):
    """An encoder, and how many distinct values each column had; None where none were counted.

    Columns that share a table have the distinct values of all of them.
    """

    encoder: Encoder
    distinct: Sequence[int | None]


Encoded = tuple[Iterable[Rows], ReservedMeter]  # of a chunk; the meter is right at the end


def group_chunks(chunks: Iterable[ChunkSummary]) -> Iterator[list[ChunkSummary]]:
    """Yield the chunks of each file, of at least `FILE_ROWS` rows; the last may have fewer."""
    open_: list[ChunkSummary] = []
    for seen in chunks:
        open_.append(seen)
        if sum(each.rows for each in open_) >= FILE_ROWS:
            yield open_
            open_ = []
    if any(seen.rows for seen in open_):
        yield open_


def write_parts(
    task: Task, inputs: Sequence[Chunk], chunks: Sequence[ChunkSummary], out: Path, workers: int
) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield the entry of each file in `dataset.json`, and whether it was written now."""
    groups = list(group_chunks(chunks))
    names = [f"part-{number:05d}.parquet" for number in range(len(groups))]
    notes = [task.folder / f"{name}.json" for name in names]
    there = [
        note.exists() and (out / name).exists() for name, note in zip(names, notes, strict=True)
    ]
    done = (*there, False).index(False)
    begun = sum(map(len, groups[:done]))
    left = (chunk for chunk in split_chunks(inputs) if chunk.index >= begun)
    encoded = ordered_map(partial(_encode, task), left, workers)
    schema = _schema(task.encoder, inputs[0].columns)
    for number, group in enumerate(groups):
        if number >= done:
            rows = sum(seen.rows for seen in group)
            own = islice(encoded, len(group))
            _write(task.encoder, schema, own, rows, out / names[number], notes[number])
        yield read_json(notes[number]), number >= done


def _encode(task: Task, chunk: Chunk) -> Encoded:
    """Encode a chunk; one of very many rows only when it is written, a piece at a time."""
    meter = ReservedMeter(task.encoder.columns)

    def encoded() -> Iterator[Rows]:
        for location, piece in good_rows(task, chunk):
            rows = task.encoder.encode_piece(piece, chunk.columns, location)
            meter.add(rows)
            yield rows

    return (encoded() if chunk.rows > HELD_ROWS else list(encoded())), meter


def _write(
    encoder: Encoder,
    schema: pa.Schema,
    chunks: Iterable[Encoded],
    count: int,
    path: Path,
    notes: Path,
) -> None:
    """Write one file of `count` rows, and what is noted about it."""
    meters: list[ReservedMeter] = []

    def rows_of_all() -> Iterator[Rows]:
        for rows, meter in chunks:
            meters.append(meter)
            yield from rows

    with (
        atomic_write(path) as file,
        # Of zstd's files, a fifth smaller, reading took twice as long.
        pq.ParquetWriter(
            file, schema, compression="lz4", write_page_checksum=True, **_encodings(schema, encoder)
        ) as writer,
    ):
        for rows in regroup(rows_of_all(), GROUP_ROWS):
            writer.write_table(_table(rows, schema, weight_names(encoder)))
    with open(path, "rb") as written:
        size = written.seek(-8, 2) + 8
        length = int.from_bytes(written.read(4), "little")
        written.seek(size - 8 - length)
        footer = footer_checksum(written.read(length))
    counted = {
        shares[0].column: [sum(share[field] for share in shares) for field in (1, 2, 3)]
        for shares in zip(*(meter.shares for meter in meters), strict=True)
    }
    write_json(
        notes, {"name": path.name, "rows": count, "footer": footer, "bytes": size, "ids": counted}
    )


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


def _encodings(schema: pa.Schema, encoder: Encoder) -> dict[str, Any]:
    """Return arguments of the writer: ids of large tables are split by bytes.

    Other columns have a dictionary, which of more ids takes more time and disk.
    """
    rows = dict(zip(encoder.columns, encoder.rows, strict=True))
    split, coded = list[str](), list[str]()
    for field in schema:
        path = f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name
        (split if rows.get(field.name, 0) > _DICTIONARY else coded).append(path)
    return {"use_dictionary": coded, "column_encoding": dict.fromkeys(split, "BYTE_STREAM_SPLIT")}


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
        for index, seen in enumerate(chunks):
            for fault in read_summary(task.result_of(index))["bad"] if seen.bad else ():
                file.write(json.dumps(fault, ensure_ascii=False).encode() + b"\n")
