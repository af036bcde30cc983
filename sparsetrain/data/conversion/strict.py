# SPDX-License-Identifier: Apache-2.0
"""One column of a piece, read as strictly as training will read it, and what is counted of it.

Whatever these accept, encoding accepts; what they refuse is a bad row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparsetrain.data.encode.bags import read_bags
from sparsetrain.data.encode.counts import keys_of
from sparsetrain.data.encode.dense import EncodedDense
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.encode.keys import Keys
from sparsetrain.data.encode.plain_ids import PlainIds, plain_ids
from sparsetrain.data.schema.columns import Columns
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.numeric import read_numbers
from sparsetrain.data.values.of_rows import read_labels, read_row_weights
from sparsetrain.data.values.place import Place


class DenseSeen(NamedTuple):
    """How many values of a dense column are missing and how many are below 0."""

    missing: int
    negative: int


class CategorySeen(NamedTuple):
    """The keys of a category column and how often each occurs, or its largest encoded id."""

    keys: Keys | None
    times: Array | None
    largest: int


Read = Callable[[pa.RecordBatch, Place], Any]


class StrictReader(NamedTuple):
    """Reads pieces with these columns, for an encoder that may have learnt nothing yet."""

    columns: Columns
    encoder: Encoder

    def each(self) -> Iterator[tuple[str, Read]]:
        """Yield every column and what reads it."""
        if self.columns.label:
            yield self.columns.label, self.label
        if self.columns.row_weights:
            yield self.columns.row_weights, self.weights
        for index, name in enumerate(self.columns.dense):
            yield name, partial(self.dense, index)
        for index, name in enumerate(self.columns.categories):
            yield name, partial(self.category, index)

    def label(self, piece: pa.RecordBatch, place: Place) -> int:
        """Return how many labels are 1."""
        return int(read_labels(piece.column(self.columns.label), place).sum())

    def weights(self, piece: pa.RecordBatch, place: Place) -> None:
        """Read the weights of rows."""
        read_row_weights(piece.column(self.columns.row_weights), place)

    def dense(self, index: int, piece: pa.RecordBatch, place: Place) -> DenseSeen:
        """Read the dense column at `index`."""
        name = self.columns.dense[index]
        if self.columns.encoded:
            values = EncodedDense().matrix([piece.column(name)], [name], place, piece.num_rows)
            return DenseSeen(0, int((values < 0).sum()))
        nan = self.encoder.settings.nan_rule
        values, missing = read_numbers(piece.column(name), nan, place)
        return DenseSeen(int(missing.sum()), int((values < 0).sum()))

    def category(self, index: int, piece: pa.RecordBatch, place: Place) -> CategorySeen:
        """Read the category column at `index`, and the weights of its ids."""
        columns, seen = self.columns, list[CategorySeen]()
        array = piece.column(columns.categories[index])
        if not (columns.bags and columns.bags[index]):
            return self._values(index, array, place)

        def read(values: Any, here: Place) -> Array:
            seen.append(self._values(index, values, here))
            return np.zeros(len(values), dtype=np.int32)

        factors = columns.weights_of(index)
        weights = None if factors is None else piece.column(factors)
        rule = self.encoder.schema.rule(self.encoder.columns[index])
        read_bags(array, weights, rule, read, place)
        return seen[0]

    def _values(self, index: int, array: Any, place: Place) -> CategorySeen:
        if not self.columns.encoded:
            return CategorySeen(*keys_of(array, self.encoder.settings.nan_rule, place), -1)
        if self.encoder.categories:
            ids = PlainIds(self.encoder.rows[index]).encode(array, place)
        else:
            ids = plain_ids(array, place)
        return CategorySeen(None, None, int(ids.max(initial=-1)))
