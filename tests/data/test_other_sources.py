# SPDX-License-Identifier: Apache-2.0
"""Rows by URL, compressed in other ways, and from what is read anew in each epoch."""

import bz2
import gzip
import lzma
from types import SimpleNamespace
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Dataset, Encoder, Schema, convert_files, open_source
from sparsetrain.errors import DataError
from tests.data.criteo_tables import joined

SCHEMA = Schema("y", ("n",), ("c",))
TABLE = pa.table({"y": [0, 1] * 500, "n": [*range(1000)], "c": [f"v{i % 9}" for i in range(1000)]})
ENCODER = Encoder.fit(TABLE, schema=SCHEMA, min_count=1)
EXPECTED = ENCODER.encode(TABLE)


def assert_read(data):
    for _ in range(2):  # an epoch after another
        found = joined(Dataset(data, ENCODER).batches(128))
        np.testing.assert_array_equal(found.ids, EXPECTED.ids)
        np.testing.assert_array_equal(found.dense, EXPECTED.dense)


PACKED = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda text: pa.Codec("zstd").compress(text, asbytes=True),
}


def text_of(table):
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink, csv.WriteOptions(quoting_style="none"))
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("suffix", PACKED)
def test_compressed_text_is_read_whole_or_refused(suffix, tmp_path):
    text, file = text_of(TABLE), tmp_path / f"a.csv.{suffix}"
    half = text.index(b"\n", len(text) // 2) + 1
    file.write_bytes(PACKED[suffix](text[:half]) + PACKED[suffix](text[half:]))  # as `cat` makes
    assert_read(file)
    assert_read(tmp_path)
    file.write_bytes(PACKED[suffix](text)[:-20])
    with pytest.raises(DataError, match=f"{suffix}: after line .*: cannot be read on .*copy it"):
        list(Dataset(file, ENCODER).batches(128))


@pytest.mark.parametrize("suffix", ["parquet", "csv", "csv.gz"])
def test_files_are_read_by_url(suffix, tmp_path):
    (tmp_path / "day=1").mkdir()
    file = tmp_path / "day=1" / f"a.{suffix}"
    if suffix == "parquet":
        pq.write_table(TABLE, file, row_group_size=300)
    else:
        file.write_bytes(text_of(TABLE) if suffix == "csv" else gzip.compress(text_of(TABLE)))
    (tmp_path / "_hidden.parquet").write_text("x")
    for url in (f"file://{file}", f"file://{tmp_path}"):
        assert_read(url)
        assert open_source(url).parts[0].schema.names[-1] == "day"
    convert_files(f"file://{file}", tmp_path / "out", schema=SCHEMA, min_count=1)
    found = joined(Dataset(tmp_path / "out", Encoder.fit(tmp_path / "out")).batches(128))
    np.testing.assert_array_equal(found.ids, EXPECTED.ids)


URLS = {
    "file:///no/such/folder/a.parquet": "a.parquet: no such file",
    "file:///no/such/folder/a.csv": "a.csv: no such file",
    "nowhere://bucket/a.parquet": "nowhere://bucket/a.parquet: (nowhere:// needs|cannot be)",
}


@pytest.mark.parametrize("url, message", URLS.items())
def test_a_url_that_cannot_be_read_is_refused_by_name(url, message):
    with pytest.raises(DataError, match=message):
        open_source(url)


class Relation:
    """What DuckDB gives: a query that runs whenever its rows are asked for."""

    __module__ = "duckdb"
    runs = 0

    def __arrow_c_stream__(self, requested_schema=None):
        self.runs += 1
        return TABLE.__arrow_c_stream__(requested_schema)


def test_a_query_is_run_anew_and_never_held_as_a_whole():
    relation = Relation()
    assert_read(relation)
    assert relation.runs == 4  # for the columns, and for the rows
    assert open_source(relation).num_rows is None


def test_a_dataset_of_arrow_is_read_piece_by_piece(tmp_path):
    ds.write_dataset(TABLE, tmp_path / "a", format="parquet", partitioning=["y"])
    dataset = ds.dataset(tmp_path / "a", partitioning=["y"])
    encoder = Encoder.fit(dataset, schema=SCHEMA, min_count=1)
    assert sorted(encoder.values("c")[2:]) == sorted(ENCODER.values("c")[2:])
    some = joined(Dataset(dataset.filter(ds.field("n") < 10), encoder).batches(4))
    assert len(some) == 10 and some.labels.sum() == 5


class Exported:
    """What implements half of Arrow's PyCapsule interface: one array, not a stream of them."""

    def __arrow_c_array__(self, requested_schema=None):
        return TABLE.combine_chunks().to_batches()[0].__arrow_c_array__(requested_schema)


def test_an_array_of_the_capsule_interface_is_a_table():
    assert_read(Exported())


def test_dictionaries_of_string_views_are_read():
    """As polars exports categoricals."""
    codes = pa.array([i % 9 for i in range(1000)], pa.uint32())
    views = pa.array([f"v{i}" for i in range(9)], pa.string_view())
    table = TABLE.set_column(2, "c", pa.DictionaryArray.from_arrays(codes, views))
    assert_read({name: table[name] for name in "yn"} | {"c": table["c"].to_pylist()})

    class Frame:
        __arrow_c_stream__ = table.__arrow_c_stream__

    assert_read(Frame())
    encoder = Encoder.fit(Frame(), schema=SCHEMA, min_count=1)
    assert encoder.fingerprint == ENCODER.fingerprint


def test_a_pattern_names_files_by_url(tmp_path):
    for day in ("day=1", "day=2"):
        (tmp_path / day).mkdir()
        pq.write_table(TABLE, tmp_path / day / "a.parquet")
    assert_read(f"file://{tmp_path}/*=2/*.parquet")
    with pytest.raises(DataError, match=r"file://.*=3/\*: the pattern matches no file"):
        open_source(f"file://{tmp_path}/*=3/*")


def test_batches_of_any_kind_have_nothing_to_learn():
    with pytest.raises(DataError, match="a generator is read as batches, .*; give files, a table"):
        Encoder.fit(row for row in TABLE.to_pylist())


def test_frames_of_polars_and_relations_of_duckdb_are_read():
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    frame = polars.from_arrow(TABLE)
    assert_read(frame.with_columns(polars.col("c").cast(polars.Categorical)))
    assert_read(duckdb.from_arrow(TABLE))


def test_a_data_set_of_hugging_face_is_read():
    datasets = pytest.importorskip("datasets")
    loaded = datasets.Dataset(TABLE)
    assert_read(loaded)
    assert_read(loaded.to_iterable_dataset())
    assert_read(loaded.to_iterable_dataset().map(lambda row: row))  # its types are not known
    with pytest.raises(DataError, match="several splits: give one"):
        open_source(datasets.DatasetDict(train=loaded))


class Streamed:
    """As a streamed data set of Hugging Face's, which have no types after a `map`."""

    __module__ = "datasets.iterable_dataset"
    features = None

    def __init__(self, *pieces):
        self.pieces = pieces

    def with_format(self, _):
        return self

    def iter(self, rows):
        for piece in self.pieces:
            yield from (piece.slice(first, rows) for first in range(0, len(piece), rows))


def test_a_streamed_data_set_is_read():
    assert_read(Streamed(TABLE))


LISTS = [None, [1, 2], [], [2, None]]
BAGS = pa.table({"y": [0, 1, 0, 1], "n": [1, 2, 3, 4], "c": LISTS})
MORE = pa.table({"y": [0, 1], "n": [1.5, None]})


@pytest.mark.parametrize("column", [None, pa.nulls(2)], ids=["that lacks", "without values"])
def test_lists_of_a_stream_may_begin_with_nulls_and_be_absent_later(column):
    more = MORE if column is None else MORE.append_column("c", column)
    fitted = Encoder.fit(BAGS, schema=SCHEMA, min_count=1)
    streamed = Encoder.fit(Streamed(BAGS, more), schema=SCHEMA, min_count=1)
    assert streamed.features[0].is_bag and streamed.values("c") == fitted.values("c")
    batches = Dataset(Streamed(BAGS, more), fitted).batches(3)
    found = [batch.ids[0].offsets.tolist() for batch in batches]
    assert found == [[0, 0, 2, 2], [0, 2, 2, 2]]


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ([None], [[1]], "lists of integers, in earlier rows nulls"),
        ([[1]], ["a"], "text, in earlier rows lists of integers"),
        ([1], ["a"], "text, in earlier rows integers"),
        (["a"], [1.0], "floats, in earlier rows text"),
    ],
)
def test_later_rows_of_a_stream_have_the_types_of_the_first(first, then, message):
    pieces = (pa.table({"y": [0], "n": [1], "c": column}) for column in (first, then))
    with pytest.raises(DataError, match=f"^stream: column c: holds {message}; .*cast"):
        Encoder.fit(Streamed(*pieces), schema=SCHEMA, min_count=1)


