# SPDX-License-Identifier: Apache-2.0
"""A schema file describes another log; what it cannot mean is refused by key."""

import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pytest

from sparsetrain.data import (
    ColumnRule,
    Dataset,
    Derived,
    Encoder,
    Schema,
    TextFormat,
    convert_files,
    open_source,
    split_share,
)
from sparsetrain.data.read.added_columns import with_derived
from sparsetrain.errors import ConfigError, DataError
from tests.data.criteo_tables import assert_batches_equal, joined

AVAZU = """
label = "click"
categories = ["hour_of_day", "banner_pos", "site_id", "device_ip"]
time = "hour"
[derived.hour_of_day]
from = "hour"
modulo = 100
[columns.device_ip]
max_rows = 20
min_count = 1
"""


def avazu(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    hours = 14_102_100 + 100 * (np.arange(rows) * 3 // rows) + rng.integers(0, 24, rows)
    return pa.table(
        {
            "id": np.arange(rows).astype(np.uint64) * 10**15,
            "click": rng.integers(0, 2, rows),
            "hour": hours,
            "banner_pos": rng.integers(0, 3, rows),
            "site_id": [["1fbe01fe", "85f751fd", "a site"][i] for i in rng.integers(0, 3, rows)],
            "device_ip": [f"{i:08x}" for i in rng.integers(0, 60, rows)],
        }
    )


def write_csv(path, table):
    csv.write_csv(table, path, csv.WriteOptions(quoting_style="none"))
    return str(path)


@pytest.fixture
def schema(tmp_path):
    path = tmp_path / "avazu.toml"
    path.write_text(AVAZU)
    return path


def test_a_log_without_dense_columns_is_read_through_a_schema(tmp_path, schema):
    log = write_csv(tmp_path / "a.csv", avazu())
    encoder = Encoder.fit(log, schema=schema)
    assert (encoder.num_dense, encoder.rows[0], encoder.rows[3]) == (0, 26, 20)
    batch = joined(Dataset(log, encoder).batches(64))
    assert batch.dense.shape == (400, 0)
    assert batch.ids.min() >= 2
    assert Encoder.fit(avazu(), schema=schema).rows == encoder.rows
    convert_files(log, tmp_path / "out", schema=schema)
    converted = Encoder.fit(tmp_path / "out")
    assert converted.rows == encoder.rows
    for data in (tmp_path / "out", log):
        assert_batches_equal(joined(Dataset(data, converted).batches(64)), batch)


def test_a_schema_survives_its_own_plain_values(schema):
    read = Schema.read(schema)
    assert Schema.from_dict(json.loads(json.dumps(read.to_dict()))) == read
    named = Schema(categories=("source",), columns={"source": ColumnRule(min_count=2)})
    assert Schema.from_dict(named.to_dict()) == named


@pytest.mark.parametrize(
    "rule, expected",
    [
        (Derived("t"), [0, 86_399, -1, None]),
        (Derived("t", divide=3600), [0, 23, -1, None]),
        (Derived("t", divide=3600, modulo=24), [0, 23, 23, None]),
    ],
)
def test_a_derived_column_is_a_quotient_and_a_remainder(rule, expected):
    source = open_source(
        {"t": [0, 86_399, -1, None], "C1": [1] * 4},
        Schema(categories=("d", "C1"), derived={"d": rule}),
    )
    part = with_derived(source.parts[0], {"d": rule})
    assert next(part.pieces(["d"]))[1].column("d").to_pylist() == expected


HUGE = 2**63 + 5
# The same integers as columns may store them.
INTEGERS = {
    "uint64": pa.array([HUGE, 7, None], pa.uint64()),
    "decimals": pa.array([Decimal(HUGE), Decimal(7), None], pa.decimal128(20, 0)),
    "text": pa.array([str(HUGE), "7", ""]),
    "bytes": pa.array([str(HUGE), "7", None]).cast(pa.binary()),
    "codes": pa.array([str(HUGE), "7", None]).dictionary_encode(),
}


@pytest.mark.parametrize("array", INTEGERS.values(), ids=INTEGERS.keys())
def test_integers_of_64_bits_are_not_rounded_before_they_are_divided(array):
    derived = {"d": Derived("t", divide=3), "same": Derived("t")}
    part = with_derived(open_source(pa.table({"t": array})).parts[0], derived)
    assert next(part.pieces(["d"]))[1].column("d").to_pylist() == [HUGE // 3, 2, None]
    with pytest.raises(DataError, match="column t: 9223372036854775813 is beyond int64"):
        next(part.pieces(["same"]))


DAYS = ["1970-01-01", "1970-01-02", "1969-12-31", None]
MOMENTS = {
    "dates": pa.array(DAYS).cast(pa.date32()),
    "timestamps": pa.array(DAYS).cast(pa.timestamp("ns")),
    "text": pa.array(DAYS),
    "bytes": pa.array([f"{day} 00:00:00" if day else "" for day in DAYS]).cast(pa.binary()),
    "text with a zone": pa.array([f"{day}T01:00:00+01:00" if day else None for day in DAYS]),
}


@pytest.mark.parametrize("array", MOMENTS.values(), ids=MOMENTS.keys())
def test_days_are_derived_from_points_in_time(array):
    derived = {"d": Derived("t", divide=86_400)}
    part = with_derived(open_source(pa.table({"t": array})).parts[0], derived)
    assert next(part.pieces(["d"]))[1].column("d").to_pylist() == [0, 1, -1, None]


@pytest.mark.parametrize(
    "array, message",
    [
        (pa.array([3], pa.time32("s")), "values of type time32.s. are not points in time"),
        (pa.array(["noon"]), "'noon' is not a number"),
        (pa.array(["0x10"]), "'0x10' is not a number"),
        (pa.array([2.0**60]), r"1.15\S* is not a whole number"),
    ],
)
def test_what_is_neither_number_nor_moment_derives_nothing(array, message):
    part = with_derived(open_source(pa.table({"t": array})).parts[0], {"d": Derived("t")})
    with pytest.raises(DataError, match=f"column t: {message}"):
        next(part.pieces(["d"]))


BAD = {
    "an unknown key": ('labl = "x"', "unknown key 'labl'; did you mean 'label'?"),
    "a text in a list": ('categories = ["a", 1]', "categories.1 is 1; it must be a valid string"),
    "a date": ("time = 2024-01-01", "time is {'date': '2024-01-01'}; it must be a valid string"),
    "no table": ("columns = 3", "columns is 3; it must be a table"),
    "a kind of no label": ('labels = {a = "x"}', "labels.a is 'x'; it must be 'binary', 'count', "),
    "an unknown key below": ("[columns.C1]\nmin = 3", "unknown key 'columns.C1.min'; there are"),
    "a wrong type": ("dense = 3", "dense is 3; it must be a list"),
    "no source": ("[derived.x]\nmodulo = 3", "derived.x.from is missing"),
    "a modulo of 0": ('[derived.x]\nfrom="y"\nmodulo = 0', "modulo is 0; it must be 1 or more"),
    "a name twice": ('categories = ["a", "a"]', "'a' is named twice among dense and categories"),
    "no categories": ('dense = ["a"]', "dense is given without categories"),
    "a rule for nothing": (
        'categories = ["a"]\n[columns.b]\nmin_count = 1',
        "columns.b: it is not",
    ),
    "an unknown keep": ('[columns.C1]\nkeep = "all"', "keep is 'all'; give 'first' or 'last'"),
    "a long delimiter": ('[text]\ndelimiter = "||"', "text.delimiter is '||'"),
    "a law for nothing": (
        'categories = ["a"]\n[linear.b]\nscale = 2',
        "linear.b: it is not among the dense columns",
    ),
    "a scale of 0": (
        'categories = ["a"]\ndense = ["b"]\n[linear.b]\nscale = 0',
        "linear.b: center is a number, and scale one other than 0",
    ),
    "a scale that is infinite": (
        'categories = ["a"]\ndense = ["b"]\n[linear.b]\nscale = inf',
        "linear.b: center and scale must be finite",
    ),
    "a center that is text": (
        'categories = ["a"]\ndense = ["b"]\n[linear.b]\ncenter = "x"',
        "linear.b.center is 'x'; it must be a valid number",
    ),
    "no TOML": ("label = ", "the schema is not well formed"),
}


@pytest.mark.parametrize("text, message", BAD.values(), ids=BAD.keys())
def test_a_schema_that_means_nothing_is_refused_by_key(text, message, tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Schema.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_column_that_the_schema_names_and_the_data_lack_is_named(schema):
    with pytest.raises(DataError, match=r"column hour_of_day: it is derived from hour, which is m"):
        Encoder.fit(avazu().drop_columns(["hour"]), schema=schema)
    with pytest.raises(DataError, match="column site_id: the category column is missing"):
        Encoder.fit(avazu().drop_columns(["site_id"]), schema=schema)


def test_nulls_may_be_written_as_words(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("label,I1,C1\n1,NULL,x\n0,4,NULL\n")
    encoder = Encoder.fit(path, min_count=1, schema=Schema(text=TextFormat(null=("NULL",))))
    batch = next(Dataset(path, encoder).batches(2))
    assert batch.ids[:, 0].tolist() == [2, 0]
    assert batch.dense[0, 0] == np.float32(np.log(3))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"linear": {"b": (0, 1)}}, r"linear\.b is \(0, 1\); give a Linear"),
        ({"linear": ["b"]}, r"linear is \['b'\]; give a dict, of columns to a Linear each"),
        ({"columns": {"a": 5}}, r"columns\.a is 5; give a ColumnRule"),
        ({"derived": {"a": "b"}}, r"derived\.a is 'b'; give a Derived"),
        ({"categories": "user"}, "categories is 'user'; give a list of the names of columns"),
        ({"categories": (1, 2)}, r"categories is \(1, 2\); give a list of the names"),
        ({"dense": None}, "dense is None; give a list"),
        ({"label": 3}, "label is 3; give the name of a column"),
        ({"time": 3}, "time is 3; give the name of a column"),
    ],
)
def test_what_is_of_another_type_is_refused_by_what_to_give(given, error):
    with pytest.raises(ConfigError, match=error):
        Schema(**{"categories": ("a",), "dense": ("b",), **given})


def test_names_may_come_in_whatever_holds_them():
    made = Schema(dense=["b"], categories=np.array(["a", "c"]))
    assert (made.dense, made.categories) == (("b",), ("a", "c"))
    assert {type(name) for name in made.categories} == {str}


def test_a_path_is_taken_where_a_schema_is(tmp_path):
    schema, file = Schema(label="y", dense=("a",), categories=("c",)), tmp_path / "schema.toml"
    file.write_text(schema.to_toml())
    rows = {"y": [0, 1] * 50, "a": [0.5, 1.0] * 50, "c": ["x", "z"] * 50}
    assert Encoder.fit(rows, schema=file).schema == schema
    by_value, by_path = (split_share(rows, 0.5, schema=given) for given in (schema, file))
    assert [part.num_rows for part in by_path] == [part.num_rows for part in by_value]
