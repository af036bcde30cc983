# SPDX-License-Identifier: Apache-2.0
"""First pass of a conversion: the encoder, and the facts about rows in `dataset.json`.

Memory: for each worker, a block of text or a piece of parquet and the distinct values of one chunk;
then the counts of one table.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sparsetrain.data.columns.category import Category, Values
from sparsetrain.data.columns.counts import Counted, ValueCounts
from sparsetrain.data.columns.plain import PlainIds
from sparsetrain.data.conversion.chunks import (
    Chunk,
    Job,
    Report,
    StrictReader,
    read_good_rows,
    split_chunks,
    strict_reader,
)
from sparsetrain.data.encode.learn import PieceNumbers, Sampling, numbers_in
from sparsetrain.data.encode.reader import Reader
from sparsetrain.data.encode.rules import Rules
from sparsetrain.data.read.added_columns import learnt_numbers
from sparsetrain.data.read.source import size_and_time
from sparsetrain.data.schema.derived import Derived
from sparsetrain.data.stream.threads import ordered_map
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_values import as_binary, texts_of
from sparsetrain.errors import DataError, ResourceError
from sparsetrain.parsing.identity import Texts
from sparsetrain.system.file_locks import atomic_write, name_write_errors

QUARANTINE = "_quarantine.jsonl"
BASE = 300 << 20  # Python, Arrow and their allocators
WORKER = 250 << 20  # a block of text and its columns, or the distinct values of a chunk
_ALMOST = 0.99
_VALUE = 90  # bytes of a value with a row: key, count and id, and its slots in a hash table
_CHUNK_EXAMPLES, _EXAMPLES = 5, 20  # messages about bad rows

Result = TypeVar("Result")
# Counts of rows. Keys are ("missing", column), ("negative", column), ("rows", "") and, for labels,
# ("positive", "").
Statistics = Counter[tuple[str, str]]


class CountsFile:
    """A file of counts: `add` each chunk's counts, on any thread, then read `total`."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, Lock()
        self._places: dict[str, list[Any]] = defaultdict(list)
        path.unlink(missing_ok=True)

    def add(self, chunk: Mapping[str, ValueCounts]) -> None:
        """Store the counts of a chunk, by table."""
        totals = {table: counts.total for table, counts in chunk.items()}
        with (
            self._lock,
            name_write_errors(self._path, DataError),
            open(self._path, "ab") as file,
        ):
            for table, total in totals.items():
                arrays = [*map(_short, _arrays(total))]
                place = file.tell(), [(array.dtype, array.nbytes) for array in arrays]
                self._places[table].append((*place, total.written))
                file.writelines(array.data for array in arrays)

    def total(self, table: str) -> Counted:
        """Return a table's counts, summed over all chunks."""
        counts = ValueCounts()
        with open(self._path, "rb") as file:
            for first, kinds, written in self._places[table]:
                file.seek(first)
                parts = (np.frombuffer(file.read(size), dtype) for dtype, size in kinds)
                letters = next(parts)
                integers = [part.astype(np.int64) for part in parts]
                numbers, times, hexes, hex_times, ends, text_times = integers
                texts = as_binary(Texts(letters, ends))
                found = (numbers, times), (hexes, hex_times), (texts, text_times)
                counts.add(Counted(*found, written))
        return counts.total


def _arrays(counts: Counted) -> list[Array]:
    texts = texts_of(counts.texts[0])
    return [texts.data, *counts.numbers, *counts.hexes, texts.offsets, counts.texts[1]]


def _short(array: Array) -> Array:
    """Return int64 as uint32 if all values fit, else unchanged."""
    fit = array.dtype == np.int64 and (not len(array) or 0 <= array.min() <= array.max() < 2**32)
    return array.astype(np.uint32) if fit else array


class _Found(NamedTuple):
    """Facts about a chunk besides the counts of its values."""

    # Further keys: ("bad", column) for bad rows, and ("bad", "fields") for lines that are not rows.
    statistics: Statistics
    bad: list[Report]
    numbers: Sequence[PieceNumbers] = ()  # of each piece, to learn bins from


