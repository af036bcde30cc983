# SPDX-License-Identifier: Apache-2.0
"""Requests as programs have them: a list of rows, each a dict."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import ColumnRule, Dataset, Encoder, Schema, convert_files, profile
from sparsetrain.errors import DataError

SCHEMA = Schema("click", ("price",), ("user", "tags"))
SCHEMA_OF_USERS = Schema("click", ("price",), ("user",))
COLUMNS = {
    "click": [0, 1, 0],
    "price": [1.5, None, 2.5],
    "user": ["a", "b", "a"],
    "tags": [["x", "y"], [], None],
}


@pytest.fixture(scope="module")
def encoder():
    return Encoder.fit(COLUMNS, schema=SCHEMA, min_count=1)


def rows():
    names = list(COLUMNS)
    return [dict(zip(names, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]


def assert_same(actual, expected):
    np.testing.assert_array_equal(actual.dense, expected.dense)
    for one, other in zip(actual.ids, expected.ids, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.offsets, other.offsets)


def test_rows_are_read_as_the_columns_that_they_make(encoder):
    expected = encoder.encode(COLUMNS)
    assert_same(encoder.encode(rows()), expected)
    (batch,) = Dataset(rows(), encoder).batches(8)
    assert_same(batch, expected)
    assert Encoder.fit(rows(), schema=SCHEMA, min_count=1).fingerprint == encoder.fingerprint


def test_what_a_row_lacks_is_missing(encoder):
    given = rows()
    del given[1]["price"], given[2]["tags"]
    assert_same(encoder.encode([{**row, "more": 1} for row in given]), encoder.encode(COLUMNS))
    for row in given:
        row.pop("user")
    with pytest.raises(DataError, match="column user: the category column is missing"):
        encoder.encode(given)


@pytest.mark.parametrize("value", ["a", 3, b"a"])
def test_one_value_is_no_column(encoder, value):
    with pytest.raises(DataError, match=r"column user: holds one value .*; give a list of rows"):
        encoder.encode({**COLUMNS, "user": value})


def test_rows_that_are_not_all_dicts_are_refused(encoder):
    with pytest.raises(DataError, match="some of the rows are dicts, some are not"):
        encoder.encode([*rows(), 3])


@pytest.mark.parametrize("weighted", [False, True])
def test_a_row_without_a_list_is_read_alike_alone_and_among_others(weighted):
    rule = ColumnRule(weights="shares" if weighted else None)
    schema = Schema("click", ("price",), ("user", "tags"), columns={"tags": rule})
    shares = {"shares": [[1.0, 2.0], [], None]} if weighted else {}
    encoder = Encoder.fit({**COLUMNS, **shares}, schema=schema, min_count=1)
    more = {"shares": None} if weighted else {}
    alone = {"click": 0, "price": 1.0, "user": "a", "tags": None, **more}
    other = {**alone, "tags": ["x"], **({"shares": [1.0]} if weighted else {})}
    among = encoder.encode([alone, other]).ids[1]
    assert among.offsets.tolist() == [0, 0, 1]
    single = encoder.encode([alone]).ids[1]
    assert (single.ids.tolist(), single.offsets.tolist()) == ([], [0, 0])
    assert (single.weights is None) == (not weighted)


HASHES = [2**63 + 5, 7, 2**64 - 1]


@pytest.mark.parametrize("bags", [False, True], ids=["single", "bags"])
def test_hashes_from_two_to_the_63_have_the_row_that_they_have_in_files(bags, tmp_path):
    type_ = pa.list_(pa.uint64()) if bags else pa.uint64()
    users = [[value] for value in HASHES] if bags else HASHES
    columns = {"click": [0, 1, 0], "price": [1.0, 2.0, 3.0], "user": users}
    stored = {**columns, "user": pa.array(users, type_)}
    pq.write_table(pa.table(stored), tmp_path / "a.parquet")
    encoder = Encoder.fit(str(tmp_path / "a.parquet"), schema=SCHEMA_OF_USERS, min_count=1)
    (expected,) = Dataset(str(tmp_path / "a.parquet"), encoder).batches(8)
    requests = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for given in (columns, requests):
        found = encoder.encode(given)
        if bags:
            assert_same(found, expected)
        else:
            np.testing.assert_array_equal(found.ids, expected.ids)


NO_64_BITS = {
    "too large": ([1, 2**64], "row 1, column user: an integer does not fit 64 bits"),
    "signs": ([2**63, -1], "column user: the column cannot be read"),
}


@pytest.mark.parametrize("users, message", NO_64_BITS.values(), ids=NO_64_BITS)
def test_integers_that_no_64_bits_hold_are_refused_by_column(users, message):
    with pytest.raises(DataError, match=message):
        Encoder.fit({"click": [0, 1], "price": [1, 2], "user": users}, schema=SCHEMA_OF_USERS)


@pytest.mark.parametrize("kind", ["single", "bags", "codes"])
def test_hashes_from_two_to_the_63_are_shown_as_they_were_stored(kind, tmp_path):
    users = [[value] for value in HASHES] if kind == "bags" else HASHES
    column = pa.array(users, pa.list_(pa.uint64()) if kind == "bags" else pa.uint64())
    column = column.dictionary_encode() if kind == "codes" else column
    rows = pa.table({"click": [0, 1, 0], "price": [1.0, 2.0, 3.0], "user": column})
    encoder = Encoder.fit(rows, schema=SCHEMA_OF_USERS, min_count=1)
    assert sorted(encoder.values("user")[2:]) == sorted(HASHES)
    again = Encoder.from_state(*encoder.to_state())
    assert again.values("user") == encoder.values("user")
    shown = profile(rows, schema=SCHEMA_OF_USERS).categories[0].top
    assert {value for value, _ in shown} == {str(value) for value in HASHES}
    pq.write_table(rows, tmp_path / "a.parquet")
    convert_files(
        str(tmp_path / "a.parquet"), tmp_path / "out", schema=SCHEMA_OF_USERS, min_count=1
    )
    converted = Encoder.fit(str(tmp_path / "out"))
    assert converted.values("user") == encoder.values("user")
    assert converted.fingerprint == encoder.fingerprint


def test_signs_of_integers_stay():
    rows = {"click": [0, 1], "price": [1.0, 2.0], "user": [-5, 3]}
    encoder = Encoder.fit(rows, schema=SCHEMA_OF_USERS, min_count=1)
    assert sorted(encoder.values("user")[2:]) == [-5, 3]
