# SPDX-License-Identifier: Apache-2.0
"""Rows of a request, encoded value by value, are what their columns would be."""

import tracemalloc
from contextlib import suppress
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsetrain.data import Encoder, Linear, Schema
from sparsetrain.data.encode.few_rows import encode_few
from sparsetrain.data.read.source import MARK
from sparsetrain.errors import DataError

SCHEMA = Schema("y", ("price", "degrees"), ("user", "site"), linear={"degrees": Linear(3, 0.7)})
SITES = ["68fd1e64", "00000012", "12345678", "a", "12", "-7", "true", "é", "99999999999999999999"]
DECIMALS = ["12345678", "305419896", "7", "b"]


def encoder(sites=SITES, users=(1, 2**40, -5, 2**63 - 1, 0x12345678), **options):
    rows = [
        {"y": i % 2, "price": i, "degrees": -i, "user": users[i % len(users)], "site": site}
        for i, site in enumerate(sites)
    ]
    return Encoder.fit(rows, schema=SCHEMA, min_count=1, **options)


ENCODERS = [encoder(), encoder(DECIMALS), encoder(missing_flags=True, dense_fill=2.5)]
numbers = st.none() | st.integers(-(2**52), 2**52) | st.floats(-1e30, 1e30)
users = st.sampled_from([1, 2**40, -5, 7, 2**63 - 1, None]) | st.floats(0, 9).map(round).map(float)
users |= st.sampled_from(["1", "-5", "12345678", "", "305419896"])
users |= st.sampled_from([-1, 2**63, 2**64 - 1, 2**64])
odd = ["", None, "1\n", "012", "True", "\ud800", "68fd1e6\udc00"]
sites = st.sampled_from([*SITES, *DECIMALS, *odd]) | st.text(max_size=3)
rows = st.fixed_dictionaries({"price": numbers, "degrees": numbers, "user": users, "site": sites})


@settings(max_examples=80, deadline=None)
@given(st.lists(rows, min_size=1, max_size=3), st.sampled_from(ENCODERS))
def test_values_and_columns_give_the_same_bits(found, fitted):
    few = encode_few(fitted, found)
    if few is None:
        return  # the columns say what is wrong, or what a mixture means
    batch = fitted.encode(found, require_label=False)
    np.testing.assert_array_equal(few.ids, batch.ids)
    assert few.dense.tobytes() == batch.dense.tobytes()
    assert few.dense.flags.c_contiguous and few.ids.dtype == batch.ids.dtype
    columns = encode_few(fitted, {name: [row[name] for row in found] for name in found[0]})
    assert columns is not None and columns.dense.tobytes() == few.dense.tobytes()
    np.testing.assert_array_equal(columns.ids, few.ids)


def tables(rows):
    for make in (pd.DataFrame, partial(pd.DataFrame, dtype=object), pa.Table.from_pylist):
        # Of several types, beyond 64 bits, half a surrogate pair.
        with suppress(pa.ArrowException, OverflowError, UnicodeError):
            yield make(rows)


@settings(max_examples=80, deadline=None)
@given(st.lists(rows, min_size=1, max_size=3), st.sampled_from(ENCODERS))
def test_frames_and_arrow_tables_give_the_same_bits(found, fitted):
    for table in tables(found):
        few = encode_few(fitted, table)
        if few is not None:
            batch = fitted.encode(table, require_label=False)
            np.testing.assert_array_equal(few.ids, batch.ids)
            assert few.dense.tobytes() == batch.dense.tobytes()


ROW = {"price": 1, "degrees": 2.5, "user": 7, "site": "a"}
LEFT = {
    "columns that lack some": {"price": [1]},
    "columns of several lengths": {name: [value] * len(name) for name, value in ROW.items()},
    "columns of arrays": {name: np.array([value]) for name, value in ROW.items()},
    "a boolean": [ROW | {"price": True}],
    "a number of NumPy's": [ROW | {"price": np.float32(1)}],
    "NaN": [ROW | {"price": np.nan}],
    "a large integer": [ROW | {"price": 2**60}],
    "a fraction as an id": [ROW | {"user": 1.5}],
    "a list": [ROW | {"user": [1]}],
    "a column that no row has": [{k: v for k, v in ROW.items() if k != "site"}],
    "text and numbers": [ROW, ROW | {"site": 5}],
    "half a surrogate pair": [ROW | {"site": "\ud800"}],
    "half a surrogate pair in a frame": pd.DataFrame([ROW | {"site": "\ud800"}], dtype=object),
    "integers that no type holds": [ROW | {"user": 2**63}, ROW | {"user": -1}],
    "such integers in a frame": pd.DataFrame(
        [ROW | {"user": 2**63}, ROW | {"user": -1}], dtype=object
    ),
    "text that is no UTF-8": pa.table(
        {n: pa.array([v]) for n, v in ROW.items()}
        | {
            "site": pa.StringArray.from_buffers(
                1, pa.py_buffer(np.int32([0, 1])), pa.py_buffer(b"\xff")
            )
        }
    ),
    "many rows": [ROW] * 17,
    "a frame of many rows": pd.DataFrame([ROW] * 17),
    "a frame of categories": pd.DataFrame([ROW]).astype({"site": "category"}),
    "a frame with NA": pd.DataFrame([ROW | {"user": pd.NA, "price": pd.NA}]),
    "a frame with a column twice": pd.DataFrame([[1, 2.5, 7, "a", 2]], columns=[*ROW, "price"]),
}


