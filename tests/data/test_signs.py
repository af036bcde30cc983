# SPDX-License-Identifier: Apache-2.0
"""A number below 0 is one value from every width and form; 32-bit hashes alone are unsigned."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import ColumnRule, Dataset, Encoder, Schema, convert_files
from sparsetrain.data.encode.few_rows import encode_few

SCHEMA = Schema("y", (), ("code",))
CODES = [-1, 5, -999, 7, -(2**31), 2**31 - 1]


def table(values, type_=None):
    return pa.table({"y": [0] * len(values), "code": pa.array(values, type_)})


def written(write, suffix):
    def make(folder, values):
        write(table(values, pa.int32()), folder / f"log{suffix}")
        return folder / f"log{suffix}"

    return make


def bags(values):
    return pa.array([[value] for value in values], pa.list_(pa.int32()))


FORMS = {
    "int32": lambda _, values: table(values, pa.int32()),
    "int64": lambda _, values: table(values, pa.int64()),
    "float": lambda _, values: table(values, pa.float64()),
    "decimal": lambda _, values: table(values, pa.int64()).cast(
        pa.schema([("y", pa.int64()), ("code", pa.decimal128(20))])
    ),
    "text": lambda _, values: table([*map(str, values)]),
    "a dictionary of int32": lambda _, values: table(values, pa.int32()).set_column(
        1, "code", pa.array(values, pa.int32()).dictionary_encode()
    ),
    "a parquet file of int32": written(pq.write_table, ".parquet"),
    "a csv file": written(pa.csv.write_csv, ".csv"),
    "a frame of int32": lambda _, values: pd.DataFrame(
        {"y": 0, "code": np.array(values, np.int32)}
    ),
    "a frame of pandas' Int32": lambda _, values: pd.DataFrame(
        {"y": 0, "code": pd.array(values, "Int32")}
    ),
    "a dict of lists": lambda _, values: {"y": [0] * len(values), "code": values},
    "rows": lambda _, values: [{"y": 0, "code": value} for value in values],
    "a dict of int32 arrays": lambda _, values: {
        "y": np.zeros(len(values)),
        "code": np.array(values, np.int32),
    },
}


def ids_of(encoder, data):
    found = np.concatenate([batch.ids for batch in Dataset(data, encoder).batches(4)])
    return found[:, 0].tolist()


@pytest.mark.parametrize("form", FORMS)
def test_a_code_below_0_is_one_value_in_every_form(form, tmp_path):
    learnt = Encoder.fit(FORMS[form](tmp_path, CODES), schema=SCHEMA, min_count=1)
    assert sorted(learnt.values("code")[2:]) == sorted(CODES)
    for number, other in enumerate(FORMS):
        folder = tmp_path / str(number)
        folder.mkdir()
        ids = ids_of(learnt, FORMS[other](folder, [*CODES, 2**31 - 2, -2]))
        assert [learnt.values("code")[id_] for id_ in ids] == [*CODES, None, None], other
    assert learnt.extended(FORMS["int32"](None, CODES)).rows == learnt.rows


@pytest.mark.parametrize("type_", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32()])
def test_minus_one_is_no_unsigned_number(type_):
    learnt = Encoder.fit(table([2**32 - 1, 255, 65535]), schema=SCHEMA, min_count=1)
    assert ids_of(learnt, table([-1], type_)) == [1]


@pytest.mark.parametrize("value", [-1, -1.0, "-1", np.int32(-1)])
def test_one_row_has_the_code_too(value):
    learnt = Encoder.fit(table(CODES, pa.int32()), schema=SCHEMA, min_count=1)
    row = {"code": [value]}
    expected = learnt.values("code").index(-1)
    assert learnt.encode(row, require_label=False).ids.item() == expected
    few = [
        encode_few(learnt, made)
        for made in (
            row,
            [{"code": value}],
            pd.DataFrame(row),
            pa.table({"code": pa.array([value])}),
        )
    ]
    assert {batch.ids.item() for batch in few if batch is not None} == {expected}
    assert any(batch is not None for batch in few)


def test_codes_in_lists_and_in_a_shared_table_are_the_same_values():
    schema = Schema("y", (), ("code", "past"), columns={"past": ColumnRule(share_embedding="code")})
    whole = pa.table({"y": [0] * 6, "code": pa.array(CODES, pa.int64()), "past": bags(CODES)})
    learnt = Encoder.fit(whole, schema=schema, min_count=1)
    assert learnt.tables == {"code": 2 + len(CODES)}
    batch = learnt.encode(whole)
    np.testing.assert_array_equal(batch.ids[0].ids, batch.ids[1].ids)


def test_converted_codes_are_the_same_values(tmp_path):
    pq.write_table(table(CODES, pa.int32()), tmp_path / "raw.parquet")
    convert_files(tmp_path / "raw.parquet", tmp_path / "out", schema=SCHEMA, min_count=1, workers=1)
    learnt = Encoder.fit(tmp_path / "out")
    assert sorted(learnt.values("code")[2:]) == sorted(CODES)


HASHES = [0x68FD1E64, 0xFFFFFFFF, 0x80000001]
HEXES = [f"{value:08x}" for value in HASHES]
AS_HASHES = {
    "text": table(HEXES),
    "int32": table(np.array(HASHES, np.uint32).view(np.int32)),
    "int64": table(HASHES),
    "int64 with a sign": table(np.array(HASHES, np.uint32).view(np.int32).astype(np.int64)),
    "a float": table(np.array(HASHES, np.uint32).view(np.int32).astype(float)),
    "rows": [{"y": 0, "code": v - (v >> 31 << 32)} for v in HASHES],
}


@pytest.mark.parametrize("form", AS_HASHES)
def test_hexadecimal_columns_take_numbers_below_0_as_wrapped_hashes(form):
    learnt = Encoder.fit(AS_HASHES["text"], schema=SCHEMA, min_count=1)
    assert ids_of(learnt, AS_HASHES[form]) == ids_of(learnt, AS_HASHES["text"])
    assert learnt.extended(AS_HASHES[form], min_count=1).rows == learnt.rows
    few = encode_few(learnt, [{"code": -1}])
    assert learnt.values("code")[few.ids.item()] == 2**32 - 1


def test_a_column_learnt_as_text_and_as_int32_has_each_hash_once(tmp_path):
    for name in ("int32", "text"):
        pq.write_table(AS_HASHES[name], tmp_path / f"{name}.parquet")
    learnt = Encoder.fit(sorted(tmp_path.iterdir()), schema=SCHEMA, min_count=2)
    assert sorted(learnt.values("code")[2:]) == sorted(HASHES)
