# SPDX-License-Identifier: Apache-2.0
"""Tables made to hurt: values at the limits of their types, and streams that break in the middle.

One value has one id in whatever form it comes, or an error names its row and column.
"""

import struct
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Dataset, Encoder, Schema, split_share
from sparsetrain.data.schema.columns import CATEGORIES, numbered, require_columns
from sparsetrain.data.values.location import Location
from sparsetrain.errors import DataError
from tests.data.criteo_tables import joined

SCHEMA = Schema("y", ("n",), ("c",))


def table_of(column, numbers=None):
    rows = len(column)
    labels = [row % 2 for row in range(rows)]
    return pa.table({"y": labels, "n": [1.0] * rows if numbers is None else numbers, "c": column})


def fitted(column):
    return Encoder.fit(table_of(column), schema=SCHEMA, min_count=1)


def ids_of(encoder, data):
    return joined(Dataset(data, encoder).batches(3)).ids[:, 0].tolist()


def written(table, tmp_path, end):
    file = tmp_path / f"rows.{end}"
    if end == "parquet":
        pq.write_table(table, file)
    else:
        mark = {"csv": ",", "tsv": "\t"}[end]
        lines = [table.column_names, *(map(str, row.values()) for row in table.to_pylist())]
        file.write_text("".join(mark.join(line) + "\n" for line in lines))
    return file


LIMITS = {
    "int64": [-(2**63), -(2**53) - 1, -(2**31) - 1, -1, 0, 2**32 - 1, 2**53 + 1, 2**63 - 1],
    "uint64": [0, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1],
}
FORMS = {
    "parquet": lambda table, path: written(table, path, "parquet"),
    "csv": lambda table, path: written(table, path, "csv"),
    "tsv": lambda table, path: written(table, path, "tsv"),
    "pandas": lambda table, _: table.to_pandas(),
    "pandas objects": lambda table, _: table.to_pandas().astype({"c": object}),
    "pandas categories": lambda table, _: table.to_pandas().astype({"c": "category"}),
    "text": lambda table, _: pd.DataFrame(table.to_pydict() | {"c": [*map(str, values(table))]}),
    "decimals": lambda table, _: table.set_column(
        2, "c", pa.array([*map(Decimal, values(table))], pa.decimal128(38, 0))
    ),
    "python": lambda table, _: table.to_pydict(),
    "rows": lambda table, _: table.to_pylist(),
    "big-endian": lambda table, _: (
        table.to_pydict() | {"c": np.array(values(table), table["c"].type.to_pandas_dtype())}
    ),
    "dictionaries": lambda table, _: table.set_column(2, "c", table["c"].dictionary_encode()),
    "reader": lambda table, _: table.to_reader(3),
    "dataset": lambda table, _: ds.dataset(table),
}


def values(table):
    return table["c"].to_pylist()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", LIMITS)
def test_a_number_at_the_limits_has_one_id_in_every_form(kind, form, tmp_path):
    table = table_of(pa.array(LIMITS[kind], kind))
    encoder = fitted(table["c"])
    assert encoder.values("c")[2:] == sorted(
        LIMITS[kind], key=lambda number: (number + 2**63) % 2**64
    )
    expected = ids_of(encoder, table)
    assert ids_of(encoder, FORMS[form](table, tmp_path)) == expected


@pytest.mark.parametrize("kind", LIMITS)
def test_one_row_has_the_id_of_many(kind):
    encoder = fitted(pa.array(LIMITS[kind], kind))
    for number in LIMITS[kind]:
        forms = [number, str(number), Decimal(number), np.dtype(kind).type(number)]
        found = {
            encoder.encode([{"n": 1.0, "c": c}], require_label=False).ids.item() for c in forms
        }
        assert found == {encoder.values("c").index(number)}, number


@pytest.mark.parametrize("value", [Decimal("1.5"), Decimal(2**64), Decimal(-(2**63) - 1)])
def test_a_decimal_that_no_64_bits_hold_is_refused_by_row(value):
    column = pa.array([Decimal(1), value], pa.decimal128(38, 1))
    with pytest.raises(DataError, match=r"^table: row 1, column c: category .* is not a whole"):
        fitted(column)


LARGEST = 2**63 - 1
TIMES = {
    "seconds": pa.array([0, LARGEST], pa.timestamp("s")),
    "milliseconds": pa.array([0, -LARGEST], pa.timestamp("ms", "UTC")),
    "days": pa.array([0, 2**31 - 1], pa.int32()).cast(pa.date32()),
    "days as milliseconds": pa.array([0, LARGEST], pa.int64()).cast(pa.date64()),
    "dictionary": pa.DictionaryArray.from_arrays(
        pa.array([1, 0]), pa.array([LARGEST, 0], pa.timestamp("s"))
    ),
}


@pytest.mark.parametrize("kind", TIMES)
def test_a_time_beyond_64_bits_of_microseconds_is_refused_and_does_not_wrap(kind):
    with pytest.raises(DataError, match=r"row 1, column c: the time .* beyond the year 294246"):
        fitted(TIMES[kind].dictionary_decode() if kind == "dictionary" else TIMES[kind])
    numbers = table_of(["a", "b"], TIMES[kind])
    with pytest.raises(DataError, match=r"row 1, column n: the time .* beyond the year 294246"):
        joined(Dataset(numbers, fitted(["a", "b"])).batches(2))


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_the_year_9999_is_a_category_and_a_number(unit):
    """Which others write for "never"; its microseconds are more than a float tells apart."""
    never = pa.array([253402300799], pa.timestamp("s")).cast(pa.timestamp(unit))
    assert fitted(never).values("c")[2:] == [253402300799]
    encoder = fitted(["a"])
    of_time, of_number = (
        joined(Dataset(table_of(["a"], column), encoder).batches(1)).dense.item()
        for column in (never, pa.array([253402300799]))
    )
    assert of_time == of_number


