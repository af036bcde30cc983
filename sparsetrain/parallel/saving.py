# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of sharded tables, written and read by all ranks, in the format of one process.

A file holds a range of an array's rows. If a table's rows are dealt to all ranks, one rank collects
and writes each file, several files at a time; every other array is written by its owner. So a
checkpoint does not depend on the ranks, and any number of ranks, or one process, can read it. A
rank needs memory for only a few blocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparsetrain.checkpoint import Saved, errors_of, folders
from sparsetrain.checkpoint.array_file import file_size, write_blocks
from sparsetrain.checkpoint.manifest import FILE, Entry, all_rows, dump, piece_shape
from sparsetrain.checkpoint.writing import replacing
from sparsetrain.errors import CheckpointError
from sparsetrain.parallel.comm import Comm, as_bytes
from sparsetrain.parallel.sharding_plan import DEALT, Placed
from sparsetrain.parallel.shards import Shards
from sparsetrain.tables.state_dict import named_tables

PIECE_BYTES = 32 << 20  # size of a file
BLOCK_BYTES = 1 << 20  # part of a file that ranks send at a time


class _Whole(NamedTuple):
    """A whole array of a checkpoint, and the table it belongs to, if any."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    table: Placed | None


class _Piece(NamedTuple):
    """Rows of an array that one file holds, and the rank that writes it."""

    array: _Whole
    rows: tuple[int, int]
    file: str
    writer: int


def write(
    shards: Shards,
    folder: str | PathLike[str],
    arrays: Mapping[str, np.ndarray],
    manifest: dict[str, Any],
) -> None:
    """Save the arrays of all ranks, replacing the old checkpoint; see `checkpoint.write`.

    `arrays` are this rank's; only rank 0's `manifest` is saved.
    """
    comm = shards.comm
    target = folders.located(folder)
    pieces = list(_cut(shards, arrays))
    with errors_of(target):
        if comm.rank == 0:
            dump([], manifest)
            with replacing(target, sum(file_size(*_kind(piece)) for piece in pieces)) as draft:
                require_shared(comm, draft)
                entries = _write_pieces(shards, draft, arrays, pieces)
                with folders.new_file(draft / FILE) as file:
                    file.write(dump(entries, manifest))
        else:
            draft = require_shared(comm)
            try:
                _write_pieces(shards, draft, arrays, pieces)
            except FileNotFoundError:
                if not draft.is_dir():
                    comm.any(False)  # rank 0 failed and removed the draft: raises its error
                raise
        comm.any(False)  # wait until rank 0 has published it


def require_shared(comm: Comm, folder: Path | None = None) -> Path:
    """Return rank 0's folder, or raise an error if a rank cannot access it."""
    named = Path(comm.gather(None if folder is None else str(folder))[0])
    seen = comm.gather(named.is_dir())
    if not all(seen):
        raise CheckpointError(
            f"{comm.name_of(seen.index(False))} cannot access {named}: a run must be on a "
            "file system that all ranks share"
        )
    return named


def _cut(shards: Shards, arrays: Mapping[str, np.ndarray]) -> Iterator[_Piece]:
    """Cut all arrays by rows into files; ranks take turns writing files of dealt tables."""
    number = dealt = 0
    for whole in _wholes(shards, arrays):
        owner = whole.table.owner if whole.table is not None else 0
        for piece in _cut_rows(_Piece(whole, all_rows(whole.shape), "", owner), PIECE_BYTES):
            writer = dealt % shards.size if owner == DEALT else owner
            yield piece._replace(file=f"{number:03}.npy", writer=writer)
            number, dealt = number + 1, dealt + (owner == DEALT)


def _wholes(shards: Shards, arrays: Mapping[str, np.ndarray]) -> Iterator[_Whole]:
    tables = _tables(shards)
    for name, array in arrays.items():
        table = tables.get(name) or tables.get(name.rpartition(":")[0])
        shape = array.shape
        if table is not None:
            shape = (table.rows.stop - table.rows.start, *shape[1:])
        yield _Whole(name, shape, array.dtype, table)


def _tables(shards: Shards) -> dict[str, Placed]:
    """Return the tables by their names in a checkpoint."""
    spans = {s: {t.name: t.rows for t in plan.tables} for s, plan in shards.plan.items()}
    return {
        full: table
        for storage, names in named_tables(spans).items()
        for full, table in zip(names, shards.plan[storage].tables, strict=True)
    }