@pytest.mark.parametrize("given_rows", LEFT.values(), ids=LEFT.keys())
def test_what_is_not_plain_is_left_to_the_columns(given_rows):
    assert encode_few(ENCODERS[0], given_rows) is None


LATE = pa.array([2**40], pa.timestamp("s"))  # after the year 9999
PLAIN = {
    "a frame": pd.DataFrame([ROW | {"extra": [np.ones(2)]}]),
    "a frame that lacks values": pd.DataFrame(
        [ROW | {"site": None, "degrees": None, "price": np.nan}]
    ),
    "a frame of narrow numbers": pd.DataFrame([ROW]).astype({"price": "int16", "degrees": "uint8"}),
    "a table": pa.Table.from_pylist([ROW | {"site": None, "degrees": None}]),
    "a frame with another column that Python cannot hold": pd.DataFrame([ROW]).assign(
        when=pd.array(LATE, pd.ArrowDtype(LATE.type))
    ),
    "a table with another column that Python cannot hold": pa.Table.from_pylist(
        [ROW]
    ).append_column("when", LATE),
    "a frame of int32 ids": pd.DataFrame([ROW | {"user": -5}]).astype({"user": "int32"}),
    "a table of int32 ids": pa.table(
        {n: pa.array([v]) for n, v in ROW.items()} | {"user": pa.array([-5], pa.int32())}
    ),
    "a record batch": pa.RecordBatch.from_pylist([ROW]),
}


@pytest.mark.parametrize("table", PLAIN.values(), ids=PLAIN.keys())
def test_small_frames_and_tables_are_rows_too(table):
    few, batch = encode_few(ENCODERS[0], table), ENCODERS[0].encode(table, require_label=False)
    np.testing.assert_array_equal(few.ids, batch.ids)
    assert few.dense.tobytes() == batch.dense.tobytes()


def test_a_row_may_lack_what_another_has():
    few = encode_few(ENCODERS[0], [ROW, {"price": None}])
    assert few.ids[1].tolist() == [0, 0] and few.dense[1, 1] == 0


CRITEO = {"I1": 1, "I2": 2.5, "C1": 5, "C2": "a"}
RAW = Encoder.fit([CRITEO | {"label": 0}, CRITEO | {"label": 1, "C1": 7}], min_count=1)
MEANT_OTHERWISE = {
    "floats and integers": CRITEO | {"I1": 1.5, "C2": 6},
    "two names of dense columns": CRITEO | {"int_0": 1.0, "int_1": 2.5},
    "two names of categories": CRITEO | {"cat_0": 5, "cat_1": "a"},
}


@pytest.mark.parametrize("make", [list, pd.DataFrame, pa.Table.from_pylist])
@pytest.mark.parametrize("row", MEANT_OTHERWISE.values(), ids=MEANT_OTHERWISE.keys())
def test_rows_with_names_of_criteo_are_refused_as_columns_are(row, make):
    for count in (16, 17):
        given_rows = make([row] * count)
        assert encode_few(RAW, given_rows) is None
        with pytest.raises(DataError, match="already encoded|names of two kinds"):
            RAW.encode(given_rows, require_label=False)


@pytest.mark.parametrize("make", [list, pd.DataFrame, pa.Table.from_pylist])
def test_raw_rows_with_names_of_criteo_are_few_rows(make):
    given_rows = make([CRITEO | {"label": 1}] * 16)
    few, batch = encode_few(RAW, given_rows), RAW.encode(given_rows)
    np.testing.assert_array_equal(few.ids, batch.ids)
    assert few.dense.tobytes() == batch.dense.tobytes()


def test_converted_tables_are_left_to_the_columns():
    table = pa.Table.from_pylist([ROW]).replace_schema_metadata({MARK: b"another"})
    assert encode_few(ENCODERS[0], table) is None


def test_columns_are_counted_before_rows_are_made():
    values = [1] * 100_000
    tracemalloc.start()
    assert encode_few(ENCODERS[0], dict.fromkeys(ROW, values)) is None
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 100_000
