# SPDX-License-Identifier: Apache-2.0
"""Counts of chunks on disk, so that only one table's counts are in memory at a time.

The file holds concatenated plain arrays. Only this process knows their positions, so a later run
cannot use the file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from sparsetrain.data.columns.counts import Counted, ValueCounts
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_values import as_binary, texts_of
from sparsetrain.errors import DataError
from sparsetrain.parsing.identity import Texts
from sparsetrain.system.file_locks import name_write_errors


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
        """Add up the counts of all chunks."""
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
    """Return integers in half the width if they fit."""
    fit = array.dtype == np.int64 and (not len(array) or 0 <= array.min() <= array.max() < 2**32)
    return array.astype(np.uint32) if fit else array
