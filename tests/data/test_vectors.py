# SPDX-License-Identifier: Apache-2.0
"""Vector columns: lists of numbers of one length, which are dense inputs as they are."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Dataset, Encoder, Schema, convert_files, profile
from sparsetrain.errors import CheckpointError, ConfigError, DataError

WIDTH, COUNT = 5, 64
SCHEMA = Schema("y", ("price",), ("site",), vectors={"embedding": WIDTH})
RANDOM = np.random.default_rng(0)
VECTORS = RANDOM.normal(size=(COUNT, WIDTH)).astype(np.float32)
PRICE = RANDOM.random(COUNT) * 9


def rows(embedding):
    y, site = [0, 1] * (COUNT // 2), ["a", "b"] * (COUNT // 2)
    return {"y": y, "price": PRICE, "site": site, "embedding": embedding}


def dense(vectors=VECTORS, flags=False):
    """What a batch holds: the logarithm of the price, its flag, the vector."""
    price = np.log(PRICE + 3).astype(np.float32)[:, None]
    return np.hstack([price, *[np.zeros_like(price)] * flags, vectors])


FORMS = {
    "lists": VECTORS.tolist(),
    "a list of arrays": [*VECTORS],
    "one array": VECTORS,
    "one array of big-endian numbers": VECTORS.astype(">f8"),
    "one array by columns": np.asfortranarray(VECTORS.astype(np.float64)),
    "list of float32": pa.array([*VECTORS]),
    "list of float64": pa.array(VECTORS.astype(float).tolist()),
    "large list": pa.array(VECTORS.tolist(), pa.large_list(pa.float64())),
    "fixed size": pa.FixedSizeListArray.from_arrays(pa.array(VECTORS.ravel()), WIDTH),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_numbers_as_they_are(form, tmp_path):
    given = rows(FORMS[form])
    encoder = Encoder.fit(rows(VECTORS), schema=SCHEMA, min_count=1)
    assert encoder.num_dense == 1 + WIDTH
    tables = [given]
    if not (isinstance(FORMS[form], np.ndarray)):
        pq.write_table(pa.table(given), tmp_path / "rows.parquet", row_group_size=24)
        tables += [pa.table(given), pd.DataFrame(given), tmp_path / "rows.parquet"]
    for table in tables:
        (batch,) = Dataset(table, encoder).batches(COUNT)
        np.testing.assert_array_equal(batch.dense, dense())
    one = {name: values[7] for name, values in rows(VECTORS.tolist()).items() if name != "y"}
    np.testing.assert_array_equal(encoder.encode([one], require_label=False).dense, dense()[7:8])


def test_half_floats_and_whole_numbers_are_numbers():
    halves, whole = VECTORS.astype(np.float16), np.arange(COUNT * WIDTH).reshape(COUNT, WIDTH)
    encoder = Encoder.fit(rows(VECTORS), schema=SCHEMA)
    for values in (halves, whole):
        np.testing.assert_array_equal(encoder.encode(rows([*values])).dense, dense(values))


def test_a_null_row_or_an_empty_list_is_zeros_and_has_no_flag():
    lists = VECTORS.tolist()
    lists[3], lists[9] = None, []
    expected = VECTORS.copy()
    expected[[3, 9]] = 0
    fixed = pa.array([v or None for v in lists], pa.list_(pa.float32(), WIDTH))
    encoder = Encoder.fit(rows(lists), schema=SCHEMA, missing_flags=True)
    for values in (lists, pa.array(lists, pa.large_list(pa.float32())), fixed):
        found = encoder.encode(rows(values)).dense
        np.testing.assert_array_equal(found, dense(expected, flags=True))
        part = pa.table(rows(pa.array(values))).slice(2, 9)
        np.testing.assert_array_equal(encoder.encode(part).dense, found[2:11])
    nothing = encoder.encode(rows([None] * COUNT)).dense
    np.testing.assert_array_equal(nothing, dense(np.zeros_like(VECTORS), flags=True))
    absent = [{"y": 0, "price": 1, "site": "a", "embedding": [1] * WIDTH}, {"y": 1, "site": "a"}]
    assert not encoder.encode(absent).dense[1, 2:].any()


BAD = {
    "another length": ([1.0] * 4, "row 6, column embedding: a vector of 4 numbers, where the"),
    "a null inside": ([1.0, None, 1, 1, 1], "row 6, column embedding: the value is null or NaN in"),
    "NaN": ([np.nan] * WIDTH, "row 6, column embedding: the value is null or NaN in a vector"),
    "infinity": ([np.inf] * WIDTH, "row 6, column embedding: the value is infinite"),
    "too large": ([1e39] * WIDTH, "row 6, column embedding: the value is too large for float32"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_such_vector_is_named_and_left_out_of_converted_data(case, tmp_path):
    value, message = BAD[case]
    lists = VECTORS.tolist()
    encoder = Encoder.fit(rows(lists), schema=SCHEMA)
    lists[6] = value
    pq.write_table(pa.table(rows(lists)), tmp_path / "rows.parquet")
    for table in (rows(lists), tmp_path / "rows.parquet"):
        with pytest.raises(DataError, match=message):
            [*Dataset(table, encoder).batches(COUNT)]
    options = {"schema": SCHEMA, "bad_rows": "skip"}
    summary = convert_files(tmp_path / "rows.parquet", tmp_path / "out", **options)
    assert (summary["rows"], summary["bad_rows_by_column"]) == (COUNT - 1, {"embedding": 1})


@pytest.mark.parametrize(
    "values", [PRICE, ["a"] * COUNT, [["a"]] * COUNT, [[[1.0]]] * COUNT, [[True]] * COUNT]
)
def test_a_column_without_lists_of_numbers_is_refused_by_its_type(values):
    with pytest.raises(DataError, match=r"column embedding: type .* cannot be read as a vector"):
        Encoder.fit(rows(values), schema=SCHEMA)


def test_an_encoder_with_vectors_is_saved_and_converts_to_plain_columns(tmp_path):
    lists = VECTORS.tolist()
    lists[5] = None
    expected = VECTORS.copy()
    expected[5] = 0
    pq.write_table(pa.table(rows(lists)), tmp_path / "raw.parquet", row_group_size=20)
    options = {"schema": SCHEMA, "missing_flags": True, "min_count": 1}
    encoder = Encoder.fit(tmp_path / "raw.parquet", **options)
    manifest, arrays = encoder.to_state()
    again = Encoder.from_state(json.loads(json.dumps(manifest)), arrays)
    assert again.fingerprint == encoder.fingerprint and again.schema == SCHEMA
    summary = convert_files(tmp_path / "raw.parquet", tmp_path / "out", **options)
    assert summary["dense"]["embedding"]["missing"] == 1
    assert Encoder.fit(tmp_path / "out").fingerprint == encoder.fingerprint
    stored = pq.read_table(tmp_path / "out" / "part-00000.parquet")
    assert stored.schema.field("embedding_4").type == pa.float32()
    for data in (tmp_path / "out", tmp_path / "raw.parquet"):
        (batch,) = Dataset(data, again).batches(COUNT)
        np.testing.assert_array_equal(batch.dense, dense(expected, flags=True))
    shuffled = np.concatenate(
        [b.dense for b in Dataset(tmp_path / "out", again).batches(9, seed=0)]
    )
    assert {*map(bytes, shuffled)} == {*map(bytes, dense(expected, flags=True))}


def test_an_encoder_saved_without_vectors_is_read():
    schema = Schema("y", ("price",), ("site",))
    manifest, arrays = Encoder.fit(rows(VECTORS), schema=schema).to_state()
    assert "vectors" not in manifest["schema"]
    assert Encoder.from_state(manifest, arrays).num_dense == 1


def test_a_state_whose_vectors_are_damaged_is_refused():
    manifest, arrays = Encoder.fit(rows(VECTORS), schema=SCHEMA).to_state()
    manifest["schema"]["vectors"]["embedding"] = "wide"
    with pytest.raises(CheckpointError, match="vectors.embedding"):
        Encoder.from_state(manifest, arrays)


def test_already_encoded_data_may_have_vectors():
    table = rows(VECTORS) | {"site": [0, 1] * (COUNT // 2)}
    encoder = Encoder.fit(table, schema=SCHEMA, treat_as="encoded")
    found = encoder.encode(table).dense
    np.testing.assert_array_equal(found, np.hstack([PRICE[:, None].astype("f4"), VECTORS]))


def test_a_profile_counts_rows_of_a_vector():
    found = profile(rows([None, *VECTORS[1:].tolist()]), schema=SCHEMA).dense[1]
    below = int((VECTORS[1:] < 0).any(axis=1).sum())
    assert (found.column, found.missing, found.negative) == ("embedding", 1, below)
    assert (found.least, found.greatest) == (VECTORS[1:].min(), VECTORS[1:].max())


WRONG = {
    "no length": ({"e": 0}, "vectors.e is 0; it must be 1 or more"),
    "half a number": ({"e": 2.5}, "vectors.e is 2.5; it must be a whole number"),
    "a category too": ({"site": 2}, "vectors: 'site' is named as another column too"),
    "no dict": (["e"], "vectors is"),
}


@pytest.mark.parametrize("case", WRONG)
def test_vectors_that_cannot_be_are_refused(case):
    vectors, message = WRONG[case]
    with pytest.raises(ConfigError, match=message):
        Schema("y", (), ("site",), vectors=vectors)
    with pytest.raises(ConfigError, match="vectors is given without categories"):
        Schema("y", vectors={"e": 2})


def test_a_schema_file_says_it(tmp_path):
    (tmp_path / "s.toml").write_text(SCHEMA.to_toml())
    assert "[vectors]\nembedding = 5" in SCHEMA.to_toml()
    assert Schema.read(tmp_path / "s.toml") == SCHEMA
    assert "5 numbers in embedding" in Encoder.fit(rows(VECTORS), schema=SCHEMA).layout


def test_names_that_converted_data_could_not_tell_apart_are_refused(tmp_path):
    table = {**rows(VECTORS.tolist()), "embedding_1": PRICE}
    pq.write_table(pa.table(table), tmp_path / "raw.parquet")
    schema = Schema("y", ("embedding_1",), ("site",), vectors={"embedding": WIDTH})
    with pytest.raises(ConfigError, match="two columns 'embedding_1'"):
        convert_files(tmp_path / "raw.parquet", tmp_path / "out", schema=schema)
