# SPDX-License-Identifier: Apache-2.0
"""Text of categories is UTF-8 wherever it comes from; columns of bytes hold any bytes."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Dataset, Encoder, Interactions, Schema, convert_files
from sparsetrain.errors import DataError

SCHEMA = Schema("y", (), ("city",))
GOOD = Encoder.fit({"y": [0, 1], "city": ["a", "b"]}, schema=SCHEMA, min_count=1)

BAGS = Encoder.fit({"y": [0], "city": [["a"]]}, schema=SCHEMA, min_count=1)


def latin(count=3, bad=2):
    """Text of which the row `bad` holds 'é' in Latin-1."""
    values = [b"a" if row != bad else b"caf\xe9" for row in range(count)]
    return pa.array([*values, None], pa.binary()).cast(pa.string(), safe=False)


def table(city):
    return pa.table({"y": [0] * len(city), "city": city})


def parquet(folder, **options):
    pq.write_table(table(latin()), folder / "a.parquet", **options)
    return folder / "a.parquet"


def text(folder):
    rows = b"".join(b"0,%s\n" % value for value in (b"a", b"a", b"caf\xe9"))
    (folder / "a.csv").write_bytes(b"y,city\n" + rows)
    return folder / "a.csv"


def coded():
    """A dictionary of as many values as its type of codes has numbers from 0 on."""
    values = [b"%d" % number for number in range(127)]
    dictionary = pa.array([*values, b"caf\xe9"]).cast(pa.string(), safe=False)
    return pa.DictionaryArray.from_arrays(pa.array([0, None, 127], pa.int8()), dictionary)


COLUMN = "column city: the text is not UTF-8"
SOURCES = {
    "a table": (lambda _: table(latin()), f"table: row 2, {COLUMN}"),
    "large text": (
        lambda _: table(latin().cast(pa.large_string(), safe=False)),
        f"row 2, {COLUMN}",
    ),
    "a slice": (lambda _: table(latin(5, 4)).slice(2), f"table: row 2, {COLUMN}"),
    "a dictionary": (lambda _: table(latin().dictionary_encode()), f"table: row 2, {COLUMN}"),
    "a full dictionary": (lambda _: table(coded()), f"table: row 2, {COLUMN}"),
    "lists": (
        lambda _: table(pa.ListArray.from_arrays(pa.array([0, 1, 4]), latin())),
        f"table: row 1, {COLUMN}",
    ),
    "parquet": (parquet, f"a.parquet: row group 0, row 2, {COLUMN}"),
    "plain parquet": (
        lambda folder: parquet(folder, use_dictionary=False),
        f"a.parquet: row group 0, row 2, {COLUMN}",
    ),
    "a csv file": (text, f"a.csv: line 4, {COLUMN}"),
}


@pytest.mark.parametrize("make, message", SOURCES.values(), ids=SOURCES)
def test_text_that_is_not_utf8_is_refused_by_row(make, message, tmp_path):
    with pytest.raises(DataError, match=message):
        Encoder.fit(make(tmp_path), schema=SCHEMA, min_count=1)
    known = BAGS if "row 1," in message else GOOD
    with pytest.raises(DataError, match=COLUMN):
        [*Dataset(make(tmp_path), known).batches(2)]


@pytest.mark.parametrize("make", [parquet, text])
def test_a_conversion_leaves_such_rows_out_if_asked(make, tmp_path):
    with pytest.raises(DataError, match=COLUMN):
        convert_files(make(tmp_path), tmp_path / "x", schema=SCHEMA, min_count=1, workers=1)
    found = convert_files(
        make(tmp_path), tmp_path / "y", schema=SCHEMA, min_count=1, workers=1, bad_rows="skip"
    )
    assert found["bad_rows"] == 1 and found["categories"]["city"]["distinct"] == 1


def test_a_value_that_no_row_has_is_not_looked_at():
    used = table(latin().dictionary_encode()).slice(0, 2)
    learnt = Encoder.fit(used, schema=SCHEMA, min_count=1)
    assert learnt.values("city") == [None, None, "a"]
    assert learnt.encode(used).ids[:, 0].tolist() == [2, 2]


def test_bytes_under_a_null_are_not_looked_at():
    city = pa.StringArray.from_buffers(
        2, pa.py_buffer(np.int32([0, 1, 2])), pa.py_buffer(b"\xffa"), pa.py_buffer(b"\x02")
    )
    assert Encoder.fit(table(city), schema=SCHEMA, min_count=1).values("city")[2:] == ["a"]


@pytest.mark.parametrize("delimiter", ["\t", ","])
def test_users_and_items_of_a_text_file_are_text(delimiter, tmp_path):
    lines = ["user,item", "1,x", "é,y", "1,z"]
    path = tmp_path / ("a.tsv" if delimiter == "\t" else "a.csv")
    path.write_text("\n".join(lines).replace(",", delimiter))
    log = Interactions.read(path)
    assert log.users.to_pylist() == ["1", "é"] and log.item.to_pylist() == ["x", "z", "y"]
    assert log.leave_one_out().encoder().values("user") == [None, None, 1, "é"]
    path.write_bytes(path.read_bytes().replace("é".encode(), b"\xe9"))
    with pytest.raises(DataError, match="line 3, column user: the text is not UTF-8"):
        Interactions.read(path)
    assert Interactions.read({"user": [b"\xff"], "item": ["x"]}).users.to_pylist() == [b"\xff"]


VALUES = {
    "half a pair": ("a\udce9", "row 1, column city: the text is not UTF-8"),
    "too large": (2**64, "row 1, column city: an integer does not fit 64 bits"),
    "too low": (-(2**63) - 1, "row 1, column city: an integer does not fit 64 bits"),
}


@pytest.mark.parametrize("value, message", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("wrapped", [lambda value: value, lambda value: [value]])
def test_a_value_of_python_that_no_column_holds_is_refused_by_row(value, message, wrapped):
    first = "é" if isinstance(value, str) else 1
    rows = [{"y": 0, "city": wrapped(each)} for each in (first, value)]
    with pytest.raises(DataError, match=message):
        Encoder.fit(rows, schema=SCHEMA, min_count=1)
