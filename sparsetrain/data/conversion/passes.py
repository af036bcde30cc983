# SPDX-License-Identifier: Apache-2.0
"""The three passes over all chunks: learn each, merge each column's counts, write the files.

Each is a map over tasks, in order, on some threads. What of the memory given is free for counts is
reckoned here, and values that would not fit are refused before they are collected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sparsetrain.errors import ResourceError

from ..encode.encoder import Encoder
from ..encode.learn import vocabulary_of
from ..encode.plain_ids import PlainIds
from ..encode.state import write_manifest
from ..encode.vocabulary import Vocabulary
from ..stream.workers import ordered_map
from ..values.arrays import Array
from .chunks import Chunk, cut, identity
from .learning import Seen, Task, learn_chunk, read_column
from .merging import NUMBERS, TEXTS, Total, merge_runs
from .writing import Group, grouped, is_written, write_group

BASE = 300 << 20  # Python, Arrow and what their allocators keep
WORKER = 250 << 20  # a block of text and its columns, a slice, or the distinct values of a chunk
_ALMOST = 0.99
_VALUE = 90  # bytes of a value with a row: key, count and id, and its slots in a hash table
_JOINING = 6  # how much more than the counts themselves it takes to join them


# What decides ids and numbers when all values are known, and not what is counted of a chunk.
_RULES = ("min_count", "max_rows")
_SETTINGS = (*_RULES, "dense_fill", "missing_flags")
_NO_RULE = {"keep": "first"}


class Progress(Protocol):
    """Is told how far a pass has come."""

    def __call__(self, what: str, rows: int, done: float) -> None:
        """`rows` more rows are through pass `what`, of which the share `done` is done.

        What an earlier run had done already counts in `done` alone.
        """


def silent(what: str, rows: int, done: float) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Run:
    """One conversion: what it is of and where it goes; see `convert_files` for the fields."""

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
        """The folder of what is needed until the work is done."""
        return self.out / "_work"

    def plan(self) -> dict[str, Any]:
        """Return everything the result depends on, as JSON would give it back."""
        plan = {
            "version": 1,
            "inputs": identity(self.files),
            "encoder": self.known.fingerprint if self.known else write_manifest(self.blank),
            "label": self.label,
            "bad_rows": self.bad_rows,
        }
        values: dict[str, Any] = json.loads(json.dumps(plan))
        return values


def of_reading(plan: dict[str, Any]) -> dict[str, Any]:
    """Return what of a plan the first pass depends on; the others begin anew for little."""
    encoder = plan["encoder"]
    if not isinstance(encoder, dict):
        return plan
    rules = {
        name: _without(rule, _RULES) for name, rule in encoder["schema"].get("columns", {}).items()
    }
    schema = encoder["schema"] | {"columns": {n: r for n, r in rules.items() if r != _NO_RULE}}
    settings = _without(encoder["settings"], _SETTINGS)
    return plan | {"encoder": encoder | {"settings": settings, "schema": schema}}


def _without(values: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def digest(values: dict[str, Any]) -> str:
    """Return a digest of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


class Learnt(NamedTuple):
    """An encoder, and how many distinct values each column had; None where none were counted."""

    encoder: Encoder
    distinct: list[int | None]


def learn_chunks(run: Run, task: Task, inputs: Sequence[Chunk]) -> list[Seen]:
    """Read every chunk."""
    total = sum(Path(given.place.name).stat().st_size for given in inputs)
    chunks, done = [], 0.0

    def learn(chunk: Chunk) -> tuple[Seen, bool, float]:
        is_new = not task.result_of(chunk.index).exists()
        return learn_chunk(task, chunk), is_new, chunk.input_bytes

    for seen, is_new, size in ordered_map(learn, cut(inputs), run.workers):
        chunks.append(seen)
        done += size
        # A reader is ahead of what it gives, so only the end shows that all is done.
        run.progress("reading", seen.rows * is_new, min(_ALMOST, done / max(total, 1)))
    run.progress("reading", 0, 1.0)
    return chunks


