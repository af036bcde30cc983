# SPDX-License-Identifier: Apache-2.0
"""Few rows of plain Python values, as a request has them, encoded value by value.

The result has the bits that the columns would give. For one row this takes 2 us a column, where
arrays and their checks take 60. Whatever is not plain (lists, booleans, NumPy's numbers, NaN, what
would be an error) is left to the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparsetrain.data.batch import Batch
from sparsetrain.data.encode.rules import Rules
from sparsetrain.data.encode.vocabulary import Vocabulary
from sparsetrain.data.values.numeric import EXACT

_MOST = 16  # rows, from which on columns are as fast


def encode_few(rules: Rules, rows: Any) -> Batch | None:
    """Return the batch of few dicts, or of a dict of short lists; None where columns must tell."""
    if type(rows) is dict and all(type(values) is list for values in rows.values()):
        lists = rows.values()
        if len(set(map(len, lists))) == 1:
            rows = [dict(zip(rows, values, strict=True)) for values in zip(*lists, strict=True)]
    if not isinstance(rows, list) or not 0 < len(rows) <= _MOST:
        return None
    if rules.encoded or rules.has_bags or rules.schema.derived:
        return None
    if not all(type(row) is dict for row in rows):
        return None
    numbers = _numbers(rows, rules.dense_columns)
    ids = _ids(rows, rules.columns, rules.categories)
    if numbers is None or ids is None:
        return None
    dense = rules.raw_dense.plain_matrix(numbers, rules.dense_columns)
    return None if dense is None else Batch._trusted(dense, ids, None)


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any] | None:
    """Return the values of a column that some row has."""
    if len(rows) == 1:
        return [rows[0][name]] if name in rows[0] else None
    return [row.get(name) for row in rows] if any(name in row for row in rows) else None


def _numbers(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> np.ndarray | None:
    """Return (n, F) float64, NaN where a number is missing; None if something is not a number."""
    found = np.empty((len(names), len(rows)))
    for index, name in enumerate(names):
        values = _column(rows, name)
        if values is None or not all(map(_is_plain, values)):
            return None
        found[index] = [np.nan if value is None else value for value in values]
    return found.T


def _is_plain(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and -EXACT < value < EXACT)


def _ids(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], rules: Sequence[Any]
) -> np.ndarray | None:
    ids = np.empty((len(rows), len(names)), np.int64)
    for index, (name, rule) in enumerate(zip(names, rules, strict=True)):
        values = _column(rows, name)
        if values is None or not isinstance(rule, Vocabulary):
            return None
        if len(rows) > 1 and len({type(value) for value in values if value is not None}) > 1:
            return None
        found = [rule.find_value(value) for value in values]
        known = [id_ for id_ in found if id_ is not None]
        if len(known) < len(found):
            return None
        ids[:, index] = known
    return ids
