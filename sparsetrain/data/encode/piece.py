# SPDX-License-Identifier: Apache-2.0
"""A record batch to encoded rows, by what was learnt: the loader's inner step.

Every id is below its table's rows and every number finite, so what is made here is not checked
again. Cost: one pass over each column; nothing is done row by row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from sparsetrain.data.encode.bags import Bags, read_bags, with_lists, with_weights
from sparsetrain.data.encode.plain_ids import PlainIds
from sparsetrain.data.encode.rows import Rows
from sparsetrain.data.encode.rules import CategoryRule, Rules
from sparsetrain.data.schema.columns import Columns
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.of_rows import read_labels, read_row_weights
from sparsetrain.data.values.place import Place


def encode_piece(rules: Rules, piece: pa.RecordBatch, columns: Columns, place: Place) -> Rows:
    """Encode a record batch whose columns are known.

    Raises
    ------
    DataError
        If a value is bad; it names column and row.
    """
    dense = rules.dense_rule(columns.encoded).matrix(
        [piece.column(name) for name in columns.dense], columns.dense, place, piece.num_rows
    )
    label, factors = columns.label, columns.row_weights
    labels = read_labels(piece.column(label), place.of(label)) if label else None
    weights = read_row_weights(piece.column(factors), place.of(factors)) if factors else None
    read = _read_bags if rules.has_bags else _read_ids
    return Rows(dense, read(rules, piece, columns, place), labels, weights)


def _category_rules(rules: Rules, columns: Columns) -> Iterator[tuple[int, str, CategoryRule]]:
    """Yield number, name and rule of each category column; converted data has plain ids."""
    for index, (name, rule) in enumerate(zip(columns.categories, rules.categories, strict=True)):
        yield index, name, (PlainIds(rule.rows) if columns.encoded else rule)


def _read_ids(rules: Rules, piece: pa.RecordBatch, columns: Columns, place: Place) -> Array:
    ids = np.empty((len(columns.categories), piece.num_rows), dtype=np.int32)
    for index, name, rule in _category_rules(rules, columns):
        ids[index] = rule.encode(piece.column(name), place.of(name))
    return ids.T


def _read_bags(
    rules: Rules, piece: pa.RecordBatch, columns: Columns, place: Place
) -> tuple[Bags, ...]:
    bags = []
    for index, name, rule in _category_rules(rules, columns):
        factors = columns.weights_of(index)
        array = piece.column(name)
        read = read_bags(
            with_lists(array) if rules.bags[index] else array,
            None if factors is None else with_lists(piece.column(factors)),
            rules.schema.rule(rules.columns[index]),
            rule.encode,
            place.of(name),
        )
        bags.append(with_weights(read) if rules.has_weights else read)
    return tuple(bags)
