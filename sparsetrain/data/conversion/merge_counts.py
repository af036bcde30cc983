# SPDX-License-Identifier: Apache-2.0
"""Exact external merge of a column's value counts over all chunks.

Chunks give sorted runs. They are merged in memory up to a limit; beyond it they are written to disk
as one larger sorted run. At the end all runs are merged a slice at a time, and only frequent values
are kept. Memory: the limit, and the values kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparsetrain.data.encode.value_counts import reduce_numbers
from sparsetrain.data.values.arrays import Array

_SLICE = 1 << 16

Run = tuple[Any, Array]


class Kind(NamedTuple):
    """Operations on sorted keys of one kind: (n,) int64 or a binary Arrow array."""

    join: Callable[[Sequence[Run]], Run]
    up_to: Callable[[Any, Any], int]
    last: Callable[[Any], Any]
    keep: Callable[[Any, Array], Any]
    entry_bytes: Callable[[Any], int]


def _join_numbers(runs: Sequence[Run]) -> Run:
    numbers, times = (np.concatenate(part) for part in zip(*runs, strict=True))
    return reduce_numbers(numbers, times)


def _join_texts(runs: Sequence[Run]) -> Run:
    texts = pa.chunked_array([texts for texts, _ in runs], pa.large_binary())
    coded = pc.dictionary_encode(texts).combine_chunks()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.chunk(0)
    times = np.concatenate([times for _, times in runs])
    totals = np.zeros(len(coded.dictionary), dtype=np.int64)
    np.add.at(totals, coded.indices.to_numpy(), times)
    order = pc.sort_indices(coded.dictionary)
    return coded.dictionary.take(order), totals[order.to_numpy()]


NUMBERS = Kind(
    join=_join_numbers,
    up_to=lambda keys, bound: int(np.searchsorted(keys, bound, side="right")),
    last=lambda keys: keys[-1],
    keep=lambda keys, mask: keys[mask],
    entry_bytes=lambda keys: 16 * len(keys),
)
TEXTS = Kind(
    join=_join_texts,
    up_to=lambda keys, bound: bisect_right(keys, bound, key=lambda key: key.as_py()),
    last=lambda keys: keys[-1].as_py(),
    keep=lambda keys, mask: keys.filter(pa.array(mask)),
    entry_bytes=lambda keys: 16 * len(keys) + keys.nbytes,
)


class Total(NamedTuple):
    """Merged counts of a column: its frequent values, and the number of all distinct ones.

    `left_out` is how often the other values occur, all together.
    """

    keys: Any
    counts: Array
    distinct: int
    left_out: int


def merge_runs(
    kind: Kind,
    runs: Iterable[Run],
    min_count: int,
    limit_bytes: int,
    spill: Path,
    check: Callable[[int], None] = lambda count: None,
) -> Total:
    """Add up sorted runs, each of distinct ascending keys; leave out totals below `min_count`.

    `limit_bytes` is the memory for keys and counts on the way (joining takes about four times as
    much); beyond it, files with the prefix `spill` are written, and removed. `check` is told how
    many keys stay so far, and may raise where they become too many.
    """
    spilled: list[Path] = []
    try:
        last = _gather(kind, runs, limit_bytes, spill, spilled)
        streams = [_stored(path) for path in spilled] + ([_sliced(*last)] if last else [])
        kept, staying, distinct, left_out = [], 0, 0, 0
        for keys, counts in _merged(kind, streams):
            frequent = counts >= min_count
            kept.append((kind.keep(keys, frequent), counts[frequent]))
            distinct += len(counts)
            left_out += int(counts[~frequent].sum())
            staying += len(kept[-1][1])
            check(staying)
    finally:
        for path in spilled:
            path.unlink(missing_ok=True)
    if not kept:
        return Total(_empty(kind), np.zeros(0, dtype=np.int64), 0, 0)
    return Total(*kind.join(kept), distinct, left_out)


def _empty(kind: Kind) -> Any:
    return np.zeros(0, dtype=np.int64) if kind is NUMBERS else pa.array([], pa.large_binary())


def _gather(
    kind: Kind, runs: Iterable[Run], limit: int, spill: Path, spilled: list[Path]
) -> Run | None:
    """Join runs in memory; write what grows beyond the limit and return what is left at the end."""
    held: list[Run] = []
    size = joined = 0
    for keys, counts in runs:
        if not len(counts):
            continue
        held.append((keys, counts))
        size += kind.entry_bytes(keys)
        if size - joined <= max(limit // 2, joined) and size <= limit:
            continue
        held = [kind.join(held)]
        size = joined = kind.entry_bytes(held[0][0])
        if 2 * size > limit:
            path = spill.with_name(f"{spill.name}-{len(spilled)}.arrow")
            _store(path, *held[0])
            spilled.append(path)
            held, size, joined = [], 0, 0
    return kind.join(held) if held else None


def _store(path: Path, keys: Any, counts: Array) -> None:
    table = pa.table({"keys": keys, "counts": counts})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=_SLICE)


def _stored(path: Path) -> Iterator[Run]:
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        for index in range(reader.num_record_batches):
            keys, counts = reader.get_batch(index).columns
            yield keys.to_numpy() if pa.types.is_integer(keys.type) else keys, counts.to_numpy()


def _sliced(keys: Any, counts: Array) -> Iterator[Run]:
    for start in range(0, len(counts), _SLICE):
        yield keys[start : start + _SLICE], counts[start : start + _SLICE]


def _merged(kind: Kind, streams: Sequence[Iterator[Run]]) -> Iterator[Run]:
    """Merge sorted streams: take from every one what no other can still have something below."""
    heads = [(run, stream) for stream in streams if (run := next(stream, None)) is not None]
    while heads:
        bound = min(kind.last(run[0]) for run, _ in heads)
        taken, left = [], []
        for (keys, counts), stream in heads:
            cut = kind.up_to(keys, bound)
            taken.append((keys[:cut], counts[:cut]))
            rest = (keys[cut:], counts[cut:]) if cut < len(counts) else next(stream, None)
            if rest is not None:
                left.append((rest, stream))
        yield kind.join([run for run in taken if len(run[1])])
        heads = left
