# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Dataset, Encoder, Schema, convert_files, open_source, split_time
from tests.data.criteo_tables import joined

SCHEMA = Schema("click", categories=("user", "site", "hour"), time="dt")
FOLDERS = {"dt=2024-05-01/site=a%2Fb/hour=7": 3, "dt=2024-05-02/site=c/hour=08": 4}
FOLDERS["dt=2024-05-03/site=__HIVE_DEFAULT_PARTITION__/hour="] = 2


@pytest.fixture(params=["parquet", "csv"])
def folder(tmp_path, request):
    for number, (name, rows) in enumerate(FOLDERS.items()):
        part = tmp_path / "log" / name
        part.mkdir(parents=True)
        table = pa.table({"click": [0, 1, 0, 1][:rows], "user": [f"u{number}"] * rows})
        write = pq.write_table if request.param == "parquet" else csv.write_csv
        write(table, part / f"0.{request.param}")
    return tmp_path / "log"


def test_folders_named_like_columns_are_columns_of_text(folder):
    encoder = Encoder.fit(folder, schema_file=SCHEMA, min_count=1)
    assert encoder.values("site") == [None, None, "c", "a/b"]
    assert encoder.values("hour") == [None, None, "08", 7]
    ids = joined(Dataset(folder, encoder).batches(4)).ids
    assert ids[:, 1].tolist() == [3] * 3 + [2] * 4 + [0] * 2
    before, later = split_time(folder, "dt", "2024-05-02", schema=SCHEMA)
    found = [len(joined(Dataset(half, encoder).batches(4))) for half in (before, later)]
    assert found == [3, 6]


def test_what_is_converted_has_the_columns_of_its_folders(folder, tmp_path):
    encoder = Encoder.fit(folder, schema_file=SCHEMA, min_count=1)
    convert_files(folder, tmp_path / "out", schema_file=SCHEMA, min_count=1)
    raw = joined(Dataset(folder, encoder).batches(4))
    converted = joined(Dataset(tmp_path / "out", Encoder.fit(tmp_path / "out")).batches(4))
    np.testing.assert_array_equal(converted.ids, raw.ids)


def test_a_column_of_the_file_goes_before_that_of_its_path(tmp_path):
    (tmp_path / "user=9").mkdir()
    pq.write_table(pa.table({"user": [1, 2]}), tmp_path / "user=9" / "0.parquet")
    (part,) = open_source(tmp_path).parts
    assert part.schema.names == ["user"] and part.schema.field("user").type == pa.int64()
