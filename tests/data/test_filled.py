# SPDX-License-Identifier: Apache-2.0
"""Nulls become zeros, whatever lies under them and wherever an array begins."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from sparsetrain.data.values.arrow_types import fill_nulls

TYPES = [*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
TYPES += ["halffloat", "float", "double"]


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("first", [0, 1, 7, 8, 13])
def test_nulls_are_zeros_and_are_known(type_, first):
    expected = [0 if n % 3 == 1 else n for n in range(40)]
    values = [None if n % 3 == 1 else n for n in range(40)]
    if type_ == "halffloat":
        values = [None if value is None else np.float16(value) for value in values]
    found, missing = fill_nulls(pa.array(values, pa.type_for_alias(type_))[first:])
    assert found.dtype == pa.type_for_alias(type_).to_pandas_dtype()
    assert found.tolist() == expected[first:]
    assert missing.tolist() == [value is None for value in values[first:]]


@pytest.mark.parametrize("under", [np.nan, np.inf, -7.5])
def test_what_lies_under_a_null_does_not_matter(under):
    array = pa.array(np.array([1.0, under, 3.0]), mask=np.array([False, True, False]))
    assert np.frombuffer(array.buffers()[1])[1] == under or np.isnan(under)
    assert fill_nulls(array)[0].tolist() == [1, 0, 3]


def test_without_nulls_nothing_is_copied():
    array = pa.array(np.arange(5.0))
    values, missing = fill_nulls(array)
    assert np.shares_memory(values, array.to_numpy()) and not missing.any()


@pytest.mark.parametrize(
    "array, expected",
    [
        (pa.array([True, None, False]), [1, 0, 0]),
        (pa.array([True, False]), [1, 0]),
        (pa.nulls(2), [0, 0]),
        (pa.array([], pa.int32()), []),
        (pa.nulls(3, pa.int64()).slice(3), []),
    ],
    ids=str,
)
def test_booleans_and_columns_of_nothing_are_read(array, expected):
    values, missing = fill_nulls(array)
    assert values.tolist() == expected
    assert missing.tolist() == array.is_null().to_pylist()


@pytest.mark.parametrize("type_", [pa.decimal128(12, 2), pa.decimal256(40, 3)], ids=str)
def test_decimals_are_numbers(type_):
    array = pa.array([Decimal("1.5"), None, Decimal(-3)], type_)
    values, missing = fill_nulls(array)
    assert (values.tolist(), missing.tolist()) == ([1.5, 0, -3], [False, True, False])
