# SPDX-License-Identifier: Apache-2.0
"""Text files and columns as other programs write them: read, or refused in plain words."""

import gzip

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sparsetrain.data import (
    Dataset,
    Derived,
    Encoder,
    Interactions,
    Schema,
    convert_files,
    infer,
    open_source,
    split_time,
)
from sparsetrain.errors import DataError, SparsetrainError

SCHEMA = Schema("y", (), ("c",))


def put(folder, name, content):
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def values(path):
    return Encoder.fit(path, schema=SCHEMA, min_count=1).values("c")[2:]


OLD_MAC = {
    "a.csv": b"y,c\r0,a\r1,b\r",
    "quoted.csv": b'"y","c"\r0,"a"\r1,b\r',
    "a.tsv": b"y\tc\r0\ta\r1\tb\r",
    "a.csv.gz": b"y,c\r0,a\r1,b\r",
}


@pytest.mark.parametrize("name", OLD_MAC)
@pytest.mark.parametrize(
    "read",
    [
        values,
        Interactions.read,
        lambda path: infer(path, "y"),
        lambda path: convert_files(path, path.parent / "out", schema=SCHEMA, min_count=1),
    ],
)
def test_old_mac_line_ends_are_refused_by_name(name, read, tmp_path):
    path = put(tmp_path, name, OLD_MAC[name])
    message = r"line 1: its lines end in a carriage return \(old Mac\); end them in a newline"
    with pytest.raises(DataError, match=message):
        read(path)


RETURNS = {
    "behind the header": (b"y,c\n0,a\r1,b\r1,c\n", ["a", "b", "c"]),
    "to the end": (b"y,c\n0,a\r1,b\r", ["a", "b"]),
    "with quotes": (b'y,c\n0,"a"\r1,b\r1,"c"\n', ["a", "b", "c"]),
    "within quotes": (b'y,c\n0,"a\rb"\n1,c\n', ["a\rb", "c"]),
    "two before a newline": (b"y,c\r\r\n0,a\r\r\n1,b\r\r\n", ["a", "b"]),
    "beside windows' ends": (b"y,c\r\n0,a\r\n\r\n1,b\r1,c\r\n", ["a", "b", "c"]),
}


@pytest.mark.parametrize("content, expected", RETURNS.values(), ids=RETURNS)
def test_lone_carriage_returns_end_rows_as_for_other_readers(content, expected, tmp_path):
    path = put(tmp_path, "a.csv", content)
    assert sorted(values(path)) == expected
    found = convert_files(path, tmp_path / "out", schema=SCHEMA, min_count=1, workers=1)
    assert found["rows"] == len(expected)


def test_a_bad_row_beside_carriage_returns_is_named_by_its_line(tmp_path):
    path = put(tmp_path, "a.csv", b"y,c\n0,a\r1,b\n0,c,d\n1,x\n")
    with pytest.raises(DataError, match="line 3: 3 fields, expected 2"):
        values(path)
    path = put(tmp_path, "b.csv", b"y,c\n0,a\r1,b\n7,c\n1,x\n")
    learnt = Encoder.fit(path, schema=SCHEMA, min_count=1)
    with pytest.raises(DataError, match="line 3, column y: "):
        [*Dataset(path, learnt).batches(2)]


def test_a_name_beyond_what_a_csv_reader_takes_is_refused(tmp_path):
    with pytest.raises(DataError, match="line 1: not readable"):
        values(put(tmp_path, "a.csv", b'y,"' + b"c" * 200_000 + b'"\n0,a\n'))