def learn(job: Job) -> tuple[Rules, dict[str, Any]]:
    """Read all rows; return the encoder, and `dataset.json` without files.

    The entry `chunks`, the number of rows in each chunk, is only for the second pass.
    """
    plan, job = job.plan, _with_learnt(job)
    if job.known is not None:
        check_memory(job, job.known)
    counts = CountsFile(job.work / "counts")
    bins = Sampling({} if job.known else job.blank.schema.bins_to_learn)
    found, rows = _read(job, counts, bins)
    if not sum(rows):
        others = f", nor in {len(job.files) - 1} more files" if len(job.files) > 1 else ""
        raise DataError(f"{job.files[0]}: no good row in it{others}")
    job = replace(job, blank=replace(job.blank, schema=bins.learnt(job.blank.schema, job.files[0])))
    encoder, distinct = (job.known, {}) if job.known else _make_encoder(job, counts)
    return encoder, {
        "format": "sparsetrain.dataset",
        "version": 1,
        "plan": plan,
        "chunks": rows,
        "fingerprint": encoder.fingerprint,
        "layout": encoder.layout,
        "schema": encoder.schema.to_dict(),
        "labels": encoder.schema.all_labels.kinds,
        "bad_row_examples": [fault["reason"] for fault in found.bad],
        "categories": _categories(encoder, distinct),
        "files": [],
        **_rows(encoder, found.statistics),
    }


def _with_learnt(job: Job) -> Job:
    """Return a job with the options of derived columns learned from good rows."""
    rules = job.blank.schema.to_learn
    if not rules or job.known is not None:
        return job
    reads = [(name, partial(learnt_numbers, rule)) for name, rule in rules.items()]
    only = StrictReader(tuple(rules), reads)

    def read(chunk: Chunk) -> tuple[int, list[PieceNumbers]]:
        found, _ = read_good_rows(
            chunk,
            only,
            job.bad_rows,
            lambda piece, location: (piece.num_rows, numbers_in(piece, rules, location)),
        )
        pieces = [*found]
        return sum(rows for rows, _ in pieces), [numbers for _, numbers in pieces]

    sampling = Sampling(rules)
    for pieces in _pass(job, "learning derived columns", read):
        for numbers in pieces:
            sampling.add(numbers)
    schema = sampling.learnt(job.blank.schema, job.files[0])
    return replace(job, blank=replace(job.blank, schema=schema))


def _pass(job: Job, what: str, read: Callable[[Chunk], tuple[int, Result]]) -> Iterator[Result]:
    """Yield the second result of `read` for each chunk; the first, rows, is for the progress."""

    def measured(chunk: Chunk) -> tuple[int, Result, float]:
        return *read(chunk), chunk.input_bytes

    total, done = max(1, sum(size_and_time(file)[0] for file in job.files)), 0.0
    for rows, found, size in ordered_map(measured, split_chunks(job.inputs), job.workers):
        done += size
        # Chunks are read ahead, so progress reaches 1 only after the last one.
        job.progress(what, rows, min(_ALMOST, done / total))
        yield found
    job.progress(what, 0, 1.0)


def _read(job: Job, counts: CountsFile, bins: Sampling) -> tuple[_Found, list[int]]:
    """Return the facts about all chunks, with some of the bad rows, and each chunk's row count.

    Also add the numbers of all chunks to `bins`.
    """
    seen, rows, examples = Statistics(), list[int](), list[Report]()
    quarantined = job.bad_rows == "quarantine"
    with atomic_write(job.out / QUARANTINE) if quarantined else nullcontext() as quarantine:
        read = partial(_read_chunk, job, counts, bins.rules)
        for found in _pass(job, "reading", read):
            seen.update(found.statistics)
            for numbers in found.numbers:
                bins.add(numbers)
            rows.append(found.statistics["rows", ""])
            examples = [*examples, *found.bad[:_CHUNK_EXAMPLES]][:_EXAMPLES]
            if quarantine is not None:
                lines = (json.dumps(fault, ensure_ascii=False) for fault in found.bad)
                quarantine.writelines(f"{line}\n".encode() for line in lines)
    return _Found(seen, examples), rows


