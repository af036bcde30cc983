# SPDX-License-Identifier: Apache-2.0
"""Deltas: what a newer export has that an older one lacks, and the newer one put together again.

A delta holds the newer manifest, files that changed, and of tables the rows that changed. `apply`
writes a folder of the same bytes as the newer export: every file is checked against that manifest.
Files that stay are links to those of the older folder, so processes share their memory.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparsetrain.errors import CheckpointError
from sparsetrain.serving import manifest
from sparsetrain.serving.folders import new_folder, sync

PLAN = "delta.json"
_CHUNK = 1 << 16  # rows compared at once


class _Export(NamedTuple):
    """A folder and what its manifest says of it."""

    folder: Path
    checksum: str  # of the manifest
    files: dict[str, tuple[int, str]]  # size and CRC-32
    shapes: dict[str, tuple[int, ...]]  # of params, by file, in bytes along the last axis
    tables: dict[str, tuple[int, int]]  # by column: first row in the storage, and rows

    @property
    def is_apart(self) -> bool:
        """Whether tables have a file each."""
        return not any(first for first, _ in self.tables.values())

    @property
    def rows(self) -> int:
        """Rows of the storage that holds the tables."""
        return max(first + rows for first, rows in self.tables.values())


def _read(folder: Path) -> _Export:
    records = manifest.read(folder)
    columns = [r[1] for kind in ("column", "derived") for r in records if r[0] == kind]
    shapes = {}
    for _, file, _, bits, *shape in (r for r in records if r[0] == "param"):
        extents = [*map(int, shape)]
        shapes[file] = (*extents[:-1], extents[-1] * int(bits) // 8)
    return _Export(
        folder,
        f"{zlib.crc32((folder / manifest.FILE).read_bytes()):08x}",
        {manifest.plain_name(r[1]): (int(r[2]), r[3]) for r in records if r[0] == "file"},
        shapes,
        {columns[int(r[1])]: (int(r[2]), int(r[3])) for r in records if r[0] == "category"},
    )


def write_delta(older: str | Path, newer: str | Path, out: str | Path) -> None:
    """Write what `apply` needs to make `newer` of `older`, both exported folders, to a new folder.

    Raises
    ------
    CheckpointError
        If one of them is not an export.
    ConfigError
        If `out` exists.
    """
    old, new = _read(Path(older)), _read(Path(newer))
    plan: dict[str, Any] = {"since": old.checksum, "rows": {}}
    with new_folder(Path(out)) as folder:
        shutil.copyfile(new.folder / manifest.FILE, folder / manifest.FILE)
        for name, about in new.files.items():
            if about == old.files.get(name):
                continue
            if _are_tables(old, new, name):
                plan["rows"][name] = _copies(old, new, name)
                _write_rows(folder, name, old, new)
            else:
                shutil.copyfile(new.folder / name, folder / name)
        (folder / PLAN).write_text(json.dumps(plan))


def _are_tables(old: _Export, new: _Export, name: str) -> bool:
    """Whether both have a file of rows, of the same width and with tables laid out alike."""
    shapes = [export.shapes.get(name, ()) for export in (old, new)]
    if {len(shape) for shape in shapes} != {2} or shapes[0][1] != shapes[1][1]:
        return False
    rows = [shape[0] for shape in shapes]
    return (old.is_apart and new.is_apart) or rows == [old.rows, new.rows]


def _copies(old: _Export, new: _Export, name: str) -> list[tuple[int, int, int]]:
    """Return ranges of rows that both have: first in the new, first in the old one, how many."""
    if old.is_apart and new.is_apart:
        return [(0, 0, min(old.shapes[name][0], new.shapes[name][0]))]
    return [
        (first, old.tables[column][0], min(rows, old.tables[column][1]))
        for column, (first, rows) in new.tables.items()
        if column in old.tables
    ]


def _mapped(export: _Export, name: str) -> np.ndarray:
    """The bytes of a table's rows, (V, bytes) uint8."""
    return np.memmap(export.folder / name, np.uint8, "r", shape=export.shapes[name])


def _write_rows(folder: Path, name: str, old: _Export, new: _Export) -> None:
    before, after = _mapped(old, name), _mapped(new, name)
    changed = np.ones(len(after), bool)
    for first, source, count in _copies(old, new, name):
        for at in range(0, count, _CHUNK):
            size = min(_CHUNK, count - at)
            same = after[first + at :][:size] == before[source + at :][:size]
            changed[first + at : first + at + size] = ~same.all(axis=1)
    rows = np.flatnonzero(changed)
    np.save(folder / f"{name}.rows.npy", rows)
    np.save(folder / f"{name}.values.npy", after[rows])


def apply(folder: str | Path, delta: str | Path, out: str | Path) -> None:
    """Make a newer export of an older one and a delta.

    A server that was given a link goes over to it without a stop: move the link, send SIGHUP.

    Parameters
    ----------
    folder, delta : path
    out : path
        A new folder.

    Raises
    ------
    CheckpointError
        If the delta is for another export, or either is damaged; nothing is written then.
    ConfigError
        If `out` exists.
    """
    old, new = _read(Path(folder)), _read(Path(delta))
    try:
        plan = json.loads((new.folder / PLAN).read_text())
        since, of_rows = plan["since"], dict(plan["rows"])
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(
            f"{delta}: it is not a delta: give what export --since wrote"
        ) from None
    if since != old.checksum:
        raise CheckpointError(
            f"{delta}: it is for another export than {folder}: deltas follow one another"
        )
    with new_folder(Path(out)) as made:
        for name, about in new.files.items():
            try:
                _make(made / name, name, old, new, of_rows)
            except (OSError, ValueError, IndexError, KeyError, TypeError) as error:
                raise CheckpointError(f"{delta}: {name} cannot be made: {error}") from None
            if manifest.file_record(made / name)[2:] != about:
                raise CheckpointError(f"{delta}: {name} is damaged, there or in {folder}")
            (made / name).chmod(0o644)
            sync(made / name)
        shutil.copyfile(new.folder / manifest.FILE, made / manifest.FILE)
        sync(made / manifest.FILE)


def _make(path: Path, name: str, old: _Export, new: _Export, of_rows: Mapping[str, Any]) -> None:
    if name in of_rows:
        table = np.memmap(path, np.uint8, "w+", shape=new.shapes[name])
        before = _mapped(old, name)
        for first, source, count in of_rows[name]:
            table[first : first + count] = before[source : source + count]
        rows = np.load(new.folder / f"{name}.rows.npy", allow_pickle=False)
        table[rows] = np.load(new.folder / f"{name}.values.npy", allow_pickle=False)
        table.flush()
    elif (new.folder / name).exists():
        shutil.copyfile(new.folder / name, path)
    else:
        try:
            os.link(old.folder / name, path)
        except OSError:  # another file system
            shutil.copyfile(old.folder / name, path)
