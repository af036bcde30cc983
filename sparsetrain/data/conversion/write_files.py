# SPDX-License-Identifier: Apache-2.0
"""Second pass of a conversion: encoded parquet files.

Labels and dense columns are float32, ids int32 (in lists for bags). Rows are in the order of the
input. Files have page checksums and the encoder's fingerprint. A file depends only on its chunks.
Chunks are encoded by threads and written in order. Progress is recorded after each file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparsetrain.data.columns.dense import input_names
from sparsetrain.data.conversion.chunks import (
    Chunk,
    Job,
    read_good_rows,
    split_chunks,
    strict_reader,
)
from sparsetrain.data.encode.reader import Reader, label_names, weight_names
from sparsetrain.data.encode.rules import Rules
from sparsetrain.data.read.added_columns import derive_columns
from sparsetrain.data.read.parquet import footer_checksum, read_footer
from sparsetrain.data.read.source import HELD_ROWS, MARK
from sparsetrain.data.rows import Rows, ShareMeter, as_columns, regroup
from sparsetrain.data.stream.threads import ordered_map
from sparsetrain.data.values.location import Location
from sparsetrain.errors import DataError
from sparsetrain.system.file_locks import atomic_write, write_json

FILE_ROWS = 1 << 20
GROUP_ROWS = 1 << 16  # of a row group; four row groups fill a shuffle's window
_DICTIONARY = 1 << 8  # largest table for which ids are stored with a dictionary


def write_files(job: Job, encoder: Rules, inputs: Sequence[Chunk], state: dict[str, Any]) -> None:
    """Write the files that `state`, the result of `learn`, lacks, and add them to it."""
    groups = [*_group_chunks(state["chunks"])]
    done = len(state["files"])
    begun, written = (sum(column) for column in zip((0, 0), *groups[:done], strict=True))
    left = islice(split_chunks(inputs), begun, None)
    encoded = ordered_map(partial(_encode, job, encoder), left, job.workers)
    schema = _schema(encoder, inputs[0].reader)
    if done:
        job.progress("writing", 0, written / state["rows"])
    for number, (chunks, rows) in enumerate(groups[done:], done):
        path, meter = job.out / f"part-{number:05d}.parquet", ShareMeter(encoder.columns)
        pieces = chain.from_iterable(islice(encoded, chunks))
        if _write(encoder, schema, pieces, path, meter) != rows:
            raise DataError(
                f"{path}: the input files changed during the conversion; convert them again"
            )
        with open(path, "rb") as file:
            size, footer, _ = read_footer(file)
        entry = {"rows": rows, "bytes": size, "footer": footer_checksum(footer)}
        state["files"].append({"name": path.name, **entry})
        for share in meter.shares:
            counts = state["categories"][share.column]
            found = {"ids": share.ids, "missing": share.missing, "rare": share.unseen}
            counts.update({key: counts[key] + n for key, n in found.items() if key in counts})
        write_json(job.state, state)
        written += rows
        job.progress("writing", rows, written / state["rows"])


def _group_chunks(rows: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield each file's numbers of chunks and rows: `FILE_ROWS` or more, except in the last."""
    chunks = total = 0
    for count in rows:
        chunks, total = chunks + 1, total + count
        if total >= FILE_ROWS:
            yield chunks, total
            chunks = total = 0
    if total:
        yield chunks, total


def _encode(job: Job, encoder: Rules, chunk: Chunk) -> Iterable[Rows]:
    """Encode a chunk; a very long chunk is encoded while it is written, piece by piece."""
    reader = Reader.of(encoder, chunk.reader.found)

    def encode(piece: pa.RecordBatch, location: Location) -> Rows:
        if encoder.schema.made:
            piece = derive_columns(piece, encoder.schema.made, reader.names, location)
        return reader.encode(piece, location)

    rows, _ = read_good_rows(chunk, strict_reader(reader), job.bad_rows, encode)
    return rows if chunk.rows > HELD_ROWS else [*rows]


def _write(
    encoder: Rules, schema: pa.Schema, pieces: Iterable[Rows], path: Path, meter: ShareMeter
) -> int:
    """Write one file, and return its number of rows."""
    count = 0
    with (
        atomic_write(path) as file,
        # With zstd files are a fifth smaller, but reading takes twice as long.
        pq.ParquetWriter(
            file, schema, compression="lz4", write_page_checksum=True, **_encodings(schema, encoder)
        ) as writer,
    ):
        for rows in regroup(pieces, GROUP_ROWS):
            meter.add(rows)
            writer.write_table(_table(rows, schema, weight_names(encoder)))
            count += rows.size
    return count


def _schema(encoder: Rules, reader: Reader) -> pa.Schema:
    labels = label_names(encoder.schema) if reader.labels else ()
    factors = (name for name, _ in reader.weights)
    names = (*labels, *factors, *input_names(encoder.dense))
    columns = dict.fromkeys(names, pa.float32())
    for name, weights in zip(encoder.columns, weight_names(encoder), strict=True):
        columns[name] = encoder.id_type
        if weights:
            columns[weights] = pa.list_(pa.float32())
    # Nullable columns store a flag for each value, and take longer to read.
    fields = [pa.field(name, type_, nullable=False) for name, type_ in columns.items()]
    return pa.schema(fields, metadata={MARK: encoder.fingerprint})


def _encodings(schema: pa.Schema, encoder: Rules) -> dict[str, Any]:
    """Return the encodings of columns, as arguments of `ParquetWriter`.

    Ids of large tables are stored byte by byte (`BYTE_STREAM_SPLIT`), ids of small tables with a
    dictionary; for large tables a dictionary would take more time and disk.
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
    for (ids, factors), name in zip(as_columns(rows.ids), weights, strict=True):
        # The default weights of a column without weights are not stored.
        arrays += [ids] if name is None else [ids, factors]
    return pa.Table.from_arrays(arrays, schema=schema)