def _read_chunk(
    job: Job, counts: CountsFile, bins: Mapping[str, Derived], chunk: Chunk
) -> tuple[int, _Found]:
    seen, tables = Statistics(), {column.owner: ValueCounts() for column in job.blank.features}
    reader, numbers = Reader.of(job.blank, chunk.reader.found), list[PieceNumbers]()
    strict = strict_reader(reader, Category.encode if job.known else Category.count)

    pieces, bad = read_good_rows(
        chunk, strict, job.bad_rows, lambda piece, here: (piece.num_rows, strict.read(piece, here))
    )
    for rows, found in pieces:
        seen["rows", ""] += rows
        first, second = len(reader.labels), len(found) - len(reader.categories)
        read = found[second - len(reader.dense) : second]
        dense = {own.name: values for (_, own), values in zip(reader.dense, read, strict=True)}
        seen["positive", ""] += sum(int(np.count_nonzero(each == 1)) for each in found[:first])
        for name, (values, missing) in dense.items():
            negative = np.atleast_2d(values.T < 0).any(axis=0)  # a vector, if any number is
            seen["missing", name] += int(missing.sum())
            seen["negative", name] += int(negative.sum())
        present = {name: values[~missing] for name, (values, missing) in dense.items() if bins}
        numbers.append({name: present[rule.source] for name, rule in bins.items()})
        for column, counted in zip(reader.rules.features, found[second:], strict=True):
            if job.known is None:
                tables[column.owner].add(counted)
    if job.known is None:
        counts.add(tables)
    seen.update(("bad", fault["column"] or "fields") for fault in bad)
    return seen["rows", ""], _Found(seen, bad, numbers)


def _make_encoder(job: Job, counts: CountsFile) -> tuple[Rules, dict[str, int]]:
    """Give ids to the values of each table; also return each table's number of distinct values."""
    blank = job.blank
    learned = dict[str, Values]()
    distinct, sizes = dict[str, int](), dict[str, int]()
    tables = [column for column in blank.features if column.has_table]

    def learn_table(column: Category) -> tuple[Values, int]:
        total = counts.total(column.name)
        values = sum(len(values) for values, _ in total[:3])
        return blank.learn(column, total), values

    for column, (table, values) in zip(
        tables, ordered_map(learn_table, tables, job.workers), strict=True
    ):
        learned[column.name], distinct[column.name] = table, values
        sizes[column.name] = _bytes_of(table)
        _check_sizes(job, sizes)
        job.progress("counting values", 0, len(distinct) / len(tables))
    return blank.with_values(learned), distinct


def check_memory(job: Job, encoder: Rules) -> None:
    """Refuse an encoder that does not fit in the memory."""
    tables = {column.owner: column.values for column in encoder.features}
    _check_sizes(job, {owner: _bytes_of(values) for owner, values in tables.items()})


def _check_sizes(job: Job, sizes: Mapping[str, int]) -> None:
    """Refuse values that need too much memory while encoding; name the largest table."""
    if sum(sizes.values()) > (job.memory - BASE) // 2:
        most = max(sizes, key=sizes.__getitem__)
        whose = "of the encoder" if job.known else "seen min_count times"
        other = "an encoder of fewer values" if job.known else "a higher min_count"
        raise ResourceError(
            f"the values {whose} need more than half of {job.memory >> 20:,} MiB, "
            f"most of them in {most}; give more memory or {other}"
        )


def _bytes_of(values: Values) -> int:
    """Return the approximate memory of a table's values while encoding."""
    if isinstance(values, PlainIds):
        return 0
    return _VALUE * (len(values.numbers) + 2 * len(values.texts)) + len(texts_of(values.texts).data)


def _rows(encoder: Rules, found: Statistics) -> dict[str, Any]:
    bad = {name: n for (what, name), n in sorted(found.items()) if what == "bad"}
    return {
        "rows": found["rows", ""],
        "positive": found["positive", ""] if encoder.schema.all_labels.is_yes_or_no else None,
        "bad_rows": sum(bad.values()),
        "bad_rows_by_column": bad,
        "dense": {
            column.name: {what: found[what, column.name] for what in ("missing", "negative")}
            for column in encoder.dense
        },
    }


def _categories(encoder: Rules, distinct: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return the facts about each category column; the second pass counts its ids."""
    found = {}
    for column in encoder.features:
        reserved = {"missing": 0, "rare": 0} if column.reserves else {}
        counted = {"distinct": distinct[column.owner]} if reserved and distinct else {}
        found[column.name] = {"rows": column.rows, "ids": 0, **reserved, **counted, **column.shares}
    return found
