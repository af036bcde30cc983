# SPDX-License-Identifier: Apache-2.0
"""`convert_files`: both passes of a conversion, its files, and their continuation.

An unfinished `dataset.json` in a work folder inside the output records progress: at first the plan,
after the first pass everything but the files, then each finished file. The folder is removed at the
end. The result does not depend on memory, workers or interruptions.

The second pass writes encoded parquet: labels and dense columns are float32, ids int32 (in lists
for bags), rows in the order of the input. Files have page checksums and the encoder's fingerprint.
A file depends only on its chunks, which threads encode and which are written in order.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparsetrain.data.batch import Rows, as_columns
from sparsetrain.data.columns.dense import input_names
from sparsetrain.data.conversion.chunks import (
    POLICIES,
    Chunk,
    Inputs,
    Job,
    Progress,
    read_good_rows,
    split_chunks,
    strict_reader,
)
from sparsetrain.data.conversion.learn import BASE, QUARANTINE, WORKER, check_memory, learn
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.encode.encoder_state import ENCODER_FILE, read_file, write_file
from sparsetrain.data.encode.learn import blank_encoder
from sparsetrain.data.encode.reader import (
    Reader,
    bind,
    check_converted_names,
    label_names,
    weight_names,
)
from sparsetrain.data.encode.rules import Rules, Settings
from sparsetrain.data.read.added_columns import derive_columns
from sparsetrain.data.read.open_source import list_files, open_rows
from sparsetrain.data.read.source import (
    DATASET_FILE,
    HELD_ROWS,
    MARK,
    Part,
    footer_checksum,
    read_footer,
)
from sparsetrain.data.rows import ShareMeter, regroup
from sparsetrain.data.schema.columns import require_columns
from sparsetrain.data.schema.numbers import Numbers
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.stream.threads import ordered_map
from sparsetrain.data.values.location import Location
from sparsetrain.errors import ConfigError, DataError, ResourceError
from sparsetrain.system.argument_checks import require_int
from sparsetrain.system.file_locks import (
    atomic_write,
    exclusive_lock,
    read_json,
    remove_temporaries,
    write_json,
)

FILE_ROWS = 1 << 20
GROUP_ROWS = 1 << 16  # of a row group; four row groups fill a shuffle's window
_DICTIONARY = 1 << 8  # largest table for which ids are stored with a dictionary
LOCK = "lock"  # in the work folder
MIN_MEMORY = 1 << 29
_OTHER = "another conversion; name another folder"
_UNFINISHED = (
    "an unfinished conversion of different files or settings; remove the folder or name a new one"
)


def convert_files(
    paths: Any,
    out: str | Path,
    *,
    encoder: Encoder | str | Path | None = None,
    label: bool = True,
    min_count: int = 5,
    max_rows: int | None = None,
    dense_fill: float = 0.0,
    missing_flags: bool = False,
    nan: str = "error",
    treat_as: str = "auto",
    schema: Schema | str | Path | None = None,
    weights: str | None = None,
    numbers: Numbers = "scaled",
    bad_rows: str = "error",
    memory: int = 2 << 30,
    workers: int = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Convert raw logs to encoded parquet, and return the contents of its ``dataset.json``.

    After an interruption, a second call with the same arguments keeps the encoder, if it was
    learnt, and the finished files.

    Parameters
    ----------
    paths : path or list of paths
        Parquet and text files, folders of them, patterns.
    out : path
        Folder of the result: ``part-*.parquet``, ``dataset.json`` and the encoder.
    encoder : Encoder or path, optional
        Encode with this encoder, or with the one in a converted folder, instead of learning one;
        its settings and schema apply.
    label : bool
        Whether there is a label column to convert; rows to score need none.
    min_count, max_rows, dense_fill, missing_flags, nan, treat_as, schema, weights, numbers
        As in `Encoder.fit`.
    bad_rows : {"error", "skip", "quarantine"}
        Handling of a bad row: raise, or leave the row out and count it; "quarantine" also writes it
        to ``_quarantine.jsonl``.
    memory : int
        Memory limit in bytes, at least half a GiB. It must hold the values with a row, and the
        counts of all values of one column.
    workers : int
        Threads.
    progress : callable, optional
        See `Progress`.

    Raises
    ------
    DataError
        If an input cannot be read, or there are no good rows.
    ConfigError
        If an argument is invalid, or `out` has files that do not belong to this conversion.
    ResourceError
        If the disk or the memory is too small.
    """
    workers = _checked(bad_rows, memory, workers)
    settings = Settings(min_count, max_rows, dense_fill, missing_flags, nan, treat_as)
    files, known = _inputs(paths, Path(out)), _known(encoder)
    described = Schema.read(schema, weights)
    if known is not None:
        described.check_known(known.schema, "the encoder is fitted", "fit it")
    parts = open_rows(files, known.schema if known else described).parts
    blank = known or _blank(parts[0], settings, described, numbers)
    check_converted_names(blank)
    inputs = _bound(blank, parts, label, known is None)
    progress = progress or (lambda what, rows, done: None)
    job = Job(files, inputs, Path(out), blank, known, label, bad_rows, memory, workers, progress)
    done = _begin(job)
    if not _is_whole(done):
        return _run(job)
    shutil.rmtree(job.work, ignore_errors=True)
    return done


