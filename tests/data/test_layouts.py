# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Dataset, Encoder
from tests.data.criteo_tables import (
    LAYOUTS,
    assert_batches_equal,
    category_names,
    dense_names,
    joined,
    make_rows,
    table,
    write,
)

ROWS = make_rows()
REFERENCE = Encoder.fit(table(ROWS), min_count=3)


def every_layout(test):
    return pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS.keys())(test)


def rows_of(name):
    """The slice layout holds the same rows, beginning in the middle."""
    if name is LAYOUTS["a sliced table"]:
        return np.r_[30:60, 0:30]
    return np.arange(60)


@every_layout
def test_one_encoder_reads_every_layout_alike(make):
    expected = REFERENCE.encode(table(ROWS))
    found = REFERENCE.encode(make(ROWS))
    order = rows_of(make)
    np.testing.assert_array_equal(found.ids, expected.ids[order])
    np.testing.assert_array_equal(found.dense, expected.dense[order])
    np.testing.assert_array_equal(found.labels, expected.labels[order])


@every_layout
def test_every_layout_teaches_the_same_encoding(make):
    found = Encoder.fit(make(ROWS), min_count=3)
    assert found.rows == REFERENCE.rows
    assert_batches_equal(found.encode(table(ROWS)), REFERENCE.encode(table(ROWS)))


@every_layout
def test_every_layout_survives_parquet(make, tmp_path):
    found = make(ROWS)
    if not isinstance(found, pa.Table):
        pytest.skip("not a table")
    path = write(tmp_path / "rows.parquet", found)
    pieces = joined(Dataset(path, REFERENCE).batches(7))
    assert_batches_equal(pieces, REFERENCE.encode(found))


def test_a_column_dictionary_encoded_on_reading_gives_the_same_ids(tmp_path):
    path = write(tmp_path / "rows.parquet", table(ROWS))
    found = pq.read_table(path, read_dictionary=category_names())
    assert_batches_equal(REFERENCE.encode(found), REFERENCE.encode(table(ROWS)))


def test_nan_is_missing_where_the_user_says_so():
    encoder = Encoder.fit(table(ROWS), min_count=3, nan="missing")
    arrays = {
        name: np.array(values, dtype=np.float64) for name, values in ROWS.items() if "C" not in name
    }
    arrays |= {
        name: np.array([np.nan if v is None else int(v, 16) for v in ROWS[name]])
        for name in category_names()
    }
    assert np.isnan(arrays["I1"]).any() and np.isnan(arrays["C1"]).any()
    assert_batches_equal(encoder.encode(arrays), encoder.encode(table(ROWS)))


def test_big_endian_and_strided_columns_are_read():
    wide = {name: np.arange(120, dtype=">i4")[::2] for name in ["label", *dense_names()]}
    wide["label"] = wide["label"] % 2 * 0
    wide |= {name: np.arange(60) for name in category_names()}
    batch = REFERENCE.encode(wide)
    np.testing.assert_allclose(batch.dense[:, 0], np.log(np.arange(0, 120, 2) + 3.0), rtol=1e-6)


def test_a_column_of_nulls_only_is_all_missing():
    columns = ROWS | {"I1": [None] * 60, "C1": [None] * 60}
    nulls = table(columns).drop_columns(["I1", "C1"])
    for name in ("I1", "C1"):
        nulls = nulls.append_column(name, pa.nulls(60))
    assert (REFERENCE.encode(nulls).ids[:, 0] == 0).all()
    assert_batches_equal(REFERENCE.encode(nulls), REFERENCE.encode(table(columns)))
    assert Encoder.fit(nulls).rows[0] == 2
