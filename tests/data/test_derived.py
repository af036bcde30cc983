# SPDX-License-Identifier: Apache-2.0
"""Columns that a schema makes of others: buckets of numbers, lists in text, pairs of columns."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparsetrain
from sparsetrain.data import Derived, Encoder, Schema
from sparsetrain.data.read.added_columns import with_derived
from sparsetrain.data.read.open_source import open_source
from sparsetrain.data.schema.derived import KINDS
from sparsetrain.errors import ConfigError, DataError


def derived(rule, **columns):
    """What a rule makes of columns, as Python values."""
    part = with_derived(open_source(pa.table(columns)).parts[0], {"d": rule})
    return [value for _, piece in part.pieces(["d"]) for value in piece.column("d").to_pylist()]


# Kind -> options, columns, and the values made of them.
MADE = {
    "boundaries": ({"boundaries": (0.0, 5.0)}, {"x": [-1, 0, 9, None]}, [0, 1, 2, None]),
    "quantiles": ({"quantiles": 2}, {"x": [1.0, 2.0, 3.0, None]}, [0, 1, 1, None]),
    "log": ({"log": 2.0}, {"x": [0, 3, -8, None]}, [0, 2, -3, None]),
    "separator": ({"separator": "|"}, {"x": ["a|b", "", None]}, [["a", "b"], [], None]),
    "cross": ({"cross": "y", "buckets": 9}, {"x": ["1", "1", ""], "y": [*"aba"]}, [5, 3, None]),
    "arithmetic": ({"divide": 2, "modulo": 3}, {"x": [7, 8, None]}, [0, 1, None]),
}


def test_every_kind_has_values():
    assert {kind.key for kind in KINDS} ^ {*MADE} == set()


@pytest.mark.parametrize("kind", MADE)
def test_a_kind_makes_these_values_wherever_its_rule_is_read_from(kind, tmp_path):
    options, columns, values = MADE[kind]
    rows = {"click": [0, 1, 0, 1][: len(values)], **columns}
    path = tmp_path / "schema.toml"
    given = Schema("click", categories=("d",), derived={"d": Derived("x", **options)})
    path.write_text(given.to_toml())
    encoder = Encoder.fit(rows, min_count=1, schema=path)
    again = Encoder.from_state(*encoder.to_state())
    assert derived(encoder.schema.derived["d"], **columns) == values
    wanted = encoder.encode(rows).ids
    for other in (pa.table(rows).to_pandas(), pa.table(rows).to_pylist()):
        for mine, its in zip(wanted, again.encode(other).ids, strict=True):
            for name in ("ids", "offsets") if again.has_bags else ():
                np.testing.assert_array_equal(getattr(mine, name), getattr(its, name))
            assert again.has_bags or (mine == its).all()


def test_numbers_fall_between_boundaries_in_any_type():
    rule = Derived("x", boundaries=(-1.5, 0.0, 10.0))
    assert derived(rule, x=[-2.0, -1.5, -0.1, 0, 9.9, 10, None]) == [0, 1, 1, 2, 2, 3, None]
    assert derived(rule, x=pa.array([-2, 0, 10], pa.int32())) == [0, 2, 3]
    assert derived(rule, x=["-2", "0", "10.0", ""]) == [0, 2, 3, None]


@given(st.floats(-1e15, 1e15), st.sampled_from([2.0, 10.0, 1.5]))
def test_a_logarithm_is_the_power_of_its_base_below(x, base):
    (bucket,) = derived(Derived("x", log=base), x=[x])
    size, power = 1 + abs(x), abs(bucket)
    assert base**power <= size < base ** (power + 1)
    assert bucket == 0 or math.copysign(1, bucket) == math.copysign(1, x)


LISTS = {
    "bars": ("|", ["a|b", "c", "", "a||b "], [["a", "b"], ["c"], [], ["a", "b"]]),
    "brackets": (",", ['["a", "b"]', "[1, 2]", "[]"], [["a", "b"], ["1", "2"], []]),
    "carets": ("^", ["1^2^3", None], [["1", "2", "3"], None]),
}


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("type_", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
def test_text_becomes_a_list(kind, type_):
    separator, texts, lists = LISTS[kind]
    array = pa.array(texts, pa.string()).cast(type_)
    assert derived(Derived("x", separator=separator), x=array) == lists
    assert derived(Derived("x", separator=separator), x=array[1:]) == lists[1:]


def test_what_is_not_text_is_not_cut():
    with pytest.raises(
        DataError, match="column x: type int64 cannot be used for 'separator'; it takes"
    ):
        derived(Derived("x", separator="|"), x=[1, 2])


def test_a_pair_is_the_same_in_every_type_that_stores_its_values():
    rule = Derived("x", cross="y", buckets=1000)
    left, right = [12, 7, 12, None], ["a", "b", "b", "a"]
    found = derived(rule, x=left, y=right)
    assert found[3] is None and len({*found[:3]}) == 3 and max(found[:3]) < 1000
    others = [pa.array(left, pa.int16()), pa.array(left, pa.uint64()), ["12", "7", "12", ""]]
    for other in others:
        assert derived(rule, x=other, y=pa.array(right).dictionary_encode()) == found


def test_pairs_spread_over_their_buckets():
    rule = Derived("x", cross="y", buckets=64)
    x, y = (grid.ravel() for grid in np.mgrid[0:64, 0:64])
    counts = np.bincount(derived(rule, x=x, y=y), minlength=64)
    assert counts.min() > 30 and counts.max() < 110


def schema() -> Schema:
    return Schema(
        label="click",
        categories=("site", "price_bucket", "tags_list", "site_tag"),
        derived={
            "price_bucket": Derived("price", boundaries=(1.0, 5.0)),
            "tags_list": Derived("tags", separator="|"),
            "site_tag": Derived("site", cross="tags", buckets=50),
        },
    )


ROWS = {
    "click": [0, 1, 0, 1] * 8,
    "site": ["a", "b", "a", "c"] * 8,
    "price": [0.5, 2.0, 9.0, None] * 8,
    "tags": ["x|y", "y", "", "x|z|y"] * 8,
}


def test_files_frames_and_a_saved_encoder_give_the_same_ids(tmp_path):
    table = pa.table(ROWS)
    pa.parquet.write_table(table, tmp_path / "rows.parquet")
    pa.csv.write_csv(table, tmp_path / "rows.csv")
    encoder = Encoder.fit(tmp_path / "rows.parquet", min_count=1, schema=schema())
    again = Encoder.from_state(*encoder.to_state())
    assert again.fingerprint == encoder.fingerprint
    wanted = encoder.encode(table)
    files = [*sparsetrain.data.Dataset(tmp_path / "rows.csv", again).batches(32)]
    for other in (again.encode(table.to_pandas()), again.encode(ROWS), *files):
        for mine, its in zip(wanted.ids, other.ids, strict=True):
            np.testing.assert_array_equal(mine.ids, its.ids)
            np.testing.assert_array_equal(mine.offsets, its.offsets)


def test_converted_data_hold_them_too(tmp_path):
    pa.parquet.write_table(pa.table(ROWS), tmp_path / "rows.parquet")
    encoder = Encoder.fit(tmp_path / "rows.parquet", min_count=1, schema=schema())
    sparsetrain.data.convert_files([tmp_path / "rows.parquet"], tmp_path / "out", encoder=encoder)
    (batch,) = sparsetrain.data.Dataset(tmp_path / "out", encoder).batches(32)
    for mine, its in zip(encoder.encode(pa.table(ROWS)).ids, batch.ids, strict=True):
        np.testing.assert_array_equal(mine.ids, its.ids)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_rows_that_cannot_be_derived_are_left_out_of_converted_data(suffix, tmp_path):
    table = pa.table({**ROWS, "price": ["0.5", "2", "cheap", "dear"] * 2 + ["1"] * 24})
    good = table.filter(~np.isin(np.arange(32), [2, 3, 6, 7]))
    path = tmp_path / f"rows.{suffix}"
    (pa.parquet.write_table if suffix == "parquet" else pa.csv.write_csv)(table, path)
    with pytest.raises(DataError, match=r"(row 2|line 4), column price: 'cheap' is not a number"):
        sparsetrain.data.convert_files([path], tmp_path / "strict", schema=schema())
    options = {"schema": schema(), "min_count": 1, "bad_rows": "quarantine"}
    summary = sparsetrain.data.convert_files([path], tmp_path / "out", **options)
    assert (summary["rows"], summary["bad_rows_by_column"]) == (28, {"price_bucket": 4})
    notes = (tmp_path / "out" / "_quarantine.jsonl").read_text().splitlines()
    assert [json.loads(note)["values"]["price"] for note in notes] == ["cheap", "dear"] * 2
    encoder = Encoder.fit(tmp_path / "out")
    (batch,) = sparsetrain.data.Dataset(tmp_path / "out", encoder).batches(32)
    for mine, its in zip(encoder.encode(good).ids, batch.ids, strict=True):
        np.testing.assert_array_equal(mine.ids, its.ids)


WRONG = {
    "two rules": ({"log": 2.0, "separator": "|"}, "log and separator exclude each other"),
    "with arithmetic": ({"log": 2.0, "modulo": 3}, "log and divide and modulo exclude"),
    "a base of 1": ({"log": 1.0}, "log is 1.0; it must be a base above 1"),
    "falling": (
        {"boundaries": (2.0, 1.0)},
        r"boundaries is \(2.0, 1.0\); give a list of numbers that rise",
    ),
    "not a number": ({"boundaries": (0.0, float("nan"))}, r"boundaries is \(0.0, nan\); give"),
    "none": ({"boundaries": ()}, r"boundaries is \(\); give a list of numbers that rise"),
    "a number": ({"boundaries": 5}, "boundaries is 5; give a list of numbers that rise"),
    "a base without end": ({"log": 10**400}, "log is 1000"),
    "too many buckets": ({"cross": "y", "buckets": 2**70}, "buckets is 1180591620717411303424"),
    "no text": ({"separator": 5}, None),
    "no buckets": ({"cross": "y"}, "cross and buckets go together"),
    "nothing between": ({"separator": ""}, "separator is empty"),
}


@pytest.mark.parametrize("case", WRONG)
def test_rules_that_cannot_hold_are_refused(case):
    options, message = WRONG[case]
    with pytest.raises(
        ConfigError, match=f"derived.d: {message}" if message else r"derived\.d\.separator"
    ):
        Schema(categories=("d",), derived={"d": Derived("x", **options)})


def test_a_schema_of_them_is_written_and_read(tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text(schema().to_toml())
    assert Schema.read(path) == schema()
    assert "divide" not in path.read_text()


BAD_TYPES = {
    "log": (Derived("x", log=2.0), pa.array([[1.0]]), "list"),
    "boundaries": (Derived("x", boundaries=(1.0,)), pa.array([1], pa.duration("s")), "duration"),
    "cross": (Derived("x", cross="x", buckets=9), pa.array([1.5]), "double"),
    "cross of booleans": (Derived("x", cross="x", buckets=9), pa.array([True]), "bool"),
}


@pytest.mark.parametrize("case", BAD_TYPES)
def test_a_type_that_a_rule_does_not_take_is_refused_by_name(case):
    rule, array, type_ = BAD_TYPES[case]
    with pytest.raises(DataError, match=f"x: type {type_}.* cannot be used for '{rule.of.key}'"):
        derived(rule, x=array)


@pytest.mark.parametrize("rule", [Derived("x", separator="|"), Derived("x", cross="x", buckets=9)])
def test_text_that_is_not_utf_8_is_named(rule):
    bad = pa.array([b"a|b", b"\xff|c"]).view(pa.string())
    with pytest.raises(DataError, match="row 1, column x"):
        derived(rule, x=bad)


def test_the_largest_numbers_have_a_bucket():
    assert derived(Derived("x", log=2.0), x=[1.7e308, -1.7e308]) == [1023, -1023]


def test_boundaries_of_a_list_are_saved_and_read(tmp_path):
    made = Schema(categories=("d",), derived={"d": Derived("x", boundaries=[1.0, 2.0])})
    assert Schema.from_dict(made.to_dict()) == made


class Unhashable(pa.ExtensionType):
    """A type of somebody's, which `hash` does not take."""

    def __init__(self):
        super().__init__(pa.int64(), "tests.unhashable")

    def __arrow_ext_serialize__(self):
        return b""

    def __eq__(self, other):
        return isinstance(other, Unhashable)


def test_a_column_of_a_strange_type_that_nobody_reads_disturbs_nothing():
    other = pa.ExtensionArray.from_storage(Unhashable(), pa.array([1, 2] * 8))
    table = pa.table({"click": [0, 1] * 8, "c": ["a", "b"] * 8, "z": other})
    encoder = Encoder.fit(table, min_count=1, schema=Schema(label="click", categories=("c",)))
    for _ in range(2):
        assert encoder.encode(table).ids[:2].tolist() == [[2], [3]]
