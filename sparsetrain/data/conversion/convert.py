# SPDX-License-Identifier: Apache-2.0
"""`convert_files`: both passes of a conversion, and the continuation of an interrupted run.

An unfinished `dataset.json` in a work folder inside the output records progress: at first the plan,
after the first pass everything but the files, then each finished file. The folder is removed at the
end. The result does not depend on memory, workers or interruptions.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparsetrain.data.columns.category import Settings
from sparsetrain.data.conversion.chunks import POLICIES, Job, Progress, open_inputs
from sparsetrain.data.conversion.learn import BASE, QUARANTINE, WORKER, check_memory, learn
from sparsetrain.data.conversion.write_files import write_files
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.encode.encoder_state import (
    ENCODER_FILE,
    read_file,
    write_file,
)
from sparsetrain.data.encode.learn import blank_encoder
from sparsetrain.data.encode.reader import bind, check_converted_names
from sparsetrain.data.encode.rules import Rules
from sparsetrain.data.read.open_source import file_parts, list_files, open_source
from sparsetrain.data.read.parquet import DATASET_FILE
from sparsetrain.data.read.source import Source
from sparsetrain.data.schema.columns import check_known, require_columns
from sparsetrain.data.schema.numbers import Numbers
from sparsetrain.data.schema.schema import Schema
from sparsetrain.errors import ConfigError, DataError, ResourceError
from sparsetrain.system.argument_checks import require_int
from sparsetrain.system.file_locks import exclusive_lock, read_json, remove_temporaries, write_json

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
        check_known(described, known.schema, "the encoder is fitted", "fit it")
    blank = known or _blank(files, settings, described, numbers)
    check_converted_names(blank)
    progress = progress or (lambda what, rows, done: None)
    job = Job(files, Path(out), blank, known, label, bad_rows, memory, workers, progress)
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


def _blank(files: list[str], settings: Settings, schema: Schema, numbers: Numbers) -> Rules:
    opened = open_source(_leading_files(files, schema), schema)
    assert isinstance(opened, Source)
    part = opened.parts[0]
    require_columns(part.schema.names, schema.needed, "weight", part.location)
    blank = blank_encoder(part, settings, schema, numbers)
    part, reader = bind(blank, opened.parts[:1], require_label=False)[0]
    if blank.encoded:
        settings.check_encoded(schema.linear)
        reader.check_dense(part)
    reader.warn_of_floor(part)
    return blank


def _leading_files(files: list[str], schema: Schema) -> list[str]:
    """Return the files up to and including the first that may hold rows, by their row counts."""
    for number, file in enumerate(files, 1):
        if any(part.num_rows != 0 for part in file_parts(file, schema)):
            return files[:number]
    return files


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
    inputs = open_inputs(job.files, job.blank, job.label)
    if "files" in state:
        encoder = job.known or Rules(**read_file(job.out / ENCODER_FILE))
        check_memory(job, encoder)
    else:
        encoder, learnt = learn(job, inputs)
        write_file(job.out / ENCODER_FILE, encoder.fields)
        write_json(job.state, learnt)
        state.update(learnt)
    write_files(job, encoder, inputs, state)
    del state["chunks"]
    write_json(job.out / DATASET_FILE, state)
