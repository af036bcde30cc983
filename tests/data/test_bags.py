# SPDX-License-Identifier: Apache-2.0
"""List columns become bags, with weights and a rule about their length, all the way to a model."""

import numpy as np
import pyarrow as pa
import pytest

from sparsetrain.data import ColumnRule, Dataset, Encoder, Ragged, Schema, convert_files
from sparsetrain.data.batch import as_lists
from sparsetrain.errors import DataError
from tests.data.criteo_tables import write

TAGS = [["a", "b", "c"], [], None, ["a", None], ["b", "a", "a", "c"]]
FACTORS = [[1.0, 2.0, 3.0], [], None, [0.5, 0.25], [1.0, 2.0, 3.0, 4.0]]


def table(tags=TAGS, factors=FACTORS):
    return pa.table(
        {
            "label": [0, 1, 0, 1, 0],
            "I1": [1, 2, 3, 4, 5],
            "C1": pa.array(tags, pa.list_(pa.string())),
            "C2": ["x", "y", None, "x", "x"],
            "w": pa.array(factors, pa.list_(pa.float64())),
        }
    )


def fit(rule=None, data=None):
    names = {"dense": ("I1",), "categories": ("C1", "C2")}
    schema = Schema(**names, columns={"C1": rule} if rule else {})
    return Encoder.fit(table() if data is None else data, min_count=1, schema=schema)


def bags(feature):
    return [
        feature.ids[a:b].tolist()
        for a, b in zip(feature.offsets[:-1], feature.offsets[1:], strict=True)
    ]


# Ids by falling count: a (4 times), then b and c (2 each).
RULES = {
    "all": (None, [[2, 3, 4], [], [], [2, 0], [3, 2, 2, 4]]),
    "the first two": (ColumnRule(max_length=2), [[2, 3], [], [], [2, 0], [3, 2]]),
    "the last two": (ColumnRule(max_length=2, keep="last"), [[3, 4], [], [], [2, 0], [2, 4]]),
}


@pytest.mark.parametrize("rule, expected", RULES.values(), ids=RULES.keys())
def test_lists_become_bags_and_single_values_bags_of_one(rule, expected):
    batch = fit(rule).encode(table())
    assert bags(batch.ids[0]) == expected
    assert bags(batch.ids[1]) == [[2], [3], [0], [2], [2]]
    assert batch.ids[0].weights is None


def test_more_ids_than_a_list_column_can_count_are_refused():
    ids = np.broadcast_to(np.int64(0), 2**31)  # which take no memory
    with pytest.raises(DataError, match="lists of 2 rows hold 2,147,483,648 ids.*max_length"):
        as_lists(Ragged(ids, np.array([0, 1, 2**31])))


def test_weights_follow_their_ids_and_are_one_elsewhere():
    batch = fit(ColumnRule(max_length=2, keep="last", weights="w")).encode(table())
    assert batch.ids[0].weights.tolist() == [2, 3, 0.5, 0.25, 3, 4]
    assert batch.ids[1].weights.tolist() == [1] * 5


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("rule", [None, ColumnRule(weights="w")])
def test_bags_survive_conversion_shuffling_and_cutting(tmp_path, seed, rule):
    data = pa.concat_tables([table()] * 40)
    encoder = fit(rule, data)
    path = write(tmp_path / "raw.parquet", data, group=30)
    convert_files(path, tmp_path / "out", min_count=1, schema=encoder.schema)
    converted = Encoder.fit(tmp_path / "out")
    assert converted.fingerprint == encoder.fingerprint

    def rows(dataset):
        for batch in dataset.batches(7, seed=seed, buffer_rows=50):
            ids = zip(*(bags(feature) for feature in batch.ids), strict=True)
            weights = batch.ids[0].weights
            total = None if weights is None else weights.sum()
            yield from ((*row, len(batch), total) for row in ids)

    raw, found = (list(rows(Dataset(d, encoder))) for d in (path, tmp_path / "out"))
    assert len(raw) == len(found) == 200
    if seed is None:
        assert raw == found
    assert sorted(str(row[:2]) for row in raw) == sorted(str(row[:2]) for row in found)


BAD = {
    "too few weights": (
        {"factors": [[1.0], *FACTORS[1:]]},
        ColumnRule(weights="w"),
        "row 0, column w: 1 weights for 3 ids",
    ),
    "a null weight": (
        {"factors": [*FACTORS[:4], [1.0, None, 3.0, 4.0]]},
        ColumnRule(weights="w"),
        "row 4, column w: a weight is null",
    ),
    "a NaN weight": (
        {"factors": [*FACTORS[:3], [0.5, float("nan")], FACTORS[4]]},
        ColumnRule(weights="w"),
        "row 3, column w: the value is NaN",
    ),
}


@pytest.mark.parametrize("columns, rule, message", BAD.values(), ids=BAD.keys())
def test_a_bad_bag_is_named_by_its_row(columns, rule, message):
    with pytest.raises(DataError, match=message):
        fit(rule).encode(table(**columns))


def test_lists_where_there_were_none_are_refused():
    single = table().set_column(2, "C1", pa.array(["a"] * 5))
    encoder = fit(data=single)
    with pytest.raises(
        DataError, match="column C1: holds lists, but single values in the training"
    ):
        encoder.encode(table())
    assert bags(fit().encode(single).ids[0]) == [[2]] * 5


PLAIN = [
    pa.array(["a", None, "b", None, "a"]),
    pa.array(["a", "", "b", None, "a"], pa.large_string()),
    pa.array(["a", None, "b", None, "a"]).dictionary_encode(),
    pa.DictionaryArray.from_arrays([0, 1, 2, 1, 0], ["a", None, "b"]),
    pa.array([None] * 5),
    pa.array([None] * 5, pa.float64()),
]


@pytest.mark.parametrize(
    "array", PLAIN, ids=["text", "empty text", "coded", "a coded null", "nulls", "floats"]
)
def test_a_missing_value_beside_plain_ones_is_an_empty_bag(array):
    batch = fit().encode(table().set_column(2, "C1", array))
    expected = [{"a": [2], "b": [3], "": [], None: []}[value] for value in array.to_pylist()]
    assert bags(batch.ids[0]) == expected


@pytest.mark.parametrize("type_", [pa.list_(pa.int32()), pa.large_list(pa.int64())])
def test_an_id_in_a_list_beyond_its_table_is_found_before_reading(tmp_path, type_):
    columns = {"label": [0, 1], "I1": [0.5, 1.5], "C1": pa.array([[1, 2], [3, 9]], type_)}
    path = write(tmp_path / "ids.parquet", pa.table(columns))
    encoder = Encoder.fit(path, sizes=[10])
    assert Dataset(path, encoder).num_rows == 2
    with pytest.raises(DataError, match="row 1, column C1: id 9 is outside its table of 9 rows"):
        Dataset(path, Encoder.fit(path, sizes=[9]))
