# SPDX-License-Identifier: Apache-2.0
"""Rows of a request, encoded value by value, are what their columns would be."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsetrain.data import Encoder, Linear, Schema
from sparsetrain.data.encode.few_rows import encode_few

SCHEMA = Schema("y", ("price", "degrees"), ("user", "site"), linear={"degrees": Linear(3, 0.7)})
SITES = ["68fd1e64", "00000012", "12345678", "a", "12", "-7", "true", "é", "99999999999999999999"]
DECIMALS = ["12345678", "305419896", "7", "b"]


def encoder(sites=SITES, users=(1, 2**40, -5, 2**63 - 1, 0x12345678), **options):
    rows = [
        {"y": i % 2, "price": i, "degrees": -i, "user": users[i % len(users)], "site": site}
        for i, site in enumerate(sites)
    ]
    return Encoder.fit(rows, schema_file=SCHEMA, min_count=1, **options)


ENCODERS = [encoder(), encoder(DECIMALS), encoder(missing_flags=True, dense_fill=2.5)]
numbers = st.none() | st.integers(-(2**52), 2**52) | st.floats(-1e30, 1e30)
users = st.sampled_from([1, 2**40, -5, 7, 2**63 - 1, None]) | st.floats(0, 9).map(round).map(float)
users |= st.sampled_from(["1", "-5", "12345678", "", "305419896"])
sites = st.sampled_from([*SITES, *DECIMALS, "", None, "1\n", "012", "True"]) | st.text(max_size=3)
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
    yield pd.DataFrame(rows)
    try:
        yield pa.Table.from_pylist(rows)
    except (pa.ArrowException, OverflowError):  # of several types, or beyond 64 bits
        return


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
    "many rows": [ROW] * 17,
    "a frame of many rows": pd.DataFrame([ROW] * 17),
    "a frame of int32 ids": pd.DataFrame([ROW]).astype({"user": "int32"}),
    "a frame of categories": pd.DataFrame([ROW]).astype({"site": "category"}),
    "a frame with NA": pd.DataFrame([ROW | {"user": pd.NA, "price": pd.NA}]),
    "a frame with a column twice": pd.DataFrame([[1, 2.5, 7, "a", 2]], columns=[*ROW, "price"]),
    "a table of int32 ids": pa.table(
        {n: pa.array([v]) for n, v in ROW.items()} | {"user": pa.array([7], pa.int32())}
    ),
}


@pytest.mark.parametrize("given_rows", LEFT.values(), ids=LEFT.keys())
def test_what_is_not_plain_is_left_to_the_columns(given_rows):
    assert encode_few(ENCODERS[0], given_rows) is None


PLAIN = {
    "a frame": pd.DataFrame([ROW | {"extra": [np.ones(2)]}]),
    "a frame that lacks values": pd.DataFrame(
        [ROW | {"site": None, "degrees": None, "price": np.nan}]
    ),
    "a frame of narrow numbers": pd.DataFrame([ROW]).astype({"price": "int16", "degrees": "uint8"}),
    "a table": pa.Table.from_pylist([ROW | {"site": None, "degrees": None}]),
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