def rows_of(shards: Shards, arrays: Mapping[str, np.ndarray], row: int) -> dict[str, np.ndarray]:
    """Return row `row` of each table that has this row on this rank."""
    found = {}
    for name, table in _tables(shards).items():
        first, step = table.on(shards.rank, shards.size)
        if row in range(first, table.rows.stop - table.rows.start, step):
            found[name] = arrays[name][(row - first) // step]
    return found


def _write_pieces(
    shards: Shards, draft: Path, arrays: Mapping[str, np.ndarray], pieces: list[_Piece]
) -> list[Entry]:
    """Write this rank's files; return the manifest entries of all ranks' files, in order."""
    own: dict[str, Any] = {}
    dealt = [p for p in pieces if p.array.table is not None and p.array.table.owner == DEALT]
    for piece in pieces:
        if piece not in dealt and piece.writer == shards.rank:
            own[piece.file] = _write(draft, piece, [_rows(arrays[piece.array.name], piece)])
    for at in range(0, len(dealt), shards.size):
        group = dealt[at : at + shards.size]
        blocks = _collect(shards, arrays, group)
        mine = [piece for piece in group if piece.writer == shards.rank]
        own |= {piece.file: _write(draft, piece, blocks) for piece in mine}
        for _ in blocks:
            pass  # keep sending blocks until other ranks have all of theirs
    found: dict[str, int] = {}
    for crcs in shards.comm.gather(own):
        found |= crcs
    return [
        Entry(p.array.name, p.file, kind[0], p.array.shape, p.rows, file_size(*kind), found[p.file])
        for p in pieces
        for kind in [_kind(p)]
    ]


def _kind(piece: _Piece) -> tuple[str, tuple[int, ...]]:
    return piece.array.dtype.name, piece_shape(piece.array.shape, piece.rows)


def _rows(array: np.ndarray, piece: _Piece) -> np.ndarray:
    return array[slice(*piece.rows)] if array.shape else array


def _write(draft: Path, piece: _Piece, blocks: Iterable[np.ndarray]) -> int:
    with folders.new_file(draft / piece.file) as file:
        return write_blocks(file, *_kind(piece), blocks)


def _collect(
    shards: Shards, arrays: Mapping[str, np.ndarray], pieces: list[_Piece]
) -> Iterator[np.ndarray]:
    """Send this rank's rows of each piece to the piece's writer; yield blocks of its own piece.

    All ranks iterate together, a block of each piece at a time, until every piece is complete.
    """
    blocks = [_cut_rows(piece, BLOCK_BYTES) for piece in pieces]
    for together in zip_longest(*blocks):
        yield _exchange(shards, arrays, [piece for piece in together if piece is not None])


def _exchange(shards: Shards, arrays: Mapping[str, np.ndarray], pieces: list[_Piece]) -> np.ndarray:
    rank, size = shards.rank, shards.size
    sent, counts = [np.empty(0, np.uint8)], [0] * size
    for piece in pieces:
        part = arrays[piece.array.name][_dealt(piece.rows, rank, size)]
        sent.append(np.ascontiguousarray(part).reshape(-1).view(np.uint8))
        counts[piece.writer] = part.nbytes
    mine = next((piece for piece in pieces if piece.writer == rank), None)
    spans = [_dealt(mine.rows, r, size) for r in range(size)] if mine else [slice(0, 0)] * size
    name, shape = _kind(mine) if mine else ("uint8", (0,))
    row_bytes = _row_bytes(mine.array) if mine else 0
    rows = np.empty(shape, name)
    received = [(span.stop - span.start) * row_bytes for span in spans]
    shards.comm.exchange(np.concatenate(sent), counts, as_bytes(rows), received)
    if mine is None:
        return rows
    out, at = np.empty_like(rows), 0
    for r, span in enumerate(spans):
        count = span.stop - span.start
        out[(r - mine.rows[0]) % size :: size] = rows[at : at + count]
        at += count
    return out


def _row_bytes(array: _Whole) -> int:
    return max(1, int(np.prod(array.shape[1:])) * array.dtype.itemsize)


def _cut_rows(piece: _Piece, size: int) -> Iterator[_Piece]:
    """Cut a piece by rows into pieces of at most `size` bytes, but at least one row."""
    first, end = piece.rows
    step = max(1, size // _row_bytes(piece.array))
    for start in range(first, end, step) or (first,):
        yield piece._replace(rows=(start, min(start + step, end)))


def _dealt(rows: tuple[int, int], rank: int, size: int) -> slice:
    """Return the slice of a rank's rows that lies in the range `rows` of a dealt table."""
    return slice(*(len(range(rank, end, size)) for end in rows))


class ShardOf:
    """An open checkpoint that reads only this rank's rows; see `checkpoint.Saved`.

    Each file is checked by one rank before any rank reads rows from it.
    """

    def __init__(self, saved: Saved, shards: Shards) -> None:
        self._saved, self._shards = saved, shards
        self.manifest, self._of = saved.manifest, _tables(shards)
        self.kinds = {
            name: ((self._count(name, shape), *shape[1:]) if self._table(name) else shape, dtype)
            for name, (shape, dtype) in saved.kinds.items()
        }

    def read(self, name: str) -> np.ndarray:
        """Return an array that belongs to no table."""
        return self._saved.read(name)

    def _table(self, name: str) -> Placed | None:
        return self._of.get(name) or self._of.get(name.rpartition(":")[0])

    def _count(self, name: str, shape: tuple[int, ...]) -> int:
        """Return this rank's number of rows; keep a wrong saved number, which is refused later."""
        table: Any = self._table(name)
        same = shape[0] == table.rows.stop - table.rows.start
        return table.held(self._shards.rank, self._shards.size) if same else shape[0]

    def fill(self, targets: Mapping[str, np.ndarray]) -> None:
        """Fill this rank's arrays from the checkpoint."""
        shards = self._shards
        self._saved.check(shards.rank, shards.size)
        shards.comm.any(False)
        for name, out in targets.items():
            table = self._table(name)
            if table is None:
                self._saved.fill({name: out})
            elif len(out):
                self._saved.read_rows(name, out, *table.on(shards.rank, shards.size))


def plain(value: Any) -> Any:
    """Return a value after a round trip through JSON."""
    return json.loads(json.dumps(value))
