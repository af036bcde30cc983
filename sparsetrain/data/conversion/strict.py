# SPDX-License-Identifier: Apache-2.0
"""One column of a piece, read as strictly as training will read it, and what is counted of it.

Whatever these accept, encoding accepts; what they refuse is a bad row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..encode.bags import read_bags
from ..encode.counts import keys_of
from ..encode.dense import EncodedDense
from ..encode.encoder import Encoder
from ..encode.keys import Keys
from ..encode.plain_ids import PlainIds, plain_ids
from ..schema.columns import Columns
from ..values.arrays import Array
from ..values.labels import read_labels
from ..values.numeric import read_numbers
from ..values.place import Place
from ..values.row_weights import read_row_weights


class DenseSeen(NamedTuple):
    """How many values of a dense column are missing and how many are below 0."""

    missing: int
    negative: int


class CategorySeen(NamedTuple):
    """The keys of a category column and how often each occurs, or its largest encoded id."""

    keys: Keys | None
    times: Array | None
    largest: int


def read_label(columns: Columns, piece: pa.RecordBatch, place: Place) -> int:
    """Return how many labels are 1."""
    assert columns.label is not None
    return int(read_labels(piece.column(columns.label), place).sum())


def read_weights(columns: Columns, piece: pa.RecordBatch, place: Place) -> None:
    """Read the weights of rows."""
    assert columns.row_weights is not None
    read_row_weights(piece.column(columns.row_weights), place)


def read_dense(
    columns: Columns, encoder: Encoder, index: int, piece: pa.RecordBatch, place: Place
) -> DenseSeen:
    """Read the dense column at `index`."""
    name = columns.dense[index]
    if columns.encoded:
        values = EncodedDense().matrix([piece.column(name)], [name], place, piece.num_rows)
        return DenseSeen(0, int((values < 0).sum()))
    values, missing = read_numbers(piece.column(name), encoder.settings.nan_rule, place)
    return DenseSeen(int(missing.sum()), int((values < 0).sum()))


def read_category(
    columns: Columns, encoder: Encoder, index: int, piece: pa.RecordBatch, place: Place
) -> CategorySeen:
    """Read the category column at `index`, and the weights of its ids."""
    seen: list[CategorySeen] = []

    def read(array: Any, here: Place) -> Array:
        seen.append(_read_values(columns, encoder, index, array, here))
        return np.zeros(len(array), dtype=np.int32)

    array = piece.column(columns.categories[index])
    factors = columns.weights_of(index)
    if not (columns.bags and columns.bags[index]):
        return _read_values(columns, encoder, index, array, place)
    weights = None if factors is None else piece.column(factors)
    read_bags(array, weights, encoder.schema.rule(encoder.columns[index]), read, place)
    return seen[0]


def _read_values(
    columns: Columns, encoder: Encoder, index: int, array: Any, place: Place
) -> CategorySeen:
    if not columns.encoded:
        return CategorySeen(*keys_of(array, encoder.settings.nan_rule, place), -1)
    known = encoder.categories
    ids = PlainIds(encoder.rows[index]).encode(array, place) if known else plain_ids(array, place)
    return CategorySeen(None, None, int(ids.max(initial=-1)))
