# SPDX-License-Identifier: Apache-2.0
"""`OnDisk`: tables larger than memory, with rows and slots in a file and the hot ones in memory.

Instead of the table, a program gets a cache (C rows, with slots), and instead of row numbers,
places in this cache. Before it runs, the rows of its batch are read into the cache. An update does
not depend on a row's place, so the bits are the same as for a table in memory.

A disk reads and writes pages of about 60 rows. So evicted rows are not written in place but
appended to the log of their range of rows. A full log is merged into its range by sequential reads
and writes.

The file has no name and belongs to one process. A checkpoint is a full copy of the table, so a kill
loses only the steps after it. Cost: a disk read for each row that is not in the cache; in memory, 4
bytes per row of the table, and 14 bytes per place of the cache besides its row.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.errors import ConfigError, ResourceError
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.compiling import host_kernel
from sparsetrain.runtime.tensors import address_of
from sparsetrain.system.argument_checks import require_int, require_path
from sparsetrain.tables.cache_kernels import FULL, MISSES, NUM_NOTES, USED, find_kernel
from sparsetrain.tables.record_file import RecordFile
from sparsetrain.tables.table import Table

_MOST_PLACES = 2**28
_RANGES = 256  # largest number of ranges; each has a log
_LEAST = 1 << 14  # rows of a range
_SPARE = 4  # rows of a range for each record of its log
_BLOCK = 1 << 20  # rows per pass when the index is filled
_MOST_SLOTS = 2**31 - 1
_find = host_kernel("places of rows", find_kernel)


@dataclass(frozen=True)
class OnDisk:
    """Location of tables larger than memory, and the size of their cache.

    Parameters
    ----------
    folder : path
        On a local disk, preferably NVMe; created if missing. It needs room for all rows and slots,
        which is free again when the process ends, however it ends.
    cache_rows : int
        C, the rows of each storage that are in memory: at least the unique rows of a batch,
        including batches of `evaluate` and `predict`, which have 4,096 examples by default.

    Examples
    --------
    >>> place = st.tables.OnDisk("/nvme/tables", cache_rows=2_000_000)  # doctest: +SKIP
    >>> trainer = st.Trainer(model, st.optim.adagrad(0.02), tables=place)  # doctest: +SKIP
    """

    folder: str | os.PathLike[str]
    cache_rows: int

    def __post_init__(self) -> None:
        require_path("OnDisk: folder", self.folder)
        require_int("OnDisk: cache_rows", self.cache_rows, most=_MOST_PLACES)


class _Map:
    """Positions of rows in the cache and in the file, see `find_kernel`."""

    def __init__(self, rows: int, places: int) -> None:
        dtypes = dict.fromkeys(("owner", "home", "used_in"), "int32") | {
            "heat": "int8",
            "dirty": "int8",
        }
        self.tensors = [
            runtime.empty((rows,), "int32", "the index of a table on disk"),
            *(runtime.empty((places,), dtype) for dtype in dtypes.values()),
            runtime.empty((NUM_NOTES,), "int32"),
        ]
        views = [runtime.as_numpy(tensor, writable=True) for tensor in self.tensors]
        self.index, self.owner, self.home, self.used_in, _, self.dirty, self.notes = views
        self.clear()

    def clear(self) -> None:
        """Start with an empty cache and records in order."""
        for begin in range(0, len(self.index), _BLOCK):
            part = self.index[begin : begin + _BLOCK]
            part[...] = ~np.arange(begin, begin + len(part), dtype=np.int32)
        for array in (self.used_in, self.dirty, self.notes):
            array[...] = 0


class DiskTable(Table):
    """A table with its rows in a file; `weight` (C, D) and `slots` are a cache of these rows.

    Parameters
    ----------
    table : Table
        The cache, with the rules and parts of all rows.
    folder : Path
        Folder of the file.
    """

    def __init__(self, table: Table, folder: Path) -> None:
        super().__init__(
            table.name, table.weight, table.slots, table.ranges, table.named, table._count
        )
        tensors = self._tensors()
        ends = np.cumsum([int(t.shape[1]) if len(t.shape) > 1 else 1 for t in tensors]).tolist()
        self._columns = [slice(*span) for span in zip([0, *ends], ends, strict=False)]
        self._width = ends[-1] + 1  # the last number of a record is its row
        self._rows = max(rows.stop for rows in self.named.values())
        self._range = max(_LEAST, -(-self._rows // _RANGES))
        self._room = self._range // _SPARE  # records of a log
        self._used = np.zeros(
            -(-self._rows // self._range), np.int64
        )  # number of records in each range's log
        slots = self._rows + len(self._used) * self._room
        if slots > _MOST_SLOTS:
            raise ConfigError(f"tables on disk: {self.name!r} has {self._rows:,} rows, too many")
        self._file = RecordFile(folder, self.name, slots, self._width)
        self._map = _Map(self._rows, int(self.weight.shape[0]))
        self._missing = self._evicted = runtime.empty(
            (0,), "int32"
        )  # buffer for the rows of a batch
        self.reads = 0  # number of rows that were read from the file
        self._batch = 0  # number of the last batch
        self._located = np.empty(0, np.int32)  # the places of the last batch's rows

    @property
    def ranges(self) -> tuple[Any, ...]:
        """The rule of all rows."""
        return self._ranges

    @ranges.setter
    def ranges(self, ranges: Sequence[Any]) -> None:
        for part in ranges:
            if part.rule.has_last or part.rule.dense:
                raise ConfigError(
                    f"tables on disk: {part.names[0]!r} has mode {part.rule.mode!r}, which changes "
                    "rows that no batch looks up: take mode 'lazy'"
                )
        if len(ranges) > 1:
            raise ConfigError(
                f"tables on disk: {ranges[0].names[-1]!r} and {ranges[1].names[0]!r} share one "
                "storage, but their groups have different options: give them the same"
            )
        self._ranges = tuple(ranges)

    @property
    def lags(self) -> bool:
        """Whether rows must be brought in before they are read: always True here."""
        return True

    @property
    def weight_bytes(self) -> int:
        """Bytes of all rows."""
        return 4 * self._rows * self._columns[0].stop

    @property
    def nbytes(self) -> int:
        """Bytes of all rows and slots."""
        return 4 * self._rows * self._columns[-1].stop

    def catch_up(self, ids: Any) -> int:
        """Bring rows into the cache, and replace the row numbers by places; return 0.

        Parameters
        ----------
        ids : int32 or int64 array or Tensor
            Rows of the table, contiguous; overwritten by places.

        Raises
        ------
        ResourceError
            If the cache is too small for them, or the disk fails.
        """
        self._file.require_whole()
        view = runtime.as_numpy(ids, writable=True) if isinstance(ids, runtime.NDArray) else ids
        self._located = view.reshape(-1)
        count = self._located.size
        if count > self._missing.shape[0]:
            self._missing, self._evicted = (runtime.empty((count,), "int32") for _ in range(2))
        self._batch += 1
        found = self._missing, self._evicted
        _find(view.dtype.name)(address_of(view), count, *self._map.tensors, *found, self._batch)
        misses = self._map.notes[MISSES]
        self._exchange(*(runtime.as_numpy(each)[:misses] for each in found))
        if self._map.notes[FULL]:
            raise ResourceError(
                f"tables on disk: a batch reads more rows of {self.name!r} than the "
                f"{len(self._map.owner):,} of the cache: raise cache_rows, or take smaller batches"
            )
        return 0

    def flush(self, missed: int = 0) -> int:
        """Write all changes and put records in order; rows stay in the cache. Return 0."""
        self._file.require_whole()
        places = np.flatnonzero(self._map.dirty[: self._map.notes[USED]])
        rows = self._map.owner[places]
        order = np.argsort(rows)
        places, rows = places[order], rows[order]
        edges = np.searchsorted(rows, self._range * np.arange(len(self._used) + 1))
        for number, (begin, end) in enumerate(pairwise(edges)):
            if self._used[number] or begin < end:
                self._merge(number, self._records(rows[begin:end], places[begin:end]))
        self._map.home[places], self._map.dirty[places] = rows, 0
        return 0

    def current(self) -> NDArray:
        """Return a copy of all rows, in memory."""
        return runtime.as_tensor(self.stored()[0])

    def stored(self, writing: bool = False) -> tuple[Any, Mapping[str, Any]]:
        """As `Table.stored`; the arrays are mapped from the file."""
        self.flush()
        if writing:
            self._map.clear()
        records = self._file.array[: self._rows]
        weight, *slots = (
            records[:, columns if len(tensor.shape) > 1 else columns.start]
            for tensor, columns in zip(self._tensors(), self._columns, strict=True)
        )
        return weight, dict(zip(self.slots, slots, strict=True))

    def note_step(
        self, numbers: Mapping[Any, tuple[float, ...]], keys: tuple[int, ...], dense: bool = False
    ) -> None:
        """Mark the last batch's rows as changed."""
        self._map.dirty[self._located] = 1

    def fill_(self, part: str, blocks: Iterable[tuple[int, np.ndarray]]) -> None:
        """Write the rows of one of the storage's tables, with the slots of untouched rows.

        Parameters
        ----------
        part : str
            Name of the table.
        blocks : iterable of (int, array (N, D) float32)
            The number of a first row, and the rows from there on.
        """
        formula = self.ranges[0].rule.spec.formula
        initial = {slot.name: slot.initial for slot in formula.slots}
        for first, rows in blocks:
            records = np.empty((len(rows), self._width), np.float32)
            values = [rows, *(initial[name] for name in self.slots)]
            for columns, value in zip(self._columns, values, strict=True):
                records[:, columns] = value
            self._file.write_run(self.named[part].start + first, records)

    def _exchange(self, missing: np.ndarray, evicted: np.ndarray) -> None:
        """Write the evicted rows, and read the rows that replace them."""
        order = np.argsort(evicted)[np.count_nonzero(evicted < 0) :]
        for begin in range(0, order.size, self._room):  # as many as the largest log holds
            part = order[begin : begin + self._room]
            self._log(evicted[part], missing[part])
        slots = self._map.home[missing]
        order = np.argsort(slots)
        self.reads += order.size
        if order.size:
            places, records = missing[order], self._file.read(slots[order])
            for tensor, columns in zip(self._tensors(), self._columns, strict=True):
                view = runtime.as_numpy(tensor, writable=True)
                view[places] = records[:, columns if view.ndim > 1 else columns.start]

    def _log(self, rows: np.ndarray, places: np.ndarray) -> None:
        """Write evicted rows, in ascending order, to the logs of their ranges."""
        records = self._records(rows, places)
        numbers, begins, counts = np.unique(
            rows // self._range, return_index=True, return_counts=True
        )
        for n in np.flatnonzero(self._used[numbers] + counts > self._room):
            self._merge(numbers[n])
        first = self._rows + numbers * self._room + self._used[numbers]
        for slot, begin, count in zip(
            *map(np.ndarray.tolist, (first, begins, counts)), strict=True
        ):
            self._file.write_run(slot, records[begin : begin + count])
        self._used[numbers] += counts
        self._move(
            rows, (np.arange(len(rows)) + np.repeat(first - begins, counts)).astype(np.int32)
        )

    def _merge(self, number: int, newest: np.ndarray | None = None) -> None:
        """Merge the log of a range, and newer records, into the range."""
        first, log = number * self._range, self._rows + number * self._room
        records = self._file.read_run(first, min(self._range, self._rows - first))
        logged = self._file.read_run(log, self._used[number])
        rows = _rows_of(logged)
        slots = np.arange(log, log + len(rows), dtype=np.int32)
        valid = self._slots_of(rows) == slots
        records[rows[valid] - first] = logged[valid]
        self._move(rows[valid], rows[valid])
        if newest is not None:
            records[_rows_of(newest) - first] = newest
        self._file.write_run(first, records)
        self._used[number] = 0

    def _slots_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the slots of these rows in the file."""
        at = self._map.index[rows]
        return np.where(at < 0, ~at, self._map.home[np.maximum(at, 0)])

    def _move(self, rows: np.ndarray, slots: np.ndarray) -> None:
        """Record the slots of rows in the file."""
        at = self._map.index[rows]
        out = at < 0
        self._map.index[rows[out]] = ~slots[out]
        self._map.home[at[~out]] = slots[~out]

    def _records(self, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return records (N, W) of the rows in these places of the cache."""
        records = np.empty((len(rows), self._width), np.float32)
        for tensor, columns in zip(self._tensors(), self._columns, strict=True):
            values = runtime.as_numpy(tensor)[places]
            records[:, columns] = values if values.ndim > 1 else values[:, None]
        records.view(np.int32)[:, -1] = rows
        return records

    def _tensors(self) -> list[NDArray]:
        return [self.weight, *self.slots.values()]


def _rows_of(records: np.ndarray) -> np.ndarray:
    """Return the row numbers (N,) int32 of records."""
    return records.view(np.int32)[:, -1]
