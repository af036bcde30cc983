# SPDX-License-Identifier: Apache-2.0
"""Every way that data can be wrong, and the one line that the user is told."""

import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Batch, Dataset, Encoder, open_source, profile
from sparsetrain.errors import ConfigError, DataError
from tests.data.criteo_tables import ROWS, encoded_table, make_rows, table, write

GOOD = make_rows()
ENCODER = Encoder.fit(table(GOOD), min_count=2)


def set_value(name, row, value):
    columns = {key: list(values) for key, values in GOOD.items()}
    columns[name][row] = value
    return columns


def floats(columns):
    return table(columns, dense=pa.float64(), label=pa.float64())


def as_text(columns):
    return table(
        {k: [None if v is None else str(v) for v in vs] for k, vs in columns.items()},
        *[pa.string()] * 3,
    )


VALUES = {
    "a null label": (
        lambda: table(set_value("label", 37, None)),
        "row group 2, row 37, column label: the label is null; drop the row or give it 0 or 1",
    ),
    "an empty label": (
        lambda: as_text(set_value("label", 37, "")),
        "row group 2, row 37, column label: the label is null; drop the row or give it 0 or 1",
    ),
    "label 2": (
        lambda: table(set_value("label", 0, 2)),
        "row group 0, row 0, column label: the label is 2; it must be 0 or 1",
    ),
    "label 0.5": (
        lambda: floats(set_value("label", 16, 0.5)),
        "row group 1, row 16, column label: the label is 0.5; it must be 0 or 1",
    ),
    "a label that is a word": (
        lambda: as_text(set_value("label", 3, "yes")),
        "row group 0, row 3, column label: 'yes' is not a number",
    ),
    "NaN in a dense column": (
        lambda: floats(set_value("I2", 40, float("nan"))),
        "row group 2, row 40, column I2: the value is NaN; "
        "if it stands for a missing value, give a null (None), or learn the encoding with "
        "nan='missing'",
    ),
    "an infinity in a dense column": (
        lambda: floats(set_value("I2", 40, float("inf"))),
        "row group 2, row 40, column I2: the value is infinite; replace it by a null or a number",
    ),
    "a word in a dense column": (
        lambda: as_text(set_value("I3", 59, "1,5")),
        "row group 3, row 59, column I3: '1,5' is not a number",
    ),
    "text NaN in a dense column": (
        lambda: as_text(set_value("I3", 59, "nan")),
        "row group 3, row 59, column I3: the value is NaN; "
        "if it stands for a missing value, give a null (None), or learn the encoding with "
        "nan='missing'",
    ),
    "a category that is not a whole number": (
        lambda: table(
            set_value("C2", 20, 1.5)
            | {f"C{i}": [1.0] * ROWS for i in (1, 3, 4)}
            | {"C2": [1.5 if row == 20 else 1.0 for row in range(ROWS)]},
            category=pa.float64(),
        ),
        "row group 1, row 20, column C2: category 1.5 is not a whole number below 2**53; "
        "make the column dense, derive buckets of it in a schema (boundaries, quantiles or log), "
        "or store it as text",
    ),
}


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("make, message", VALUES.values(), ids=VALUES.keys())
def test_a_bad_value_is_named_by_file_row_group_row_and_column(make, message, prefetch, tmp_path):
    path = write(tmp_path / "bad.parquet", make())
    with pytest.raises(DataError) as caught:
        list(Dataset(path, ENCODER).batches(8, prefetch=prefetch))
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize("column", ["label", "I1", "C1"])
@pytest.mark.parametrize("code", [7, -1])
def test_a_code_outside_its_dictionary_is_named(column, code):
    good = pa.table({"label": [0, 1, 0], "I1": [1.0, 2.0, 3.0], "C1": ["a", "b", "a"]})
    values = good[column].combine_chunks().dictionary_encode().dictionary
    codes = pa.array([0, None if column == "C1" else 0, code], pa.int32())
    damaged = pa.DictionaryArray.from_arrays(codes, values, safe=False)
    table = good.set_column(good.column_names.index(column), column, damaged)
    with pytest.raises(DataError, match=f"row 2, column {column}: code {code} is outside its"):
        Encoder.fit(good).encode(table)