def _checked(bad_rows: str, memory: int, workers: int) -> int:
    """Return the number of workers that fit in the memory."""
    if bad_rows not in POLICIES:
        raise ConfigError(f"bad_rows is {bad_rows!r}; it must be one of {', '.join(POLICIES)}")
    if memory < MIN_MEMORY:
        raise ConfigError(f"memory is {memory:,} bytes; it must be {MIN_MEMORY:,} or more")
    return min(require_int("workers", workers), max(1, (memory - BASE) // WORKER))


def _inputs(paths: Any, out: Path) -> list[str]:
    """Return the files to convert; refuse an output folder inside the input."""
    files = list_files(paths)
    for path in paths if isinstance(paths, (list, tuple)) else [paths]:
        folder, written = (Path(os.path.realpath(place)) for place in (path, out))
        if folder.is_dir() and folder in (written, *written.parents):
            raise ConfigError(f"{out}: is inside the input folder {path}; name another folder")
    return files


def _known(encoder: Encoder | str | Path | None) -> Rules | None:
    if encoder is None or isinstance(encoder, Encoder):
        return encoder
    path = Path(encoder)
    return Rules(**read_file(path / ENCODER_FILE if path.is_dir() else path))


def _blank(part: Part, settings: Settings, schema: Schema, numbers: Numbers) -> Rules:
    require_columns(part.schema.names, schema.needed, "weight", part.location)
    blank = blank_encoder(part, settings, schema, numbers)
    if not blank.reserves:
        settings.check_encoded(schema.linear)
    return blank


def _bound(encoder: Rules, parts: Sequence[Part], label: bool, is_blank: bool) -> Inputs:
    """Pair the parts, without derived columns, with their readers."""
    bound = bind(encoder, parts, require_label=label)
    if is_blank:
        first, reader = bound[0]
        reader.check_dense(first)
        reader.warn_of_floor(first)
    return [(part, reader) for part, (_, reader) in zip(parts, bound, strict=True)]


def _begin(job: Job) -> dict[str, Any]:
    """Return the state so far of this conversion; refuse an output folder with other contents."""
    plan = job.plan  # raises for missing inputs before a folder is made
    begun = False
    for path, other in ((job.out / DATASET_FILE, _OTHER), (job.state, _UNFINISHED)):
        if path.is_file():
            begun, state = True, read_json(path)
            if state.get("plan") != plan:
                raise ConfigError(f"{job.out}: holds {other}")
            if _are_there(job.out, state):
                return state
    if not begun and job.out.exists() and any(item != job.work for item in job.out.iterdir()):
        raise ConfigError(f"{job.out}: is not empty; name another folder")
    return {"plan": plan}


def _are_there(out: Path, state: dict[str, Any]) -> bool:
    """Whether the encoder and all files that `state` names exist with their sizes."""
    sizes = {out / entry["name"]: entry["bytes"] for entry in state.get("files", ())}
    found = {path: path.stat().st_size for path in sizes if path.is_file()}
    return (out / ENCODER_FILE).is_file() and found == sizes


def _is_whole(state: dict[str, Any]) -> bool:
    return "files" in state and "chunks" not in state


def _run(job: Job) -> dict[str, Any]:
    """Convert; remove the output if the data are refused."""
    new = [folder for folder in (job.out, *job.out.parents) if not folder.exists()]
    job.work.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(job.work / LOCK, str(job.out)):
        for folder in (job.out, job.work):
            remove_temporaries(folder)
        state = _begin(job)  # read again: another process may have continued meanwhile
        try:
            _convert(job, state)
        except (DataError, ConfigError, ResourceError) as error:
            if isinstance(error, ResourceError) and "files" in state:
                raise ResourceError(
                    f"{error} (finished files are kept in {job.out}: run the same again to go on, "
                    "or remove the folder)"
                ) from None
            for path in (*job.out.glob("part-*.parquet"), job.out / ENCODER_FILE):
                path.unlink(missing_ok=True)
            (job.out / QUARANTINE).unlink(missing_ok=True)
            shutil.rmtree(job.work)
            with suppress(OSError):  # another process may have written there meanwhile
                for folder in new:
                    folder.rmdir()
            raise
        shutil.rmtree(job.work)
    return state


def _convert(job: Job, state: dict[str, Any]) -> None:
    """Run the remaining passes, and complete `state`, the contents of `dataset.json`."""
    if _is_whole(state):
        return
    if "files" not in state:
        write_json(job.state, state)
    # A `dataset.json` here describes a finished result that has since lost files.
    (job.out / DATASET_FILE).unlink(missing_ok=True)
    if "files" in state:
        encoder = job.known or Rules(**read_file(job.out / ENCODER_FILE))
        check_memory(job, encoder)
    else:
        encoder, learnt = learn(job)
        write_file(job.out / ENCODER_FILE, encoder)
        write_json(job.state, learnt)
        state.update(learnt)
    _write_files(job, encoder, state)
    del state["chunks"]
    write_json(job.out / DATASET_FILE, state)


def _write_files(job: Job, encoder: Rules, state: dict[str, Any]) -> None:
    """Write the files that `state`, the result of `learn`, lacks, and add them to it."""
    groups = [*_group_chunks(state["chunks"])]
    done = len(state["files"])
    begun, written = (sum(column) for column in zip((0, 0), *groups[:done], strict=True))
    left = islice(split_chunks(job.inputs), begun, None)
    encoded = ordered_map(partial(_encode, job, encoder), left, job.workers)
    schema = _schema(encoder, job.inputs[0][1])
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
