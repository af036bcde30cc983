# SPDX-License-Identifier: Apache-2.0
from itertools import combinations

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import (
    Dataset,
    Encoder,
    Schema,
    convert_files,
    infer,
    open_source,
    split_time,
)
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


def test_folders_named_like_columns_are_columns(folder):
    encoder = Encoder.fit(folder, schema=SCHEMA, min_count=1)
    assert encoder.values("site") == [None, None, "c", "a/b"]
    assert encoder.values("hour") == [None, None, 8, 7]
    ids = joined(Dataset(folder, encoder).batches(4)).ids
    assert ids[:, 1].tolist() == [3] * 3 + [2] * 4 + [0] * 2
    before, later = split_time(folder, "dt", "2024-05-02", schema=SCHEMA)
    found = [len(joined(Dataset(half, encoder).batches(4))) for half in (before, later)]
    assert found == [3, 6]


def write_log(folder, names, suffix="parquet"):
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        write = {"parquet": pq.write_table, "csv": csv.write_csv}[suffix]
        write(pa.table({"click": [0, 1], "user": [number] * 2}), folder / name / f"0.{suffix}")
    return folder


MONTHS = Schema("click", categories=("user", "month"))


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("spelled", ["{:02d}", "{:08d}", "{}"])
def test_partitions_of_whole_numbers_are_the_numbers_that_a_frame_has(tmp_path, spelled, suffix):
    folder = write_log(tmp_path, [f"month={spelled.format(n)}" for n in (9, 10, 11)], suffix)
    learnt = Encoder.fit(folder, schema=MONTHS, min_count=1)
    assert sorted(learnt.values("month")[2:]) == [9, 10, 11]
    frame = {"click": [0, 1], "user": [1, 1], "month": [9, 12]}
    by_frame = learnt.encode(frame).ids[:, 1].tolist()
    alone = folder / f"month={spelled.format(9)}"
    assert joined(Dataset(alone, learnt).batches(4)).ids[:, 1].tolist() == [by_frame[0]] * 2
    assert by_frame[1] == 1


def test_minus_signs_and_missing_partitions_are_numbers_too(tmp_path):
    names = ["month=-01", "month=__HIVE_DEFAULT_PARTITION__", "month=0"]
    learnt = Encoder.fit(write_log(tmp_path / "a", names), schema=MONTHS, min_count=1)
    assert sorted(learnt.values("month")[2:]) == [-1, 0]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("values", [("01", "02", "0A"), ("01", "may"), ("007", "7", "-08")])
def test_which_files_are_read_together_changes_no_id(tmp_path, values, suffix):
    folder = write_log(tmp_path / "log", [f"month={value}" for value in values], suffix)
    folders = sorted(folder.iterdir())
    learnt = Encoder.fit(folder, schema=MONTHS, min_count=1)
    together = {f: read_ids([f], learnt) for f in folders}
    assert all(id_ > 1 for ids in together.values() for id_ in ids)
    for count in range(1, len(folders) + 1):
        for some in combinations(folders, count):
            expected = [id_ for f in some for id_ in together[f]]
            assert read_ids([*some], learnt) == expected
            out = tmp_path / "-".join(f.name for f in some)
            convert_files([*some], out, encoder=learnt, workers=1)
            assert joined(Dataset(out, learnt).batches(9)).ids[:, 1].tolist() == expected


def read_ids(files, encoder):
    return joined(Dataset(files, encoder).batches(9)).ids[:, 1].tolist()


def test_a_number_beside_text_loses_its_zeros_too(tmp_path):
    folder = write_log(tmp_path / "log", ["month=01", "month=may"])
    for source in (folder, sorted(folder.iterdir())):
        learnt = Encoder.fit(source, schema=MONTHS, min_count=1)
        assert set(learnt.values("month")[2:]) == {1, "may"}
    convert_files(folder, tmp_path / "out", schema=MONTHS, min_count=1, workers=1)
    assert set(Encoder.fit(tmp_path / "out").values("month")[2:]) == {1, "may"}


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_converted_partitions_are_numbers(tmp_path, suffix):
    folder = write_log(tmp_path / "log", ["month=01", "month=12"], suffix)
    convert_files(folder, tmp_path / "out", schema=MONTHS, min_count=1, workers=1)
    assert set(Encoder.fit(tmp_path / "out").values("month")[2:]) == {1, 12}


def test_padded_partitions_are_inferred_to_be_numbers(tmp_path):
    folder = write_log(tmp_path, [f"month={n:02d}" for n in (1, 2, 3)])
    assert "month" in infer(folder, "click").schema.wanted


def test_what_is_converted_has_the_columns_of_its_folders(folder, tmp_path):
    encoder = Encoder.fit(folder, schema=SCHEMA, min_count=1)
    convert_files(folder, tmp_path / "out", schema=SCHEMA, min_count=1)
    raw = joined(Dataset(folder, encoder).batches(4))
    converted = joined(Dataset(tmp_path / "out", Encoder.fit(tmp_path / "out")).batches(4))
    np.testing.assert_array_equal(converted.ids, raw.ids)


def test_converted_data_in_a_folder_named_like_a_column_keep_their_encoder(tmp_path):
    folder = write_log(tmp_path / "log", ["month=01", "month=12"])
    out = tmp_path / "run=1" / "out"
    convert_files(folder, out, schema=MONTHS, min_count=1)
    assert set(Encoder.fit(out).values("month")[2:]) == {1, 12}
    assert open_source(out).parts[0].is_converted


def test_a_column_of_the_file_goes_before_that_of_its_path(tmp_path):
    (tmp_path / "user=9").mkdir()
    pq.write_table(pa.table({"user": [1, 2]}), tmp_path / "user=9" / "0.parquet")
    (part,) = open_source(tmp_path).parts
    assert part.schema.names == ["user"] and part.schema.field("user").type == pa.int64()
