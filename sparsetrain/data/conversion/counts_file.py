# SPDX-License-Identifier: Apache-2.0
"""Counts of chunks kept on disk, so that those of one table are in memory at a time.

The file holds plain arrays one after another. Where they lie is known to this process alone: the
file is of no use to a later run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from sparsetrain.data.columns.value_counts import ValueCounts
from sparsetrain.data.values.arrays import Array
from sparsetrain.errors import DataError
from sparsetrain.system.file_locks import name_write_errors


class CountsFile:
    """A file of counts; `add` those of each chunk, on any thread, then read `total`."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, Lock()
        self._places: dict[str, list[Any]] = defaultdict(list)
        path.unlink(missing_ok=True)

    def add(self, chunk: Mapping[str, ValueCounts]) -> None:
        """Keep the counts of a chunk, by table."""
        kept = {table: [*map(_short, _arrays(counts))] for table, counts in chunk.items()}
        with (
            self._lock,
            name_write_errors(self._path, DataError),
            open(self._path, "ab") as file,
        ):
            for table, arrays in kept.items():
                place = (file.tell(), [(array.dtype, array.nbytes) for array in arrays])
                self._places[table].append((*place, chunk[table].hexadecimal))
                file.writelines(array.data for array in arrays)

    def total(self, table: str) -> ValueCounts:
        """Add up the counts of all chunks."""
        counts = ValueCounts()
        with open(self._path, "rb") as file:
            for first, kinds, hexadecimal in self._places[table]:
                file.seek(first)
                parts = (np.frombuffer(file.read(size), dtype) for dtype, size in kinds)
                letters = next(parts).tobytes()
                integers = [part.astype(np.int64) for part in parts]
                ends, text_times = integers[4:]
                texts = [letters[start:end] for start, end in pairwise(ends.tolist())]
                counts.add_counted(
                    (integers[0], integers[1]),
                    (integers[2], integers[3]),
                    (texts, text_times),
                    hexadecimal,
                )
        return counts


def _arrays(counts: ValueCounts) -> list[Array]:
    texts, times = counts.texts()
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    letters = np.frombuffer(b"".join(texts), dtype=np.uint8)
    return [letters, *counts.numbers(), *counts.eights(), ends, times]


def _short(array: Array) -> Array:
    """Return integers in half the bytes where they fit."""
    fit = array.dtype == np.int64 and (not len(array) or 0 <= array.min() <= array.max() < 2**32)
    return array.astype(np.uint32) if fit else array