def test_a_moment_before_1970_is_in_one_second_in_every_unit():
    moments = [-1, -1_000_000, -1_000_001]
    nano = pa.array([moment * 1_000 - 1 * (moment == -1_000_001) for moment in moments])
    for column in (pa.array(moments, pa.timestamp("us")), nano.cast(pa.timestamp("ns"))):
        assert fitted(column).values("c")[2:] == [-1, -2]  # by falling count


VIEWS = {
    "text": pa.array(["a", "b", None, "a"], pa.string_view()),
    "bytes": pa.array([b"a", b"b", None, b"a"], pa.binary_view()),
    "dictionary": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None, 0]), pa.array(["a", "b"], pa.string_view())
    ),
}
VIEWS["lists"] = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4], pa.int32()), VIEWS["text"])
VIEWS["lists of dictionary"] = pa.LargeListArray.from_arrays([0, 1, 2, 3, 4], VIEWS["dictionary"])
VIEWS["pairs"] = pa.FixedSizeListArray.from_arrays(VIEWS["dictionary"], 1)


def flat_ids(encoder, data):
    batches = [batch.ids for batch in Dataset(data, encoder).batches(3)]
    pieces = (ids[0].ids if isinstance(ids, tuple) else ids[:, 0] for ids in batches)
    return [id_ for piece in pieces for id_ in piece.tolist()]


@pytest.mark.parametrize("kind", VIEWS)
def test_views_of_text_are_text(kind):
    table = table_of(VIEWS[kind])
    encoder = fitted(VIEWS[kind])
    assert encoder.values("c") == [None, None, "a", "b"]
    for data in (table, table.to_reader(), ds.dataset(table)):
        assert flat_ids(encoder, data) == [2, 3, 0, 2]
    halves = split_share(table, 0.5, schema=SCHEMA)
    assert sum(len(flat_ids(encoder, half)) for half in halves) == 4


NEGATIVE = struct.pack("<8i", *[0] * 4, *[-1] * 4)  # of the second, a null
BAD_VIEWS = pa.Array.from_buffers(
    pa.string_view(), 2, [pa.py_buffer(b"\1"), pa.py_buffer(NEGATIVE)]
)


@pytest.mark.parametrize("form", ["texts", "dictionary", "lists"])
def test_a_view_of_a_length_below_zero_is_refused_by_column(form):
    column = BAD_VIEWS
    if form == "dictionary":
        column = pa.DictionaryArray.from_arrays(pa.array([0, 0]), column)
    elif form == "lists":
        column = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), column)
    with pytest.raises(DataError, match="column c: a text has a length below 0"):
        fitted(column)


GOOD = table_of([1, 2]).to_batches()[0]
RENAMED = GOOD.rename_columns(["y", "n", "d"])
LISTS = table_of([[1], [2]]).to_batches()[0]


def failing():
    raise KeyError("of a user's\ngenerator")


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (lambda: RENAMED, "column c: the reader's column is missing"),
        (lambda: LISTS, "column c: from row 2: type list<item: int64>, .* schema says int64"),
        (lambda: 7, r"after 2 rows: cannot be read \(Could not unwrap"),
        (failing, r"after 2 rows: cannot be read \(.*of a user's.*generator"),
    ],
    ids=["another column", "another type", "no batch", "an error"],
)
def test_a_reader_that_breaks_later_is_refused_by_row(then, message):
    def batches():
        yield GOOD
        yield then()

    for read in (
        lambda data: Encoder.fit(data, schema=SCHEMA, min_count=1),
        lambda data: [*Dataset(data, fitted([1, 2])).batches(1)],
    ):
        with pytest.raises(DataError, match=f"^record batches: {message}[^\n]*$"):
            read(pa.RecordBatchReader.from_batches(GOOD.schema, batches()))


def test_a_dataset_that_breaks_later_is_refused_in_one_line(tmp_path):
    for name, column in {"a": [1, 2], "b": ["x", "y"]}.items():
        pq.write_table(table_of(column), tmp_path / f"{name}.parquet")
    found = ds.dataset(tmp_path)
    with pytest.raises(DataError, match=r"^stream: after 2 rows: cannot be read [^\n]*$"):
        Encoder.fit(found, schema=SCHEMA, min_count=1)
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(DataError, match=r"^stream: cannot be read [^\n]*a\.parquet[^\n]*$"):
        Encoder.fit(found, schema=SCHEMA, min_count=1)


class Closed:
    """As a relation of DuckDB's whose connection was closed, or whose query fails."""

    __module__ = "_duckdb"

    def __arrow_c_stream__(self, requested_schema=None):
        raise RuntimeError("Connection has already been closed\nLINE 1: ...")


def test_a_query_that_fails_is_refused_in_one_line():
    with pytest.raises(DataError, match=r"^stream: cannot be read \(Connection .* LINE 1: ...\)$"):
        Encoder.fit(Closed(), schema=SCHEMA)


def test_thousands_of_columns_are_found_in_time_that_grows_with_their_number():

    class Names(tuple):
        looked = 0

        def __contains__(self, name):
            Names.looked += 1
            return super().__contains__(name)

        def count(self, name):
            Names.looked += 1
            return super().count(name)

    names = Names(f"C{number}" for number in range(1, 10_000))
    require_columns(names, names, "category", Location("a"))
    assert len(numbered(names, CATEGORIES, None, "category", Location("a"))) == 9_999
    assert Names.looked == 0
