# SPDX-License-Identifier: Apache-2.0
"""Few rows of plain Python values, as a request has them, encoded value by value.

The result has the bits that the columns would give. For one row this takes 1 us a column, where
arrays and their checks take 60. Whatever is not plain (lists, booleans, NumPy's numbers, NaN, what
would be an error) is left to the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sparsetrain.data.batch import Batch
from sparsetrain.data.encode.rules import Rules
from sparsetrain.data.encode.vocabulary import Vocabulary
from sparsetrain.data.read.tables import is_pandas
from sparsetrain.data.values.numeric import EXACT

_MOST = 16  # rows, from which on columns are as fast
# Types of columns whose values Python holds as rows would give them, as Arrow and pandas name them.
_EXACT_TYPES = frozenset(
    ("int64", "double", "float64", "string", "large_string", "str", "object", "null")
)
_NUMBERS = _EXACT_TYPES | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


def encode_few(rules: Rules, data: Any) -> Batch | None:
    """Return the batch of few rows: dicts, a dict of lists, a frame, an Arrow table.

    None where columns must tell.
    """
    if rules.encoded or rules.has_bags or rules.schema.derived:
        return None
    rows = _as_rows(data, rules)
    if not rows or len(rows) > _MOST or not all(type(row) is dict for row in rows):
        return None
    if not set().union(*rows).issuperset((*rules.dense_columns, *rules.columns)):
        return None
    numbers = _numbers(rows, rules.dense_columns)
    ids = _ids(rows, rules.columns, rules.categories)
    if numbers is None or ids is None:
        return None
    dense = rules.raw_dense.plain_matrix(numbers, rules.dense_columns)
    return None if dense is None else Batch._trusted(dense, ids, None)


def _as_rows(data: Any, rules: Rules) -> list[Any] | None:
    if type(data) is list:
        return data
    if type(data) is dict:
        lists = data.values()
        if all(type(values) is list for values in lists) and len(set(map(len, lists))) == 1:
            return [dict(zip(data, values, strict=True)) for values in zip(*lists, strict=True)]
    elif isinstance(data, (pa.Table, pa.RecordBatch)) and data.num_rows <= _MOST:
        if _are_plain(data.schema.names, data.schema.types, rules):
            return data.to_pylist()
    elif is_pandas(data):
        names = data.columns.tolist()
        if len(data) <= _MOST and _are_plain(names, data.dtypes, rules):
            values = data.to_numpy(object).tolist()
            return [
                {
                    name: None if type(value) is float and np.isnan(value) else value
                    for name, value in zip(names, row, strict=True)
                }
                for row in values
            ]
    return None


def _are_plain(names: Sequence[Any], types: Iterable[Any], rules: Rules) -> bool:
    """Whether Python's values of the columns are those that a list of rows would have."""
    found = dict(zip(names, map(str, types), strict=True))
    return (
        len(found) == len(names)
        and _EXACT_TYPES.issuperset(found.get(name, "") for name in rules.columns)
        and _NUMBERS.issuperset(found.get(name, "") for name in rules.dense_columns)
    )


def _numbers(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> np.ndarray | None:
    """Return (n, F) float64, NaN where a number is missing; None if something is not a number."""
    values = [row.get(name) for row in rows for name in names]
    if not set(map(type, values)) <= {int, float, type(None)}:
        return None
    try:
        found = np.array(values, np.float64)  # None is NaN
    except OverflowError:
        return None
    exact = np.count_nonzero(np.abs(found) < EXACT)
    if exact + values.count(None) < len(values):  # NaN is among them, or what is too large
        return None
    return found.reshape(len(rows), len(names))


def _ids(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], rules: Sequence[Any]
) -> np.ndarray | None:
    if not all(isinstance(rule, Vocabulary) for rule in rules):
        return None
    if len(rows) > 1:  # else a column has one type
        for name in names:
            if len({type(row.get(name)) for row in rows} - {type(None)}) > 1:
                return None
    found = [
        rule.find_value(row.get(name))
        for row in rows
        for name, rule in zip(names, rules, strict=True)
    ]
    return None if None in found else np.array(found, np.int64).reshape(len(rows), len(names))