def test_a_code_in_a_bag_outside_its_dictionary_is_named():
    good = pa.table({"label": [0, 1, 0], "I1": [1, 2, 3], "C1": [["a"], ["b", "a"], []]})
    codes = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 7], pa.int32()), pa.array(["a", "b"]), safe=False
    )
    bags = pa.ListArray.from_arrays(pa.array([0, 1, 3, 3]), codes)
    with pytest.raises(DataError, match="row 1, column C1: code 7 is outside its dictionary of 2"):
        Encoder.fit(good).encode(good.set_column(2, "C1", bags))


def test_a_bad_value_is_found_in_shuffled_order_too(tmp_path):
    path = write(tmp_path / "bad.parquet", table(set_value("label", 37, 5)))
    with pytest.raises(DataError, match=r"row group 2, row 37, column label: the label is 5"):
        list(Dataset(path, ENCODER).batches(8, seed=3))


def test_a_bad_value_in_memory_is_named_by_row_and_column():
    with pytest.raises(DataError, match=r"^mine: row 37, column label: the label is 5; it must be"):
        ENCODER.encode(table(set_value("label", 37, 5)), where="mine")
    with pytest.raises(
        DataError, match=r"^table: row 37, column label: the label is 5; it must be"
    ):
        list(Dataset(table(set_value("label", 37, 5)), ENCODER).batches(8))


def put(name, row, value, type_=None):
    found = encoded_table()
    values = found[name].to_pylist()
    values[row] = value
    index = found.column_names.index(name)
    return found.set_column(index, name, pa.array(values, type_ or found[name].type))


ENCODED = {
    "an id outside its table": (
        lambda: put("C3", 17, 10),
        "row group 1, row 17, column C3: id 10 is outside its table of 10 rows; "
        "give the rows of each table as sizes when fitting the encoder",
    ),
    "a null id": (
        lambda: put("C3", 17, None),
        "row group 1, row 17, column C3: the id is null in already encoded data; "
        "if it is raw, use treat_as='raw'",
    ),
    "a negative id": (
        lambda: put("C3", 17, -1),
        "row group 1, row 17, column C3: id -1 is not in 0..2147483647; "
        "if the column holds hashes rather than ids, use treat_as='raw'",
    ),
    "a hash": (
        lambda: put("C3", 17, 0xFFFFFFFF, pa.int64()),
        "row group 1, row 17, column C3: id 4294967295 is not in 0..2147483647; "
        "if the column holds hashes rather than ids, use treat_as='raw'",
    ),
    "a null dense value": (
        lambda: put("I2", 17, None),
        "row group 1, row 17, column I2: the value is null or NaN in already encoded data; "
        "if it is raw, use treat_as='raw'",
    ),
    "a dense value beyond float32": (
        lambda: put("I2", 17, 1e300, pa.float64()),
        "row group 1, row 17, column I2: the value is too large for float32 in already encoded "
        "data; if it is raw, use treat_as='raw'",
    ),
}


@pytest.mark.parametrize("make, message", ENCODED.values(), ids=ENCODED.keys())
def test_a_bad_value_of_encoded_data_is_named(make, message, tmp_path):
    path = write(tmp_path / "bad.parquet", make())
    encoder = Encoder.fit(encoded_table(), sizes=[10] * 4)
    with pytest.raises(DataError) as caught:
        list(Dataset(path, encoder).batches(8))
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize("case", ["a null id", "a negative id", "a hash"])
def test_fitting_on_encoded_data_names_a_bad_id(case, tmp_path):
    make, message = ENCODED[case]
    path = write(tmp_path / "bad.parquet", make())
    with pytest.raises(DataError) as caught:
        Encoder.fit(path)
    assert str(caught.value) == f"{path}: {message}"