HEADERS = {
    "one comma": b"y,c,\n0,a,\n1,b,\n",
    "several": b"y,c,,\n0,a,,\n1,b,,x\n",
    "an index too": b",y,c,\n0,0,a,\n1,1,b,\n",
    "in quotes": b'"y","c",""\n0,a,\n1,b,\n',
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
def test_a_header_may_end_in_commas(content, tmp_path):
    path = put(tmp_path, "a.csv", content)
    assert values(path) == ["a", "b"]
    tabs = put(tmp_path, "a.tsv", content.replace(b",", b"\t").replace(b'"', b""))
    assert values(tabs) == ["a", "b"]
    assert convert_files(path, tmp_path / "o", schema=SCHEMA, min_count=1)["rows"] == 2
    assert "c" in infer(path, "y", categories=["c"]).schema.wanted


def test_a_comma_that_only_the_header_has_is_named(tmp_path):
    with pytest.raises(DataError, match="line 2: 2 fields, expected 3"):
        values(put(tmp_path, "a.csv", b"y,c,\n0,a\n1,b\n"))


def test_rows_without_a_header_are_no_header_for_ending_in_commas(tmp_path):
    with pytest.raises(DataError, match="3 fields without names"):
        open_source(put(tmp_path, "a.csv", b"0,a,\n1,b,\n"), SCHEMA)


MIXED = {
    "numbers in text": (
        ["259", 259],
        "row 1, column c: holds int, but text in earlier rows",
    ),
    "text in numbers": (
        [None, 259, "x"],
        "row 2, column c: holds text, but int in earlier rows",
    ),
    "a float in text": (
        ["a", 1.5],
        "row 1, column c: holds float, but text in earlier rows",
    ),
    "lists in text": (["a", ["b"]], "row 1, column c: holds list, but text in earlier rows"),
    "lists of both": (
        [["a"], None, [1]],
        "row 2, column c: holds int, but text in earlier rows",
    ),
    "a boolean in text": (
        [True, "b"],
        "row 1, column c: holds text, but bool in earlier rows",
    ),
}


@pytest.mark.parametrize("column, message", MIXED.values(), ids=MIXED)
def test_a_column_of_several_types_is_named_by_row(column, message):
    labels = [0] * len(column)
    rows = [{"y": 0, "c": value} for value in column]
    object_array = np.empty(len(column), object)
    object_array[:] = column
    for data in (
        {"y": labels, "c": column},
        rows,
        pd.DataFrame(rows, dtype=object),
        {"y": np.array(labels), "c": object_array},
    ):
        with pytest.raises(DataError, match=f"{message}; give values of one type"):
            Encoder.fit(data, schema=SCHEMA)


NAMES = [" x", "x ", "a\tb", "", "a\nb", "\u2028"]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_cannot_be_seen_are_quoted(name):
    shown = repr(name).replace("\\", "\\\\")
    with pytest.raises(SparsetrainError, match=f"the nearest name there is {shown}|{shown}"):
        Encoder.fit({"y": [0], name: ["a"]}, schema=Schema("y", (), ("x",)))
    with pytest.raises(DataError, match=f"row 0, column {shown}: 1.5|column {shown}: category 1.5"):
        Encoder.fit({"y": [0], name: [1.5]}, schema=Schema("y", (), (name,)))


ISO = {
    "a zone in the middle": ["2024-01-01T00:00:00", "2024-01-02T00:00:00Z", "2024-01-03 00:00:00"],
    "a zone first": ["2024-01-01T02:00:00+02:00", "2024-01-02T00:00:00", "2024-01-03"],
    "hours alone": ["2024-01-01", "2024-01-01T23:00-01:00", "2024-01-03T00:00:00-0000"],
}


@pytest.mark.parametrize("times", ISO.values(), ids=ISO)
def test_times_with_and_without_a_zone_are_read_together(times, tmp_path):
    seconds = [1704067200 + 86400 * day for day in range(3)]
    lines = "user,item,time\n" + "".join(f"1,{i},{time}\n" for i, time in enumerate(times))
    path = put(tmp_path, "a.csv", lines.encode())
    data = {"user": [1] * 3, "item": [0, 1, 2], "time": times}
    for source in (data, pd.DataFrame(data), pa.table(data), path):
        assert Interactions.read(source).time.tolist() == seconds
    schema = Schema("y", (), ("day",), time="time", derived={"day": Derived("time", 86400)})
    rows = {"y": [0] * 3, "time": times}
    learnt = Encoder.fit(rows, schema=schema, min_count=1)
    assert learnt.values("day")[2:] == [second // 86400 for second in seconds]
    parts = split_time(rows, "time", "2024-01-02", schema=schema)
    assert [len([*part.parts][0].schema) for part in parts] == [2, 2]


BAD_TIMES = {
    "text among times": (["2024-01-01", None, "soon", "2024-01-02"], "row 2, .*'soon'"),
    "a number among times": (["2024-01-01Z", "2024-01-02T00:00:00", "5"], "row 0, .*'2024-01-01Z'"),
    "numbers after a time": (["2024-01-01T00:00:00Z", "5"], "row 1, .*'5'"),
    "a time among numbers": (["5", "2024-01-01"], "row 1, .*'2024-01-01' is not a number"),
}


@pytest.mark.parametrize("times, message", BAD_TIMES.values(), ids=BAD_TIMES)
def test_the_time_that_cannot_be_read_is_named(times, message):
    times = [time for time in times if time or "soon" in times]
    data = {"user": [1] * len(times), "item": [1] * len(times), "time": pa.array(times)}
    with pytest.raises(DataError, match=message):
        Interactions.read(pa.table(data))


ROLES = [
    ("userId", "movieId"),
    ("user_id", "movie_id"),
    ("USER_ID", "ITEM_ID"),
    ("UserID", "MovieID"),
    ("uid", "iid"),
    ("visitorid", "itemid"),
    ("customer_id", "article_id"),
    ("user_id", "product_id"),
]


@pytest.mark.parametrize("user, item", ROLES)
def test_users_and_items_are_found_by_their_usual_names(user, item, tmp_path):
    data = {"y": [5, 5], item: [7, 8], user: [1, 2], "Timestamp": [3, 4]}
    path = tmp_path / "a.csv"
    pd.DataFrame(data).to_csv(path, index=False)
    for source in (data, pa.table(data), path):
        log = Interactions.read(source)
        assert [int(value) for value in log.users.to_pylist()] == [1, 2]
        assert [int(value) for value in log.item.to_pylist()] == [7, 8]
        assert log.time.tolist() == [3, 4]


def test_the_plain_name_goes_before_another():
    log = Interactions.read({"movieId": [1], "item_id": [2], "item": [3], "uid": [4], "user": [5]})
    assert log.item.to_pylist() == [3] and log.users.to_pylist() == [5]