@pytest.mark.parametrize("features", [None, pa.table({"y": [0], "n": [1], "c": ["a"]})])
def test_a_stream_without_rows_is_refused(features):
    empty = Streamed()
    empty.features = features and SimpleNamespace(arrow_schema=features.schema)
    for read in (
        lambda: [*Dataset(empty, ENCODER).batches(1)],
        lambda: Encoder.fit(empty, schema=SCHEMA),
    ):
        with pytest.raises(DataError, match="stream: no rows"):
            read()


ODD_NAMES = ("a b", "é", "p%20x", "q?x", "h#x", "[x]", "-x", "x=y z", "x+y", "new\nline")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_folder_by_url_may_hold_odd_names(name, tmp_path):
    folder = tmp_path / name
    folder.mkdir()
    pq.write_table(TABLE, folder / f"{name}.parquet")
    assert_read(f"file://{tmp_path}")
    assert_read(f"file://{quote(str(folder), safe='/+=')}")
    assert_read(f"file://{quote(str(folder / name), safe='/')}.parquet")
    assert_read(f"file://{tmp_path}/*.parquet")


@pytest.mark.parametrize("name", ["a b", "é", "h#x", "[x]", "x=y z"])
def test_a_url_needs_no_escapes(name, tmp_path):
    pq.write_table(TABLE, tmp_path / f"{name}.parquet")
    assert_read(f"file://{tmp_path}/{name}.parquet")
    assert_read(f"file://{tmp_path}/{name[:1].replace('[', '*')}*.parquet")


def test_partitions_by_url_are_those_by_path(tmp_path):
    """Writers escape the value of a partition; a URL escapes that."""
    folder = tmp_path / "t=12%3A30 x"
    folder.mkdir()
    pq.write_table(TABLE.drop_columns("c"), folder / "a.parquet")
    schema = Schema("y", ("n",), ("t",))
    for data in (tmp_path, f"file://{tmp_path}"):
        assert Encoder.fit(data, schema=schema, min_count=1).values("t")[2:] == ["12:30 x"]


@pytest.mark.parametrize("path", ["a\0b.parquet", "file:///tmp/a\0b.parquet"])
def test_a_path_with_a_null_byte_is_refused(path):
    with pytest.raises(DataError, match=r"a\\x00b\.parquet': no path has a null byte$"):
        open_source(path)