def make_file(path, kind):
    good = write(path, table(GOOD))
    data = path.read_bytes()
    contents = {
        "empty": b"",
        "text": b"0\t1\t2\n",
        "short": b"PAR",
        "truncated": data[: len(data) // 2],
        "damaged footer": data[:-200] + bytes(180) + data[-20:],
        "encrypted": data[:-4] + b"PARE",
    }
    path.write_bytes(contents[kind])
    return good


FILES = {
    "empty": "the file is empty (0 bytes)",
    "text": "not a parquet file (it begins with b'0\\t1\\t'); convert it to parquet first",
    "short": "not a parquet file (it begins with b'PAR'); convert it to parquet first",
    "truncated": "the parquet file is truncated (its end is missing); copy or write it again",
    "encrypted": "the parquet file is encrypted; decrypt it first",
    "damaged footer": "the parquet footer is damaged (",
}


@pytest.mark.parametrize("kind, message", FILES.items(), ids=FILES.keys())
def test_a_file_that_is_no_parquet_is_refused_when_opened(kind, message, tmp_path):
    path = make_file(tmp_path / "bad.parquet", kind)
    with pytest.raises(DataError) as caught:
        open_source(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


FOREIGN = {
    "train.csv.zip": (b"PK\x03\x04" + bytes(60), "is a zip archive; unpack it first"),
    "day_0": (b"PK\x03\x04\t" + bytes(60), "is a zip archive; unpack it first"),
    "train.tsv.bz2": (b"BZh9" + bytes(60), r"after line 0: cannot be read on \(.*; copy it"),
    "train.tsv": (
        b"\x28\xb5\x2f\xfd" + bytes(60),
        r"after line 0: cannot be read on \(.*; copy it",
    ),
    "day_0_dense.npy": (b"\x93NUMPY" + bytes(60), "is a NumPy array; give its batches"),
    "train.h5": (b"\x89HDF\r\n" + bytes(60), "is an HDF5 file; write its columns"),
    "train.parquet": (b"ARROW1" + bytes(60), "is an Arrow file; give the library its table"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_other_kinds_and_damaged_ones_are_called_what_they_are(name, tmp_path):
    path, (content, message) = tmp_path / name, FOREIGN[name]
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{name}: {message}"):
        open_source(path)


def test_a_flipped_bit_is_found_by_the_page_checksum(tmp_path):
    path = tmp_path / "bad.parquet"
    pq.write_table(
        table(GOOD), path, compression="none", use_dictionary=False, write_page_checksum=True
    )
    data = bytearray(path.read_bytes())
    # A value that is neither the least nor the greatest: page headers hold those too.
    data[data.index(b"68fd1e64")] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        list(Dataset(path, ENCODER).batches(8))
    message = str(caught.value)
    assert message.startswith(f"{path}: row group 0: the data cannot be read (")
    assert message.endswith("; copy or write the file again")
    assert "\n" not in message


def test_a_file_that_vanishes_after_opening_is_an_error_with_its_name(tmp_path):
    path = write(tmp_path / "gone.parquet", table(GOOD))
    dataset = Dataset(path, ENCODER)
    os.remove(path)
    with pytest.raises(DataError, match=r"gone\.parquet: row group 0: the data cannot be read \("):
        list(dataset.batches(8))


SOURCES = {
    "a path that is not there": (lambda d: d / "no.parquet", "no.parquet: no such file"),
    "a folder without parquet": (
        lambda d: d / "folder",
        "folder: the folder holds no *.parquet, *.pq, *.parq, *.tsv, *.txt or *.csv file; give",
    ),
    "a pattern that matches nothing": (
        lambda d: str(d / "*.pq"),
        "*.pq: the pattern matches no file",
    ),
    "no path": (lambda d: [], "no path given, and no rows"),
    "a file of no rows": (lambda d: d / "norows.parquet", "norows.parquet: no rows"),
    "a table of no rows": (lambda d: table(GOOD).slice(0, 0), "table: no rows"),
    "a dict without any column": (
        lambda d: {"x": [1]},
        "table: no label, dense (I1.., int_0..) or category (C1.., cat_0..) column",
    ),
    "columns of unequal length": (
        lambda d: {"I1": [1, 2], "C1": [1]},
        "table: columns differ in length, from 1 to 2 rows",
    ),
    "a frame with a column twice": (
        lambda d: pd.concat(
            [pd.DataFrame({"label": [0], "C1": [1]}), pd.Series([1], name="C1")], axis=1
        ),
        "table: column C1: the column is there twice; drop one",
    ),
    "a column that is none": (
        lambda d: {"I1": np.zeros((2, 2))},
        "table: column I1: the column cannot be read (",
    ),
    "tables one by one": (
        lambda d: [table(GOOD), table(GOOD)],
        "cannot read rows from a list of tables; give one table, as pyarrow.concat_tables or "
        "pandas.concat makes it",
    ),
    "a number": (
        lambda d: 5,
        "cannot read rows from a int; give paths of parquet or text files, an Arrow table, "
        "a DataFrame, a dict of arrays, a list of rows or batches",
    ),
}


@pytest.mark.parametrize("make, message", SOURCES.values(), ids=SOURCES.keys())
def test_a_source_without_rows_is_refused(make, message, tmp_path):
    (tmp_path / "folder").mkdir()
    write(tmp_path / "norows.parquet", table(GOOD).slice(0, 0))
    with pytest.raises(DataError) as caught:
        open_source(make(tmp_path))
    assert message in str(caught.value)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="a superuser may read it all")
def test_a_file_that_may_not_be_read_is_refused(tmp_path):
    path = write(tmp_path / "closed.parquet", table(GOOD))
    os.chmod(path, 0)
    with pytest.raises(DataError, match=r"closed\.parquet: cannot be read: Permission denied"):
        open_source(path)


def test_a_file_of_other_columns_is_refused_before_any_row_is_read(tmp_path):
    paths = [
        write(tmp_path / "a.parquet", table(GOOD)),
        write(tmp_path / "b.parquet", table(GOOD).drop_columns(["C2"])),
    ]
    with pytest.raises(DataError) as caught:
        Dataset(paths, ENCODER)
    assert str(caught.value) == (
        f"{paths[1]}: column C2: the category column is missing; the nearest name there is C1"
    )


def test_encoding_no_rows_is_refused():
    with pytest.raises(DataError, match="^mine: no rows"):
        ENCODER.encode(table(GOOD).slice(0, 0), where="mine")
    with pytest.raises(DataError, match="^mine: no rows"):
        ENCODER.encode([], where="mine")


def test_an_iterator_of_batches_can_be_used_once():
    dataset = Dataset(iter([Batch([[0.0]], [[1]])]), None)
    assert len(list(dataset.batches(8))) == 1
    with pytest.raises(DataError, match="batches: no batches; an iterator can be read only once"):
        list(dataset.batches(8))


def test_something_else_among_batches_is_refused():
    with pytest.raises(DataError, match="batches: item 1 is a int; it must be a Batch"):
        list(Dataset([Batch([[0.0]], [[1]]), 5], None).batches(8))


def test_batches_have_no_columns_to_describe():
    with pytest.raises(DataError, match="batch: a list is read as batches.* no columns; give"):
        profile(Batch([[0.0]], [[1]]))


def test_a_stream_can_be_read_once():
    stream = Dataset(table(GOOD).to_reader(), ENCODER)
    assert sum(map(len, stream.batches(8))) == ROWS
    with pytest.raises(
        DataError, match="record batches: the reader was read already; give a table"
    ):
        list(stream.batches(8))


def test_a_stream_of_no_rows_is_refused_at_its_end():
    with pytest.raises(DataError, match="record batches: no rows"):
        list(Dataset(table(GOOD).slice(0, 0).to_reader(), ENCODER).batches(8))


def test_rows_need_an_encoder():
    with pytest.raises(ConfigError, match="table: rows need an encoder; fit one with Encoder.fit"):
        Dataset(table(GOOD), None)


ARGUMENTS = {"batch_size": 0, "seed": -1, "epoch": -1, "prefetch": -1, "buffer_rows": 0}


@pytest.mark.parametrize("name, value", ARGUMENTS.items())
def test_an_argument_out_of_range_is_refused_at_once(name, value):
    arguments = {"batch_size": 8, name: value}
    with pytest.raises(ConfigError, match=f"{name} is {value}; it must be [01] or more"):
        Dataset(table(GOOD), ENCODER).batches(**arguments)
