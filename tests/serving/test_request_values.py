# SPDX-License-Identifier: Apache-2.0
"""Columns of an Arrow request: the values that an encoder would read."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from sparsetrain.errors import DataError
from sparsetrain.serving.column import INT64, TEXT
from sparsetrain.serving.limits import Most
from sparsetrain.serving.requests import from_arrow


def column_of(array):
    sink = pa.BufferOutputStream()
    table = pa.table({"c": array})
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return from_arrow(sink.getvalue().to_pybytes(), ["c"], Most(100, 100, 1 << 20))["c"]


def test_decimals_that_are_whole_numbers_keep_all_digits():
    column = column_of(pa.array([Decimal(2**53 + 1), Decimal(-(2**63)), None]))
    assert column.kind == INT64 and column.values.tolist() == [2**53 + 1, -(2**63), 0]
    assert column.missing.tolist() == [0, 0, 1]


def test_times_are_their_whole_seconds_and_do_not_wrap():
    late = 253402300799_999_999  # of the year 9999: a float rounds it up to the next second
    assert column_of(pa.array([late, -1], pa.timestamp("us"))).values.tolist() == [
        253402300799,
        -1,
    ]
    with pytest.raises(DataError, match=r"^request: row 1, column c: the time .* beyond the year"):
        column_of(pa.array([0, 2**63 - 1], pa.timestamp("s")))


def test_views_of_text_are_text():
    views = pa.array(["a", "bc"], pa.string_view())
    for array in (views, pa.DictionaryArray.from_arrays(pa.array([0, 1]), views)):
        column = column_of(array)
        assert column.kind == TEXT and bytes(np.asarray(column.values)[:3]) == b"abc"
