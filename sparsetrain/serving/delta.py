# SPDX-License-Identifier: Apache-2.0
"""Deltas: the difference between two exports, and its application to the older one.

A delta holds the newer manifest, changed files, and changed rows of tables and of item vectors.
`apply` writes a folder with the same bytes as the newer export, and checks every file against that
manifest. Unchanged files are hard links to files of the older folder, so processes share their
memory.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparsetrain.checkpoint.array_file import write_array
from sparsetrain.errors import CheckpointError
from sparsetrain.serving import manifest
from sparsetrain.serving.folders import new_folder
from sparsetrain.system.file_locks import is_disk_full
from sparsetrain.system.regular_files import read_regular_file, require_regular

PLAN = "delta.json"
_CHUNK = 1 << 22  # bytes compared or written at once
_MOST_PLAN = 1 << 26  # bytes
_Copies = Sequence[tuple[int, int, int]]


class _Rows(NamedTuple):
    """Rows in a file: their number, the bytes of each, and the file's header."""

    size: int
    width: int
    head: bytes = b""

    def mapped(self, path: Path) -> np.ndarray:
        """Return the rows, (size, width) uint8."""
        return np.memmap(
            require_regular(path), np.uint8, "r", len(self.head), (self.size, self.width)
        )

    def chunks(self, count: int) -> Iterator[slice]:
        """Yield parts of the first `count` rows."""
        step = max(1, _CHUNK // max(1, self.width))
        yield from (slice(at, min(at + step, count)) for at in range(0, count, step))


class _Export(NamedTuple):
    """A folder and its manifest."""

    folder: Path
    checksum: str  # checksum of the manifest
    files: dict[str, tuple[int, str, str]]  # size, CRC-32 and Adler-32
    matrices: dict[str, _Rows]  # by file
    tables: dict[str, tuple[int, int]]  # by column: first row in the storage, number of rows

    @property
    def is_apart(self) -> bool:
        """Whether each table has its own file."""
        return not any(first for first, _ in self.tables.values())

    @property
    def rows(self) -> int:
        """Number of rows of the storage that holds the tables."""
        return max(first + rows for first, rows in self.tables.values())


def _read(folder: Path) -> _Export:
    records, checksum = manifest.read(folder)
    params = {r[1]: [*map(int, r[3:])] for r in records if r[0] == "param"}
    return _Export(
        folder,
        checksum,
        {manifest.plain_name(r[1]): (int(r[2]), r[3], r[4]) for r in records if r[0] == "file"},
        {file: _Rows(s[0], s[1] * bits // 8) for file, (bits, *s) in params.items() if len(s) == 2},
        {r[1]: (int(r[5]), int(r[6])) for r in records if r[0] == "category"},
    )


def _with_items(export: _Export) -> _Export:
    """Return the export with its item vectors, if it has any, added to its matrices."""
    path = export.folder / manifest.ITEMS
    if manifest.ITEMS not in export.files:
        return export
    try:
        items: Any = np.load(require_regular(path), mmap_mode="r", allow_pickle=False)
        with open(path, "rb") as file:
            rows = _Rows(len(items), items[:1].nbytes, file.read(items.offset))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    return export._replace(matrices={**export.matrices, manifest.ITEMS: rows})


def write_delta(older: str | Path, newer: str | Path, out: str | Path) -> None:
    """Write the delta from the exported folder `older` to `newer` into a new folder, for `apply`.

    Raises
    ------
    CheckpointError
        If `older` or `newer` is not an export.
    ConfigError
        If `out` exists.
    """
    old, new = (_with_items(_read(Path(folder))) for folder in (older, newer))
    plan: dict[str, Any] = {"since": old.checksum, "rows": {}, "items": None}
    with new_folder(Path(out)) as folder:
        shutil.copyfile(new.folder / manifest.FILE, folder / manifest.FILE)
        for name, about in new.files.items():
            if about == old.files.get(name):
                continue
            if _are_tables(old, new, name):
                plan["rows"][name] = _copies(old, new, name)
                _write_rows(folder, name, old, new)
                if name == manifest.ITEMS:
                    size, width, head = new.matrices[name]
                    plan["items"] = size, width, head.decode("latin-1")
            else:
                shutil.copyfile(new.folder / name, folder / name)
        (folder / PLAN).write_text(json.dumps(plan))


def _are_tables(old: _Export, new: _Export, name: str) -> bool:
    """Return whether a file has table rows of the same width in both exports."""
    if not (name in old.matrices and name in new.matrices):
        return False
    before, after = old.matrices[name], new.matrices[name]
    alike = (old.is_apart and new.is_apart) or (before.size, after.size) == (old.rows, new.rows)
    return before.width == after.width and alike


def _copies(old: _Export, new: _Export, name: str) -> _Copies:
    """Return ranges of common rows: first row in the new file, first row in the old file, count."""
    if old.is_apart and new.is_apart:
        return [(0, 0, min(old.matrices[name].size, new.matrices[name].size))]
    return [
        (first, old.tables[column][0], min(rows, old.tables[column][1]))
        for column, (first, rows) in new.tables.items()
        if column in old.tables
    ]


def _write_rows(folder: Path, name: str, old: _Export, new: _Export) -> None:
    rows = new.matrices[name]
    before, after = old.matrices[name].mapped(old.folder / name), rows.mapped(new.folder / name)
    changed = np.ones(len(after), bool)
    for first, source, count in _copies(old, new, name):
        for part in rows.chunks(count):
            same = after[first:][part] == before[source:][part]
            changed[first:][part] = ~same.all(axis=1)
    found = np.flatnonzero(changed)
    for kind, array in (("rows", found), ("values", after[found])):
        with open(folder / f"{name}.{kind}.npy", "wb") as file:
            write_array(file, array)


def apply(folder: str | Path, delta: str | Path, out: str | Path) -> None:
    """Make a newer export from an older one and a delta.

    To update a server without a stop, let it serve a symbolic link: move the link, send SIGHUP.

    Parameters
    ----------
    folder, delta : path
    out : path
        A new folder.

    Raises
    ------
    CheckpointError
        If the delta is for a different export, or a folder is damaged; nothing is written.
    ConfigError
        If `out` exists.
    """
    old, new = _read(Path(folder)), _read(Path(delta))
    try:
        plan = json.loads(read_regular_file(new.folder / PLAN, _MOST_PLAN))
        since, of_rows = plan["since"], dict(plan["rows"])
        if plan.get("items"):
            size, width, head = plan["items"]
            new.matrices[manifest.ITEMS] = _Rows(size, width, head.encode("latin-1"))
            old = _with_items(old)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(
            f"{delta}: it is not a delta: pass a folder that export --since wrote"
        ) from None
    if since != old.checksum:
        raise CheckpointError(
            f"{delta}: it is not a delta from {folder}: apply deltas in the order of their exports"
        )
    with new_folder(Path(out)) as made:
        for name, about in new.files.items():
            try:
                _make(made / name, name, old, new, of_rows)
            except (OSError, ValueError, IndexError, KeyError, TypeError) as error:
                if isinstance(error, OSError) and is_disk_full(error):
                    raise
                raise CheckpointError(f"{delta}: {name} cannot be made: {error}") from None
            if manifest.file_record(made / name)[2:] != about:
                raise CheckpointError(f"{delta}: {name} is damaged, here or in {folder}")
        shutil.copyfile(new.folder / manifest.FILE, made / manifest.FILE)


def _make(path: Path, name: str, old: _Export, new: _Export, of_rows: Mapping[str, Any]) -> None:
    if name in of_rows:
        changed, values = (
            np.load(require_regular(file), mmap_mode="r", allow_pickle=False)
            for file in (new.folder / f"{name}.rows.npy", new.folder / f"{name}.values.npy")
        )
        before = old.matrices[name].mapped(old.folder / name)
        _write_table(path, new.matrices[name], before, of_rows[name], changed, values)
    elif (new.folder / name).exists():
        shutil.copyfile(require_regular(new.folder / name), path)
    else:
        source = require_regular(old.folder / name)
        try:
            os.link(source, path)
        except OSError:  # a different file system
            shutil.copyfile(source, path)


def _write_table(
    path: Path,
    rows: _Rows,
    before: np.ndarray,
    copies: _Copies,
    changed: np.ndarray,
    values: np.ndarray,
) -> None:
    """Write rows in order, not to mapped memory, so that a full disk is an error, not a crash."""
    with open(path, "wb") as file:
        file.write(rows.head)
        for part in rows.chunks(rows.size):
            made = np.zeros((part.stop - part.start, rows.width), np.uint8)
            for first, source, count in copies:
                begin, end = max(first, part.start), min(first + count, part.stop)
                if begin < end:
                    moved = slice(begin - first + source, end - first + source)
                    made[begin - part.start : end - part.start] = before[moved]
            here = slice(*np.searchsorted(changed, (part.start, part.stop)))
            made[changed[here] - part.start] = values[here]
            file.write(made.data)
