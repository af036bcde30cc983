# SPDX-License-Identifier: Apache-2.0
"""`Job`, the arguments of one conversion, and its three passes over all chunks.

The passes learn each chunk, add up each table's counts and write the files. Values that would not
fit into memory while encoding are refused. A job's plan holds everything that decides the result,
and identifies its work folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from sparsetrain.data.conversion.chunks import Chunk, split_chunks
from sparsetrain.data.conversion.learn_chunks import ChunkSummary, Task, learn_chunk, read_column
from sparsetrain.data.conversion.write_files import LearnedEncoder, write_parts
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.encode.encoder_state import write_manifest
from sparsetrain.data.encode.learn import make_vocabulary, plain_rules
from sparsetrain.data.encode.value_counts import ValueCounts
from sparsetrain.data.encode.vocabulary import Vocabulary
from sparsetrain.data.read.file_systems import is_url, size_and_time
from sparsetrain.data.stream.threads import ordered_map
from sparsetrain.errors import ResourceError

WORK = "_work"  # the folder inside the result


class Progress(Protocol):
    """Callback that reports the progress of a pass."""

    def __call__(self, what: str, rows: int, done: float) -> None:
        """`rows` more rows are through pass `what`, of which the share `done` is done.

        What an earlier run had done already counts in `done` alone.
        """


def no_progress(what: str, rows: int, done: float) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class Job:
    """Arguments of one conversion; see `convert_files` for the fields."""

    files: list[str]
    out: Path
    blank: Encoder
    known: Encoder | None
    label: bool
    bad_rows: str
    memory: int
    workers: int
    progress: Progress

    @property
    def work(self) -> Path:
        """Folder of intermediate files."""
        return self.out / WORK

    def plan(self) -> dict[str, Any]:
        """Return everything the result depends on, as JSON would give it back."""
        plan = {
            "version": 3,
            "inputs": _identity(self.files),
            "encoder": self.known.fingerprint if self.known else write_manifest(self.blank),
            "label": self.label,
            "bad_rows": self.bad_rows,
        }
        values: dict[str, Any] = json.loads(json.dumps(plan))
        return values


def digest(values: dict[str, Any]) -> str:
    """Return a digest of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def _identity(files: Sequence[str]) -> list[dict[str, object]]:
    """Return path, size and modification time of each input."""
    stats = [(file, size_and_time(file)) for file in files]
    return [
        {"path": file if is_url(file) else str(Path(file).absolute()), "size": s, "changed": t}
        for file, (s, t) in stats
    ]


BASE = 300 << 20  # Python, Arrow and what their allocators keep
WORKER = 250 << 20  # a block of text and its columns, or the distinct values of a chunk
_ALMOST = 0.99
_VALUE = 90  # bytes of a value with a row: key, count and id, and its slots in a hash table


def learn_chunks(job: Job, task: Task, inputs: Sequence[Chunk]) -> list[ChunkSummary]:
    """Read every chunk."""
    total = sum(size_and_time(source.location.name)[0] for source in inputs)
    chunks, done = [], 0.0

    def learn(chunk: Chunk) -> tuple[ChunkSummary, bool, float]:
        is_new = not task.result_of(chunk.index).exists()
        return learn_chunk(task, chunk), is_new, chunk.input_bytes

    for seen, is_new, size in ordered_map(learn, split_chunks(inputs), job.workers):
        chunks.append(seen)
        done += size
        # A reader is ahead of what it gives, so only the end shows that all is done.
        job.progress("reading", seen.rows * is_new, min(_ALMOST, done / max(total, 1)))
    job.progress("reading", 0, 1.0)
    return chunks


def check_known(job: Job) -> None:
    """Refuse an encoder that was given and would not fit in the memory."""
    known = job.known
    if known is not None and not known.encoded:
        rules = {owner: known.categories[owner] for owner in known.owners}
        _check_memory(
            job, {o: _bytes_of(rule) for o, rule in rules.items() if isinstance(rule, Vocabulary)}
        )


def learn_values(job: Job, task: Task, chunks: Sequence[ChunkSummary]) -> LearnedEncoder:
    """Learn every column from what its chunks hold, unless an encoder was given."""
    if job.known is not None:
        return LearnedEncoder(job.known, [None] * len(job.known.columns))
    if not task.learn:
        largest = [max(column) for column in zip(*(seen.largest for seen in chunks), strict=True)]
        rules = plain_rules(largest, job.blank.owners)
        return LearnedEncoder(job.blank.with_rules(rules), [None] * len(rules))
    merge = partial(_merge_column, job, task, chunks)
    vocabularies: dict[int, Vocabulary] = {}
    distinct: dict[int, int] = {}
    sizes: dict[int, int] = {}
    tables = sorted({*job.blank.owners})
    merged = zip(tables, ordered_map(merge, tables, job.workers), strict=True)
    for index, (owner, (vocabulary, count)) in enumerate(merged, 1):
        vocabularies[owner], distinct[owner] = vocabulary, count
        sizes[owner] = _bytes_of(vocabulary)
        _check_memory(job, sizes)
        job.progress("counting values", 0, index / len(tables))
    categories = tuple(vocabularies[owner] for owner in job.blank.owners)
    return LearnedEncoder(
        job.blank.with_rules(categories), [distinct[owner] for owner in job.blank.owners]
    )


def _merge_column(
    job: Job, task: Task, chunks: Sequence[ChunkSummary], index: int
) -> tuple[Vocabulary, int]:
    """Add up the counts of one column; return its vocabulary, and how many values it had."""
    counts, blank = ValueCounts(), job.blank
    for number, seen in enumerate(chunks):
        counts.add_counted(read_column(task.result_of(number), index), seen.hexadecimal[index])
    distinct = len(counts.numbers()[0]) + len(counts.eights()[0]) + len(counts.texts()[0])
    vocabulary = make_vocabulary(blank.columns[index], counts, blank.settings, blank.schema)
    return vocabulary, distinct


def _bytes_of(vocabulary: Vocabulary) -> int:
    """Return about how much memory the values of a column take while encoding."""
    texts = sum(2 * _VALUE + len(text) for text in vocabulary.texts)
    return _VALUE * len(vocabulary.numbers) + texts


def _check_memory(job: Job, sizes: Mapping[int, int]) -> None:
    """Refuse values that would not fit while encoding, naming the column that has most."""
    if sum(sizes.values()) > (job.memory - BASE) // 2:
        most = job.blank.columns[max(sizes, key=sizes.__getitem__)]
        whose = "of the encoder" if job.known else "seen min_count times"
        other = "an encoder of fewer values" if job.known else "a higher min_count"
        raise ResourceError(
            f"the values {whose} need more than half of {job.memory >> 20:,} MiB, "
            f"most of them in {most}; give more memory or {other}"
        )


def write_files(
    job: Job, task: Task, inputs: Sequence[Chunk], chunks: Sequence[ChunkSummary]
) -> list[dict[str, Any]]:
    """Write the encoded files and return their entries."""
    total = sum(seen.rows for seen in chunks)
    entries, rows = [], 0
    for entry, is_new in write_parts(task, inputs, chunks, job.out, job.workers):
        entries.append(entry)
        rows += entry["rows"]
        job.progress("writing", entry["rows"] * is_new, rows / total)
    return entries