def check_known(run: Run) -> None:
    """Refuse an encoder that was given and would not fit in the memory."""
    if run.known is not None and not run.known.encoded:
        _check_memory(run, [rule for rule in run.known.categories if isinstance(rule, Vocabulary)])


def known_values(run: Run) -> Learnt:
    """Return the encoder that was given."""
    assert run.known is not None
    return Learnt(run.known, [None] * len(run.known.columns))


def learn_values(run: Run, task: Task, chunks: Sequence[Seen]) -> Learnt:
    """Learn every column from what its chunks hold."""
    if not task.learn:
        largest = [max(column) for column in zip(*(seen.largest for seen in chunks), strict=True)]
        rules = tuple(PlainIds(id_ + 1) for id_ in largest)
        return Learnt(run.blank.learnt(rules), [None] * len(rules))
    merge = partial(_merge_column, run, task, chunks)
    vocabularies: list[Vocabulary] = []
    distinct: list[int | None] = []
    numbers = range(len(run.blank.columns))
    for index, (vocabulary, count) in enumerate(ordered_map(merge, numbers, run.workers), 1):
        vocabularies.append(vocabulary)
        distinct.append(count)
        _check_memory(run, vocabularies)
        run.progress("counting values", 0, index / len(numbers))
    return Learnt(run.blank.learnt(tuple(vocabularies)), distinct)


class _Counts(NamedTuple):
    """Merged counts, as a vocabulary takes them."""

    number_total: Total
    text_total: Total

    def numbers(self) -> tuple[Array, Array]:
        return self.number_total.keys, self.number_total.counts

    def texts(self) -> tuple[list[bytes], Array]:
        return self.text_total.keys.to_pylist(), self.text_total.counts

    def left_out(self) -> int:
        return self.number_total.left_out + self.text_total.left_out


def _merge_column(
    run: Run, task: Task, chunks: Sequence[Seen], index: int
) -> tuple[Vocabulary, int]:
    name, blank = run.blank.columns[index], run.blank
    min_count = blank.schema.rule(name).min_count or blank.settings.min_count
    limit = (run.memory - BASE) // (2 * _JOINING * run.workers)
    totals = [
        merge_runs(
            kind,
            (read_column(task.result_of(seen.chunk.index), index)[part] for seen in chunks),
            min_count,
            limit,
            task.folder / f"spill-{index}-{part}",
            partial(_check_values, run, name, (part + 1) * _VALUE),
        )
        for part, kind in enumerate((NUMBERS, TEXTS))
    ]
    counts = _Counts(*totals)
    vocabulary = vocabulary_of(name, counts, blank.settings, blank.schema)
    return vocabulary, sum(total.distinct for total in totals)


def _check_memory(run: Run, vocabularies: Sequence[Vocabulary]) -> None:
    """Refuse values that would not fit while encoding, naming the column that has most."""
    sizes = [
        _VALUE * len(v.numbers) + sum(2 * _VALUE + len(text) for text in v.texts)
        for v in vocabularies
    ]
    _check_values(run, run.blank.columns[sizes.index(max(sizes))], 1, sum(sizes))


def _check_values(run: Run, most: str, each: int, count: int) -> None:
    """Refuse `count` values of `each` bytes that would not fit; a cap does not make them fewer."""
    if each * count > (run.memory - BASE) // 2:
        whose = "of the encoder" if run.known else "seen min_count times"
        other = "an encoder of fewer values" if run.known else "a higher min_count"
        raise ResourceError(
            f"the values {whose} need more than half of {run.memory >> 20:,} MiB, "
            f"most of them in {most}; give more memory or {other}"
        )


def write_files(run: Run, task: Task, chunks: Sequence[Seen]) -> list[dict[str, Any]]:
    """Write the encoded files and return their entries."""
    total = sum(seen.rows for seen in chunks)
    entries, rows = [], 0

    def write(group: Group) -> tuple[dict[str, Any], bool]:
        is_new = not is_written(task, group, run.out)
        return write_group(task, group, run.out), is_new

    for entry, is_new in ordered_map(write, grouped(chunks), run.workers):
        entries.append(entry)
        rows += entry["rows"]
        run.progress("writing", entry["rows"] * is_new, rows / total)
    return entries
