# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Encoder
from sparsetrain.data.encode.encoder_state import read_file, write_file
from sparsetrain.errors import CheckpointError
from tests.data.criteo_tables import assert_batches_equal, encoded_table, make_rows, table

ROWS = make_rows()
TEXTS = ROWS | {"C2": [f"v{i % 7}" for i in range(60)]}


def assert_states_equal(left, right):
    assert left[0] == right[0]
    assert left[1].keys() == right[1].keys()
    for name, array in left[1].items():
        assert array.dtype == right[1][name].dtype
        np.testing.assert_array_equal(array, right[1][name])


FITTED = {
    "hex": lambda: Encoder.fit(table(ROWS), min_count=1),
    "text": lambda: Encoder.fit(table(TEXTS), min_count=3, max_rows=6, dense_fill=-1.5),
    "flags": lambda: Encoder.fit(table(ROWS), missing_flags=True, nan="missing", treat_as="raw"),
    "nothing frequent": lambda: Encoder.fit(table(ROWS), min_count=1000),
}


@pytest.mark.parametrize("fit", FITTED.values(), ids=FITTED.keys())
def test_an_encoder_survives_being_saved(fit):
    encoder = fit()
    manifest, arrays = encoder.to_state()
    again = Encoder.from_state(json.loads(json.dumps(manifest)), arrays)
    assert_batches_equal(again.encode(table(TEXTS)), encoder.encode(table(TEXTS)))
    assert_states_equal(again.to_state(), encoder.to_state())
    assert all(array.dtype.kind in "iu" for array in arrays.values())


def test_an_encoder_of_encoded_data_survives_being_saved():
    encoder = Encoder.fit(encoded_table())
    again = Encoder.from_state(*encoder.to_state())
    assert_batches_equal(again.encode(encoded_table()), encoder.encode(encoded_table()))
    assert again.to_state() == encoder.to_state()


def drop(name):
    return lambda state: state.pop(name)


def put(name, value):
    return lambda state: state.update({name: value})


def settings(**values):
    return lambda state: state.update(settings=state["settings"] | values)


def edit(name, index, value):
    def change(arrays):
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return change


def column(index, **values):
    def change(state):
        state["columns"][index] |= values

    return change


def columns(**values):
    def change(state):
        for each in state["columns"]:
            each |= values

    return change


def without(name):
    return lambda state: state["columns"][0].pop(name)


MANIFESTS = {
    "another file's": (put("format", "x"), "is not an encoder's"),
    "an earlier version": (put("version", 3), "has version 3, but this program reads 4: train, or"),
    "a later version": (put("version", 5), "has version 5, but this program reads 4: train, or"),
    "a number named like a category": (put("dense", ["C1"]), "two columns have one name"),
    "no rows": (without("rows"), ": columns.0.rows is missing"),
    "negative rows": (columns(rows=-5), "column 'C1' has a table of impossible size"),
    "rows beyond memory": (columns(rows=2**60), "column 'C1' has a table of impossible size"),
    "rows that are true": (column(1, rows=True), ": columns.1.rows is True; it must be"),
    "no columns": (put("columns", []), "has no columns"),
    "columns of one name": (column(1, name="C1"), "two columns have one name"),
    "columns that are numbers": (put("dense", [1]), ": dense.0 is 1; it must"),
    "an unknown setting": (settings(color="red"), "unknown key 'settings.color'; there are"),
    "a setting of another type": (settings(min_count="5"), ": settings.min_count is '5'; it"),
    "a setting left out": (lambda state: state["settings"].pop("nan"), "lacks a setting"),
    "no text": (put("layout", 5), ": layout is 5; it must be a valid string"),
    "a schema of another time": (
        put("schema", {"labl": "y"}),
        "unknown key 'schema.labl'; did you",
    ),
    "a table of nobody": (
        put("schema", {"columns": {"C1": {"share_embedding": "C99"}}}),
        "there is no category 'C99'",
    ),
    "a setting out of range": (settings(min_count=0), "min_count is 0; it must be 1 or more"),
    "fewer rows than ids": (columns(rows=3), "gives a value a row outside its table"),
    "no share": (without("rare_share"), ": columns.0.rare_share is missing"),
    "no unsigned column": (without("unsigned"), ": columns.0.unsigned is missing"),
    "a sign that is text": (column(2, unsigned="x"), ": columns.2.unsigned is 'x'; it must"),
    "no kind": (without("kind"), ": columns.0.kind is missing"),
    "a kind that is none": (column(3, kind="words"), "column 'C4' has an unknown kind"),
    "a kind for only some": (column(3, kind=None), "only some columns have kinds"),
    "an unknown key": (column(0, color="red"), "unknown key 'columns.0.color'; there are name,"),
    "a null share": (column(1, rare_share=None), "column 'C2' has no 'rare_share'"),
    "a share beyond all": (column(2, rare_share=1.5), "column 'C3' has no 'rare_share'"),
    "shares that are text": (column(0, rare_share="0"), ": columns.0.rare_share is '0'; it must"),
    "encoded, with arrays": (columns(kind=None), "has arrays that already encoded data does not"),
}

