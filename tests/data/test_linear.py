# SPDX-License-Identifier: Apache-2.0
"""Dense columns that a schema calls linear: shifted and scaled, without a logarithm."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Dataset, Encoder, Linear, Schema, convert_files
from sparsetrain.errors import ConfigError, DataError

SCHEMA = Schema(
    "y", ("price", "degrees"), ("site",), linear={"degrees": Linear(center=10, scale=np.float32(4))}
)


def rows(degrees, **more):
    count = len(degrees)
    given = {"y": [0] * count, "price": [1.5] * count, "degrees": degrees, "site": ["a"] * count}
    return pa.table({**given, **more})


def test_a_linear_column_is_shifted_and_scaled_and_the_others_are_not():
    encoder = Encoder.fit(rows([0.0]), schema=SCHEMA)
    dense = encoder.encode(rows([-50.0, 10.0, 30.0])).dense
    np.testing.assert_array_equal(dense[:, 1], [-15, 0, 5])
    np.testing.assert_array_equal(dense[:, 0], np.float32(np.log(4.5)))


def test_what_is_missing_in_a_linear_column_stands_for_its_center():
    encoder = Encoder.fit(rows([0.0]), schema=SCHEMA, dense_fill=7.0, missing_flags=True)
    dense = encoder.encode(rows([None, 14.0])).dense
    np.testing.assert_array_equal(dense[:, [1, 3]], [[0, 1], [1, 0]])


def test_the_law_is_kept_with_the_encoder_and_by_convert(tmp_path):
    pq.write_table(rows([-4.0, None, 6.0, 2.0]), tmp_path / "raw.parquet")
    encoder = Encoder.fit(tmp_path / "raw.parquet", schema=SCHEMA, min_count=1)
    manifest, arrays = encoder.to_state()
    read = Encoder.from_state(json.loads(json.dumps(manifest)), arrays)
    assert read.fingerprint == encoder.fingerprint
    convert_files(tmp_path / "raw.parquet", tmp_path / "out", schema=SCHEMA, min_count=1)
    for data in (tmp_path / "raw.parquet", tmp_path / "out"):
        (batch,) = Dataset(data, read if data.suffix else Encoder.fit(data)).batches(8)
        np.testing.assert_array_equal(batch.dense[:, 1], [-3.5, 0, -1, -2])


@pytest.mark.parametrize("text", [False, True])
def test_a_number_too_large_for_float32_is_a_bad_row(tmp_path, text):
    raw = tmp_path / ("raw.csv" if text else "raw.parquet")
    (csv.write_csv if text else pq.write_table)(rows([1.0, 1e300, 2.0, None]), raw)
    with pytest.raises(DataError, match="column degrees: .*1e\\+300, shifted and scaled, is too"):
        convert_files(raw, tmp_path / "strict", schema=SCHEMA)
    summary = convert_files(raw, tmp_path / "out", schema=SCHEMA, bad_rows="skip", min_count=1)
    assert summary["rows"] == 3 and summary["bad_rows_by_column"] == {"degrees": 1}
    (batch,) = Dataset(tmp_path / "out", Encoder.fit(tmp_path / "out")).batches(8)
    np.testing.assert_array_equal(batch.dense[:, 1], [-2.25, -2, 0])


def test_a_schema_file_says_it(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(
        'label = "y"\ndense = ["price", "degrees"]\ncategories = ["site"]\n'
        "[linear.degrees]\ncenter = 10\nscale = 4\n"
    )
    assert Schema.read(path) == SCHEMA == Schema.from_dict(SCHEMA.to_dict())


def test_it_is_refused_where_it_cannot_be():
    with pytest.raises(ConfigError, match="linear.degrees is for raw data, but these data"):
        Encoder.fit(rows([0.0], site=[3]), schema=SCHEMA, treat_as="encoded")
    encoder = Encoder.fit(rows([0.0]), schema=SCHEMA)
    with pytest.raises(DataError, match="row 1, column degrees: 1e.300, shifted and scaled, is to"):
        encoder.encode(rows([0.0, 1e300]))
