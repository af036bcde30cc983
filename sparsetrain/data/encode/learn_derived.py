# SPDX-License-Identifier: Apache-2.0
"""Options of derived columns, such as boundaries, learnt from a sample of the training data.

Once learnt, they are ordinary options of the encoder's schema. Up to `MOST` numbers of a column are
all used. From a longer column, a golden-ratio sequence over positions selects a sample that is even
over the rows and out of step with any period in the data. So the result depends only on the numbers
and their order, not on how rows are split into pieces. Memory: 16 bytes per sampled number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from sparsetrain.data.read.derived_columns import check_sources, learnt_numbers, stored_names
from sparsetrain.data.read.source import Part
from sparsetrain.data.schema.derived import Derived
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.location import Location

MOST = 1 << 17  # largest sample; the size of a bucket of 1/32 of the rows is off by 1 in 60
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio

Numbers = Mapping[str, Array]  # the numbers of one piece, by derived column


def learn_derived(schema: Schema, parts: Sequence[Part]) -> Schema:
    """Return a schema with its derived columns learnt from the rows of `parts`.

    Raises
    ------
    DataError
        If a number cannot be read, a column has no numbers, or the rows can be read only once.
    """
    sampling = Sampling(schema.to_learn)
    for numbers in _read(schema.to_learn, parts):
        sampling.add(numbers)
    return sampling.learnt(schema, parts[0].location.name)


def _read(rules: Mapping[str, Derived], parts: Sequence[Part]) -> Iterator[Numbers]:
    for part in parts:
        for name, rule in rules.items():
            check_sources(part, name, rule)
            if part.is_stream:
                raise part.location.error(
                    f"{rule.of.key} are learnt before all else, and these rows can be read only "
                    f"once; give a table or files, or {rule.of.learns} in place of {rule.of.key}"
                )
        for location, piece in part.pieces(stored_names([*rules], rules, part.schema.names)):
            yield numbers_in(piece, rules, location)


def numbers_in(piece: pa.RecordBatch, rules: Mapping[str, Derived], location: Location) -> Numbers:
    """Return, for each rule, the numbers of a piece that it learns from."""
    return {name: learnt_numbers(rule, piece, location) for name, rule in rules.items()}


class Sampling:
    """Samples of the numbers that rules learn from; `add` takes pieces in the order of the rows."""

    def __init__(self, rules: Mapping[str, Derived]) -> None:
        self.rules = rules
        self._samples = {name: _Sample() for name in rules}

    @property
    def sources(self) -> list[str]:
        """The columns to read."""
        return list(dict.fromkeys(rule.source for rule in self.rules.values()))

    def add(self, numbers: Numbers) -> None:
        """Add the numbers of a piece, as `numbers_in` returns them."""
        for name, values in numbers.items():
            self._samples[name].add(values)

    def learnt(self, schema: Schema, where: str) -> Schema:
        """Return a schema with rules learnt from the samples; messages call the data `where`."""
        learnt = dict(schema.derived)
        for name, rule in self.rules.items():
            values = self._samples[name].values()
            if not len(values) and rule.source not in schema.bins:
                raise Location(where, column=rule.source).error(
                    f"no number in it to learn {rule.of.key} of {name}; give {rule.of.learns}, or "
                    "leave it out"
                )
            learnt[name] = rule.learn(values)
        return replace(schema, derived=learnt)


class _Sample:
    """Numbers sampled by a hash of their position; if there are too many, the sample is halved."""

    def __init__(self) -> None:
        self._pieces: list[tuple[Array, Array]] = []
        self._seen = self._kept = 0
        self._limit = np.uint64(2**64 - 1)

    def add(self, values: Array) -> None:
        """Add further numbers (n,) of the column."""
        places = np.arange(self._seen, self._seen + len(values), dtype=np.uint64) * _GOLDEN
        self._seen += len(values)
        self._take(places, values)
        while self._kept > MOST:
            self._limit >>= np.uint64(1)
            places, values = (np.concatenate(part) for part in zip(*self._pieces, strict=True))
            self._pieces, self._kept = [], 0
            self._take(places, values)

    def _take(self, places: Array, values: Array) -> None:
        below = places <= self._limit
        self._pieces.append((places[below], values[below]))
        self._kept += int(np.count_nonzero(below))

    def values(self) -> Array:
        """Return the sampled numbers."""
        return np.concatenate([np.zeros(0), *(values for _, values in self._pieces)])
