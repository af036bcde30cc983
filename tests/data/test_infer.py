# SPDX-License-Identifier: Apache-2.0
"""Schemas inferred from rows: what a column is taken for, and encoding by the result."""

import datetime
import re
from contextlib import nullcontext

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Derived, Encoder, Schema, infer
from sparsetrain.errors import ConfigError, DataError, DataWarning

ROWS = 400
RNG = np.random.default_rng(0)
SECONDS = 1_600_000_000 + RNG.integers(0, 10**6, ROWS)
# What a column is taken for, and its values.
COLUMNS = {
    "user_id": ("category, whole numbers: 9", SECONDS % 9),
    "zip": ("category, whole numbers: 4", [f"0{n % 4}123" for n in range(ROWS)]),
    "hash": ("category, hexadecimal: 7", [f"{n % 7 * 99991 + 2**28:08x}" for n in range(ROWS)]),
    "item": ("category, whole numbers: 3", RNG.integers(1, 200, ROWS)),
    "site": ("category, text: 2", ["a", "b"] * (ROWS // 2)),
    "premium": ("category, whole numbers: 2", [True, False] * (ROWS // 2)),
    "tags": ("category, lists of text: 2", pa.array([["x"], ["x", "y"]] * (ROWS // 2))),
    "views": ("number, by its logarithm", RNG.zipf(1.5, ROWS) % 10**6),
    "price": ("number, by its logarithm", RNG.lognormal(0, 2, ROWS)),
    "degrees": ("number, shifted and scaled", RNG.normal(-5, 9, ROWS)),
    "standardised": ("number, shifted and scaled", RNG.normal(-0.1, 1, ROWS).clip(-1.9)),
    "delta": ("number, shifted and scaled", RNG.integers(-99, 99, ROWS)),
    "when": ("time: its hour and weekday", pa.array(SECONDS).cast(pa.timestamp("s"))),
    "created": (
        "time: its hour and weekday",
        [str(datetime.datetime.fromtimestamp(int(s))) for s in SECONDS],
    ),
    "timestamp": ("time: its hour and weekday", SECONDS.astype(float)),
    "ts": ("time: its hour and weekday", SECONDS * 1000),
    "hour": ("time: its hour", 14102100 + SECONDS % 24),
    "row": ("ignored: another value in nearly", range(ROWS)),
    "one": ("ignored: always the same", [5] * ROWS),
    "none": ("ignored: no values", pa.nulls(ROWS)),
    "vector": ("vector of 2 numbers", pa.array([[0.5, 1.0]] * ROWS)),
    "place": ("ignored: struct<", pa.array([{"x": 1}] * ROWS)),
}
UNREAD = ("place",)
LABEL = {"click": [0, 1] * (ROWS // 2), "kind": ["a", "b", "c", "d"] * (ROWS // 4)}


def test_columns_of_a_frame_may_be_in_chunks():
    pd = pytest.importorskip("pandas")
    text = pa.chunked_array([["a", "b"], ["a", "c"]])
    column = pd.Series(text, dtype=pd.ArrowDtype(pa.string()))
    found = infer(pd.DataFrame({"site": column, "click": [0, 1, 0, 1]}), "click")
    assert found.columns["site"] == "category, text: 3 values"


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_is_what_its_values_look_like(name):
    expected, values = COLUMNS[name]
    with pytest.warns(DataWarning) if name in UNREAD else nullcontext():
        found = infer({**LABEL, name: values}, "click")
    assert found.columns[name].startswith(expected.split(": 3")[0])
    assert found.columns["click"] == "label, binary" and found.schema.label == "click"


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_files_train_by_what_is_inferred(suffix, tmp_path):
    names = [n for n in COLUMNS if suffix == "parquet" or n not in ("tags", "vector", "place")]
    rows = pa.table({**LABEL, **{n: pa.array(COLUMNS[n][1]) for n in names}})
    write = pq.write_table if suffix == "parquet" else csv.write_csv
    write(rows, tmp_path / f"a.{suffix}")
    ignored = ["none", *({*names} & {*UNREAD})]
    schema = infer(tmp_path / f"a.{suffix}", "click", ignore=ignored).schema
    assert schema.time == "when" and schema.derived["ts_hour"] == Derived("ts", 3_600_000, 24)
    assert {"user_id", "zip", "hash", "premium"} < {*schema.categories} and "views" in schema.dense
    encoder = Encoder.fit(tmp_path / f"a.{suffix}", schema=schema, min_count=1)
    hours = encoder.values("when_hour")[2:]
    assert {*hours} == {int(s) // 3600 % 24 for s in SECONDS}
    (tmp_path / "my.toml").write_text(schema.to_toml())
    assert Schema.read(tmp_path / "my.toml") == schema


ODD = {
    "a duration": (pa.array([1] * ROWS, pa.duration("s")), "duration[s]"),
    "a struct": (COLUMNS["place"][1], "struct<x: int64>"),
    "lists of floats": (pa.array([[0.5], [0.5, 1.0]] * (ROWS // 2)), ": double> of 1 to 2 num"),
    "values of two types": ([1, "a"] * (ROWS // 2), "holds text, but int in earlier rows"),
    "complex numbers": (np.ones(ROWS) * 1j, "cannot be read (Unsupported numpy type"),
}


def test_a_label_has_the_kind_behind_its_name(name="a:b"):
    rows = {"visits": [0, 1, 5, 2] * (ROWS // 4), name: [0.5, 1.5] * (ROWS // 2), **LABEL}
    assert infer(rows, "visits:count").schema.labels == {"visits": "count"}
    assert infer(rows, "visits").schema.labels == {"visits": "real"}
    assert infer(rows, name).schema.labels == {name: "real"}
    found = infer(rows, f"{name}:quantiles:0.1,0.9")
    assert found.schema.labels == {name: "quantiles:0.1,0.9"}
    assert found.columns[name] == "label, quantiles:0.1,0.9"
    assert infer(rows, "visits:classes:6").schema.labels == {"visits": 6}
    with pytest.raises(ConfigError, match="label visits:counts is 'counts'; it must be 'binary'"):
        infer(rows, "visits:counts")


@pytest.mark.parametrize("kind", ODD)
def test_a_column_that_is_not_read_is_named_with_the_reason(kind, tmp_path):
    values, reason = ODD[kind]
    rows = {**LABEL, "odd": values}
    given = [rows]
    if isinstance(values, pa.Array):
        pq.write_table(pa.table(rows), tmp_path / "a.parquet")
        given += [pa.table(rows), tmp_path / "a.parquet"]
    for data in given:
        with pytest.warns(DataWarning, match=f"left out.*'odd'.*{re.escape(reason)}.*cast") as told:
            found = infer(data, "click")
        assert len(told) == 1 and reason in found.columns["odd"]
        assert infer(data, "click", ignore=["odd"]).columns["odd"] == "ignored, as asked"
        for asked in ({"dense": ["odd"]}, {"categories": ["odd"]}):
            with pytest.raises(DataError, match="column odd: (?!the .* missing)"):
                infer(data, "click", **asked)


@pytest.mark.parametrize("kind", [k for k, (v, _) in ODD.items() if not isinstance(v, pa.Array)])
@pytest.mark.parametrize("name", ["", " odd", "o\nd", "column odd: ", "a: column"])
def test_a_reason_says_the_name_once_whatever_it_is(name, kind):
    values, reason = ODD[kind]
    with pytest.warns(DataWarning, match=re.escape(f"{name!r} (")):
        told = infer({**LABEL, name: values}, "click").columns[name]
    assert told.startswith(("ignored: holds", "ignored: the column cannot")) and reason in told


def test_a_warning_names_five_of_many_columns():
    odd = {f"odd{n}": ODD["a duration"][0] for n in range(9)}
    with pytest.warns(DataWarning, match=r"'odd4' \(duration\[s\]\) and 4 others; cast"):
        infer({**LABEL, **odd}, "click")


def test_a_series_in_a_dict_has_missing_values_as_a_frame_has():
    pd = pytest.importorskip("pandas")
    sites = pd.Series(["a", "b", np.nan, None] * (ROWS // 4), dtype=object)
    for rows in ({**LABEL, "site": sites}, pd.DataFrame({**LABEL, "site": sites})):
        assert infer(rows, "click").columns["site"] == "category, text: 2 values"


def test_names_overrule_what_values_look_like():
    rows = {**LABEL, "views": COLUMNS["views"][1], "site": [1, 2] * (ROWS // 2), "x": [1] * ROWS}
    named = infer(rows, "click", dense=["site"], categories=["views", "x"], ignore=["kind"]).schema
    assert (named.dense, named.categories) == (("site",), ("views", "x"))


def test_labels_that_are_not_0_and_1_are_real():
    assert infer({**LABEL, "stars": [1, 5] * (ROWS // 2)}, "stars").schema.labels == {
        "stars": "real"
    }


WRONG = {
    "no label": (
        LABEL,
        {"label": "clik"},
        DataError,
        "column clik: .* nearest name there is click",
    ),
    "a label of words": (LABEL, {"label": "kind"}, DataError, "column kind: 'a' is not a number"),
    "two roles": (LABEL, {"label": "click", "ignore": ["click"]}, ConfigError, "given twice"),
    "no category": (
        {"click": [0, 1] * 9, "x": [0.5, 1.5] * 9},
        {"label": "click"},
        ConfigError,
        "no column is a category",
    ),
}


@pytest.mark.parametrize("rows, arguments, error, message", WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_is_refused(rows, arguments, error, message):
    with pytest.raises(error, match=message):
        infer(rows, **arguments)


LATE = {
    "text": (["x"], "column amount: 'x' is not a number"),
    "lists": ([[0.5]], "column amount: the type is list<.*>, but in .*0.parquet it is double"),
    "structs": (
        [{"a": 1}],
        "column amount: the type is struct<.*>, but in .*0.parquet it is double",
    ),
}


@pytest.mark.parametrize("values, message", LATE.values(), ids=LATE.keys())
def test_a_file_whose_column_is_something_else_is_named(values, message, tmp_path):
    for number, amount in enumerate(([0.5], values)):
        rows = {"click": [1], "site": ["a"], "amount": amount}
        pq.write_table(pa.table(rows), tmp_path / f"{number}.parquet")
    with pytest.raises(DataError, match=r"1\.parquet: row group 0, .*" + message):
        infer(tmp_path, "click")
    found = infer(tmp_path, "click", categories=["site"], ignore=["amount"])
    assert found.schema.categories == ("site",)


def test_timestamps_and_booleans_are_read_wherever_numbers_are():
    schema = Schema("y", ("day", "ok"), ("when", "seen"))
    days = pa.array([0, 86_400, None]).cast(pa.timestamp("s"))
    seconds = {"y": [0, 1, 1], "day": [0, 86_400, None], "ok": [1, 0, None]}
    seconds |= {"when": [0, 86_400, None], "seen": [1, 0, None]}
    moments = {"y": [False, True, True], "day": days.cast(pa.date32()), "ok": [True, False, None]}
    moments |= {"when": days.cast(pa.timestamp("us", "UTC")), "seen": [True, False, None]}
    encoder = Encoder.fit(seconds, schema=schema, min_count=1)
    found, expected = encoder.encode(pa.table(moments)), encoder.encode(seconds)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.dense, expected.dense)