ARRAYS = {
    "one missing": (drop("numbers"), "has unknown or missing arrays"),
    "one too many": (put("code", np.zeros(1)), "has unknown or missing arrays"),
    "objects": (put("numbers", np.array([None])), "has an array 'numbers' of a wrong type"),
    "two dimensions": (put("texts", np.zeros((2, 2), np.uint8)), "has an array 'texts' of a wrong"),
    "fewer ids": (
        lambda a: put("number_ids", a["number_ids"][1:])(a),
        "array 'number_ids' of a wrong",
    ),
    "fewer text ids": (
        lambda a: put("text_ids", a["text_ids"][1:])(a),
        "array 'text_ids' of a wrong",
    ),
    "an id of the reserved": (edit("number_ids", 0, 1), "gives a value a row outside its table"),
    "a negative id": (edit("text_ids", 0, -9), "gives a value a row outside its table"),
    "starts that fall": (edit("number_starts", 1, 10**9), "has inconsistent 'number_starts'"),
    "starts that end early": (edit("text_starts", -1, 0), "has inconsistent 'text_starts'"),
    "offsets beyond the bytes": (edit("text_offsets", -1, 10**9), "inconsistent 'text_offsets'"),
    "no offsets": (put("text_offsets", np.zeros(0, np.int64)), "has inconsistent 'text_offsets'"),
    "one value twice": (
        lambda arrays: edit("numbers", 1, arrays["numbers"][0])(arrays),
        "has one value twice in a column",
    ),
}


def assert_refused(manifest, arrays, message):
    with pytest.raises(CheckpointError) as caught:
        Encoder.from_state(manifest, arrays)
    assert message in str(caught.value)
    assert str(caught.value).startswith("the saved encoder")


@pytest.mark.parametrize("change, message", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_a_damaged_manifest_is_refused(change, message):
    manifest, arrays = Encoder.fit(table(TEXTS), min_count=1).to_state()
    change(manifest)
    assert_refused(manifest, arrays, message)


@pytest.mark.parametrize("change, message", ARRAYS.values(), ids=ARRAYS.keys())
def test_damaged_arrays_are_refused(change, message):
    manifest, arrays = Encoder.fit(table(TEXTS), min_count=1).to_state()
    change(arrays)
    assert_refused(manifest, arrays, message)


def test_a_loaded_encoder_shares_no_memory_with_its_arrays():
    encoder = Encoder.fit(table(TEXTS), min_count=1)
    manifest, arrays = encoder.to_state()
    arrays = {name: array.copy() for name, array in arrays.items()}
    again = Encoder.from_state(manifest, arrays)
    for array in arrays.values():
        array[...] = 0
    assert_batches_equal(again.encode(table(TEXTS)), encoder.encode(table(TEXTS)))


def test_a_file_of_an_earlier_build_is_refused_by_its_version(tmp_path):
    path, key = tmp_path / "_encoder.parquet", b"sparsetrain.encoder"
    write_file(path, Encoder.fit(table(TEXTS), min_count=1))
    written = pq.read_table(path)
    described = json.loads(written.schema.metadata[key])
    described["manifest"]["version"] = 3
    pq.write_table(written.replace_schema_metadata({key: json.dumps(described)}), path)
    with pytest.raises(CheckpointError, match="_encoder.parquet: the saved encoder has version 3"):
        read_file(path)
