# SPDX-License-Identifier: Apache-2.0
import pyarrow as pa
import pytest

from sparsetrain.data import find_columns
from sparsetrain.errors import ConfigError, DataError
from tests.data.criteo_tables import encoded_table, make_rows, table

KAGGLE = table(make_rows()).schema
ENCODED = encoded_table().schema


def schema(*names):
    return pa.schema([(name, pa.int32()) for name in names])


FOUND = {
    "criteo's names": (
        KAGGLE,
        "raw, Criteo names: 3 dense I1..I3 as integers, "
        "4 categories C1..C4 as text, label in label",
    ),
    "torchrec's names": (
        schema("cat_1", "label", "int_0", "cat_0"),
        "raw, torchrec names: 1 dense int_0 as integers, "
        "2 categories cat_0..cat_1 as integers, label in label",
    ),
    "a mixture": (
        pa.schema(
            [
                ("I1", pa.int64()),
                ("I2", pa.float64()),
                ("C1", pa.dictionary(pa.int32(), pa.string())),
                ("C2", pa.null()),
                ("LABEL", pa.bool_()),
            ]
        ),
        "raw, Criteo names: 2 dense I1..I2 as integers and floats, "
        "2 categories C1..C2 as text and nulls, label in LABEL",
    ),
    "encoded": (
        ENCODED,
        "already encoded, Criteo names: 3 dense I1..I3 and 4 ids C1..C4, "
        "used as they are, label in label",
    ),
}


@pytest.mark.parametrize("found, layout", FOUND.values(), ids=FOUND.keys())
def test_the_layout_line_says_what_was_seen(found, layout):
    assert find_columns(found).layout == layout


def test_columns_come_in_the_order_of_their_numbers():
    names = [f"I{i}" for i in (10, 2, 1, 3, 4, 9, 8, 7, 6, 5)] + ["C2", "I01", "C1", "label"]
    columns = find_columns(schema(*names))
    assert columns.dense == tuple(f"I{i}" for i in range(1, 11))
    assert columns.categories == ("C1", "C2")


def test_a_label_is_looked_for_only_if_asked():
    assert find_columns(schema("I1", "C1"), label=False).labels == ()
    assert "label" not in find_columns(KAGGLE, label=False).names


def test_the_larger_of_two_families_wins():
    columns = find_columns(schema("I1", "int_0", "int_1", "C1", "label"))
    assert columns.dense == ("int_0", "int_1")


def test_treat_as_overrides_the_rule():
    assert find_columns(ENCODED).encoded
    assert not find_columns(ENCODED, treat_as="raw").encoded
    assert find_columns(schema("I1", "C1", "label"), treat_as="encoded").encoded


BAD = {
    "a gap": (
        schema("I1", "I3", "C1", "label"),
        {},
        "f: column I2: the dense column is missing; the nearest name there is I1; "
        "if your data lack it, name the columns that they have in a schema file",
    ),
    "no dense column": (
        schema("a", "b", "c", "d"),
        {},
        "f: column I1: the dense column is missing; there are a, b, c, ...; "
        "if your columns have other names, give these in a schema file",
    ),
    "no category column": (
        schema("I1", "label"),
        {},
        "f: column C1: the category column is missing; the nearest name there is I1; "
        "if your columns have other names, give these in a schema file",
    ),
    "another case": (
        schema("I1", "c1", "C3", "label"),
        {},
        "f: column C1: the category column is missing; the nearest name there is c1; "
        "if your data lack it, name the columns that they have in a schema file",
    ),
    "fewer than wanted": (
        KAGGLE,
        {"num_categories": 5},
        "f: column C5: the category column is missing; the nearest name there is C1",
    ),
    "fewer than wanted, other names": (
        schema("int_0", "cat_0", "label"),
        {"num_dense": 2},
        "f: column int_1: the dense column is missing; the nearest name there is int_0",
    ),
    "no label": (
        schema("I1", "C1", "labels"),
        {},
        "f: column label: the label column is missing; the nearest name there is labels; "
        "if your columns have other names, give these in a schema file",
    ),
    "two labels": (
        schema("I1", "C1", "label", "Label"),
        {},
        "f: 2 label columns, label and Label; drop all but one",
    ),
    "one column twice": (
        schema("I1", "C1", "C1", "label"),
        {},
        "f: column C1: the column is there twice; drop one",
    ),
    "two families": (
        schema("I1", "int_0", "C1", "label"),
        {},
        "f: dense columns have names of two kinds, I1 and int_0; drop the columns of one kind",
    ),
    "a dense list": (
        pa.schema([("I1", pa.list_(pa.int32())), ("C1", pa.int32()), ("label", pa.int32())]),
        {},
        "f: column I1: type list<item: int32> cannot be used; store integers, floats, text or "
        "timestamps",
    ),
    "a list of lists": (
        pa.schema(
            [("I1", pa.int32()), ("C1", pa.list_(pa.list_(pa.int32()))), ("label", pa.int32())]
        ),
        {},
        "f: column C1: type list<item: list<item: int32>> cannot be used; "
        "store integers, floats, text or timestamps",
    ),
    "text ids called encoded": (
        KAGGLE,
        {"treat_as": "encoded"},
        "f: column C1: already encoded ids must be integers, this column holds text",
    ),
}


@pytest.mark.parametrize("found, options, message", BAD.values(), ids=BAD.keys())
def test_a_schema_is_refused_by_file_and_column(found, options, message):
    with pytest.raises(DataError) as caught:
        find_columns(found, "f", **options)
    assert str(caught.value) == message


def test_an_unknown_treatment_is_a_configuration_error():
    with pytest.raises(ConfigError, match="treat_as is 'auot'; it must be 'auto', 'raw' or 'enc"):
        find_columns(KAGGLE, treat_as="auot")
