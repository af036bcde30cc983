# SPDX-License-Identifier: Apache-2.0
"""Columns that share a table: one vocabulary of the values of all, the same row for a value."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsetrain.data import (
    ColumnRule,
    Dataset,
    Derived,
    Encoder,
    Schema,
    convert_files,
    profile,
    read_encoder,
)
from sparsetrain.errors import CheckpointError, ConfigError

TOML = """
label = "click"
categories = ["user", "history", "item"]
[columns.item]
min_count = 2
[columns.history]
share_embedding = "item"
max_length = 3
keep = "last"
"""


def schema(**rules):
    columns = {"history": ColumnRule(share_embedding="item"), **rules}
    return Schema("click", (), ("user", "history", "item"), columns=columns)


def table(items, histories, types=(None, None)):
    item, history = (None if type_ is None else type_() for type_ in types)
    return pa.table(
        {
            "click": [0] * len(items),
            "user": list(range(len(items))),
            "item": pa.array(items, item),
            "history": pa.array(histories, None if history is None else pa.list_(history)),
        }
    )


def log(rows=300, seed=0, items=40, text=False):
    rng = np.random.default_rng(seed)
    name = (lambda n: f"i{n}") if text else int
    drawn = [name(n) for n in rng.zipf(1.3, rows) % items]
    lists = [[name(n) for n in rng.zipf(1.3, rng.integers(0, 5)) % items] for _ in range(rows)]
    return table(drawn, lists)


def flat(histories):
    return [value for bag in histories for value in bag or ()]


def ids(encoder, items, histories):
    of_user, of_history, of_item = encoder.encode(
        table(items, histories, (pa.int64, pa.int64)), require_label=False
    ).ids
    return of_history.ids.tolist(), of_item.ids.tolist()


values = st.lists(st.one_of(st.none(), st.integers(-2, 6)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(values, st.lists(st.lists(st.integers(-2, 9), max_size=4), max_size=12), st.data())
def test_the_vocabulary_is_that_of_one_column_with_the_values_of_both(items, histories, data):
    histories = (histories + [None] * len(items))[: len(items)]
    cap, least = data.draw(st.sampled_from([None, 4, 7])), data.draw(st.integers(1, 3))
    rules = {"item": ColumnRule(min_count=least, max_rows=cap)}
    both = table(items, histories, (pa.int64, pa.int64))
    shared = Encoder.fit(both, schema=schema(**rules))
    one = pa.table({"click": [0] * len(items), "history": both["history"], "item": both["item"]})
    together = pa.table({"item": pa.array([*items, *flat(histories)], pa.int64())})
    alone = Encoder.fit(together, schema=Schema("click", (), ("item",), columns=rules))
    assert shared.features[1].values is shared.features[2].values
    assert shared.rows[1:] == alone.rows * 2
    assert shared.values("item") == shared.values("history") == alone.values("item")
    assert shared.rare_shares[2] == alone.rare_shares[0]
    found = shared.encode(both.select(["user", *one.column_names])).ids
    expected = alone.encode(together, require_label=False).ids[:, 0].tolist()
    assert [*found[2].ids.tolist(), *found[1].ids.tolist()] == expected


@pytest.mark.parametrize("text", [False, True], ids=["numbers", "text"])
def test_a_value_has_the_same_row_in_every_column(text):
    data = log(text=text)
    encoder = Encoder.fit(data, schema=schema(), min_count=2)
    of_history, of_item = (encoder.encode(data).ids[i].ids for i in (1, 2))
    known = dict(zip(data["item"].to_pylist(), of_item.tolist(), strict=True))
    for value, row in zip(flat(data["history"].to_pylist()), of_history.tolist(), strict=True):
        assert known.get(value, row) == row
    assert encoder.values("item")[known[data["item"][0].as_py()]] == data["item"][0].as_py()
    assert encoder.tables == {"user": 2, "item": encoder.rows[2]}  # each user is seen once
    assert encoder.share_embedding == {"history": "item"}
    assert f"features=3, rows={2 + encoder.rows[2]}>" in repr(encoder)


def test_a_value_that_is_frequent_only_in_all_columns_together_has_a_row():
    encoder = Encoder.fit(table([7, 8, 9], [[7], [7, 8], [9, 9]]), schema=schema(), min_count=3)
    assert encoder.values("history") == [None, None, 7, 9]


def test_a_schema_file_says_it_in_the_rule_of_a_column(tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text(TOML)
    read = Schema.read(path)
    assert read.share_embedding == {"history": "item"}
    assert Schema.from_dict(json.loads(json.dumps(read.to_dict()))) == read
    encoder = Encoder.fit(log(), schema=path, min_count=50)
    same = Encoder.fit(log(), schema=schema(), min_count=2)
    assert encoder.values("item") == same.values("item")  # the item's own rule holds for both
    assert np.diff(encoder.encode(log()).ids[1].offsets).max() == 3
    assert encoder.layout.endswith("1 of them lists, history shares the table of item")


def test_the_table_may_be_of_a_column_before_or_after_and_of_more_than_two():
    share = ColumnRule(share_embedding="b")
    three = Schema("y", (), ("a", "b", "c"), columns={"a": share, "c": share})
    data = {"y": [0, 1, 0], "a": [1, 2, 3], "b": [2, 2, 2], "c": [3, 3, 1]}
    encoder = Encoder.fit(data, schema=three, min_count=1)
    assert encoder.known_tables == {"a": "b", "b": "b", "c": "b"}
    assert encoder.encode(data).ids.tolist() == [[4, 2, 3], [2, 2, 3], [3, 2, 4]]


def test_columns_found_by_criteos_names_share_and_torchrecs_are_read_alike():
    rules = Schema(columns={"C2": ColumnRule(share_embedding="C1")})
    rows = {"label": [0, 1], "I1": [1, 2], "C1": [5, 6], "C2": [6, 7]}
    encoder = Encoder.fit(rows, schema=rules, min_count=1, treat_as="raw")
    other = {"int_0": [1, 2], "cat_0": [5, 6], "cat_1": [6, 7]}
    assert encoder.encode(other, require_label=False).ids.tolist() == [[3, 2], [2, 4]]


def rule(**given):
    return ColumnRule(share_embedding="item", **given)


WRONG = {
    "an unknown column": (
        {"history": ColumnRule(share_embedding="itme")},
        "share_embedding of 'history': there is no category 'itme'; did you mean 'item'",
    ),
    "itself": ({"item": rule()}, "share_embedding of 'item': it names itself; leave it out"),
    "one that shares": (
        {"history": rule(), "user": ColumnRule(share_embedding="history")},
        "share_embedding of 'user': 'history' itself shares the table of 'item'; name 'item'",
    ),
    "another min_count": (
        {"history": rule(min_count=3), "item": ColumnRule(min_count=2)},
        "columns.history: min_count is 3, but it shares the table of 'item', which has 2; set it",
    ),
    "a cap of its own": (
        {"history": rule(max_rows=30)},
        "columns.history: max_rows is 30, but it shares the table of 'item', which has none of its",
    ),
    "no name": ({"history": ColumnRule(share_embedding=3)}, "history.share_embedding is 3"),
}


@pytest.mark.parametrize("columns, message", WRONG.values(), ids=WRONG.keys())
def test_what_cannot_share_is_refused(columns, message):
    with pytest.raises(ConfigError, match=message):
        Schema("click", (), ("user", "history", "item"), columns=columns)


def test_the_same_rule_twice_is_no_contradiction():
    same = {"history": rule(min_count=2), "item": ColumnRule(min_count=2)}
    assert schema(**same).share_embedding == {"history": "item"}


def test_a_column_that_the_data_lack_is_refused_where_names_are_criteos():
    rows = {"label": [0], "I1": [1], "C1": [5], "C2": [6]}
    lost = Schema(columns={"C2": ColumnRule(share_embedding="C3")})
    with pytest.raises(ConfigError, match="there is no category 'C3'; there are C1, C2"):
        Encoder.fit(rows, schema=lost)


def test_numbers_and_their_text_share_rows_and_nulls_do_with_both():
    encoder = Encoder.fit(table([1, 2], [["1"], ["2"]]), schema=schema(), min_count=1)
    assert encoder.rows[1:] == [4, 4]
    assert ids(encoder, [2], [None]) == ([], [3])
    floats = table([1.0, None], [[2], [1]], (pa.float64, pa.int8))
    assert [bags.ids.tolist() for bags in encoder.encode(floats).ids[1:]] == [[3, 2], [2, 0]]
    texts = table(["1", "2"], [[2], [1]], (pa.string, pa.int8))
    assert [bags.ids.tolist() for bags in encoder.encode(texts).ids[1:]] == [[3, 2], [2, 3]]


def test_text_of_a_file_and_a_derived_number_share_rows(tmp_path):
    (tmp_path / "log.csv").write_text("click,hour,day\n0,5,5\n1,6,6\n")
    odd = Schema(
        "click",
        (),
        ("hour", "weekday"),
        derived={"weekday": Derived("day", modulo=7)},
        columns={"weekday": ColumnRule(share_embedding="hour")},
    )
    encoder = Encoder.fit(tmp_path / "log.csv", schema=odd, min_count=1)
    assert encoder.rows == [4, 4]


def test_an_encoder_is_saved_with_the_values_once_and_read_the_same():
    encoder = Encoder.fit(log(text=True), schema=schema(), min_count=2)
    manifest, arrays = encoder.to_state()
    assert len(arrays["text_ids"]) == encoder.rows[2] - 2
    read = Encoder.from_state(json.loads(json.dumps(manifest)), arrays)
    assert read.fingerprint == encoder.fingerprint
    assert read.features[1].values is read.features[2].values
    assert read.values("history") == encoder.values("item")
    newer = log(seed=1, text=True)
    for mine, its in zip(read.encode(newer).ids, encoder.encode(newer).ids, strict=True):
        np.testing.assert_array_equal(mine.ids, its.ids)


def without_rule(manifest):
    del manifest["schema"]["columns"]


DAMAGES = {
    "other rows": (
        lambda m: m["columns"][1].update(rows=10**6),
        "columns of one table with different",
    ),
    "an unknown column": (
        lambda m: m["schema"]["columns"].update(user={"share_embedding": "x"}),
        "there is no category 'x'",
    ),
    "values with the other column": (
        lambda m: m["schema"]["columns"].update(
            item={"share_embedding": "history"}, history={"keep": "first"}
        ),
        "has values of a column without a table of its own",
    ),
}


@pytest.mark.parametrize("damage, message", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_saved_encoder_that_contradicts_itself_is_refused(damage, message):
    manifest, arrays = Encoder.fit(log(), schema=schema(), min_count=2).to_state()
    manifest = json.loads(json.dumps(manifest))
    damage(manifest)
    with pytest.raises(CheckpointError, match=message):
        Encoder.from_state(manifest, arrays)


def test_new_values_of_any_column_get_rows_for_all():
    known = Encoder.fit(table([1, 2, 2], [[2], [], None]), schema=schema(), min_count=1)
    grown = known.extended(table([5, 1], [[9, 9, 5], [7]]), min_count=2)
    assert (known.values("item"), grown.values("item")) == (
        [None, None, 2, 1],
        [None] * 2 + [2, 1, 5, 9],
    )
    assert grown.features[1].values is grown.features[2].values
    assert grown.extends(known)
    assert grown.tables["item"] == 6


@pytest.mark.parametrize("options", [{}, {"max_rows": 9}], ids=["all", "capped"])
@pytest.mark.parametrize("text", [False, True], ids=["numbers", "text"])
def test_conversion_learns_and_encodes_as_fitting_does(tmp_path, options, text):
    logs = [log(seed=seed, items=200, text=text) for seed in range(3)]
    for seed, data in enumerate(logs):
        pq.write_table(data, tmp_path / f"raw{seed}.parquet", row_group_size=70)
    seen = {v for data in logs for v in data["item"].to_pylist()}
    seen |= {v for data in logs for v in flat(data["history"].to_pylist())}
    raw = str(tmp_path / "raw*.parquet")
    asked = {"schema": schema(), "min_count": 3, **options}
    summary = convert_files(raw, tmp_path / "out", workers=2, **asked)
    expected, converted = Encoder.fit(raw, **asked), read_encoder(tmp_path / "out/_encoder.parquet")
    assert converted.fingerprint == expected.fingerprint == summary["fingerprint"]
    assert converted.rare_shares == expected.rare_shares
    columns = summary["categories"]
    assert columns["history"]["share_embedding"] == "item"
    assert "share_embedding" not in columns["item"]
    assert columns["history"]["distinct"] == columns["item"]["distinct"] == len(seen)
    (whole,) = Dataset(str(tmp_path / "out"), converted).batches(900)
    (wanted,) = Dataset(raw, expected).batches(900)
    for mine, its in zip(whole.ids, wanted.ids, strict=True):
        np.testing.assert_array_equal(mine.ids, its.ids)
        np.testing.assert_array_equal(mine.offsets, its.offsets)
    again = convert_files(raw, tmp_path / "more", encoder=tmp_path / "out")
    assert again["fingerprint"] == summary["fingerprint"]


def test_converted_data_share_what_they_were_converted_with(tmp_path):
    pq.write_table(log(), tmp_path / "raw.parquet")
    names = schema().categories
    for folder, columns in (("shared", schema().columns), ("apart", {})):
        asked = Schema("click", (), names, columns=columns)
        convert_files(tmp_path / "raw.parquet", tmp_path / folder, schema=asked)
    same = Encoder.fit(tmp_path / "shared", schema=schema())
    assert same.share_embedding == {"history": "item"}
    with pytest.raises(ConfigError, match="are converted with a table for each column; leave it"):
        Encoder.fit(tmp_path / "apart", schema=schema())
    with pytest.raises(ConfigError, match="is fitted with a table for each column; leave it out"):
        raw, known = tmp_path / "raw.parquet", tmp_path / "apart"
        convert_files(raw, tmp_path / "more", encoder=known, schema=schema())


def test_ids_that_are_encoded_already_have_one_table_of_the_largest(tmp_path):
    asked = {"schema": schema(), "treat_as": "encoded"}
    data = table([1, 2], [[7], [0, 3]])
    encoder = Encoder.fit(data, **asked)
    assert (encoder.rows, encoder.tables) == ([2, 8, 8], {"user": 2, "item": 8})
    assert Encoder.from_state(*encoder.to_state()).fingerprint == encoder.fingerprint
    assert encoder.extended(table([20, 2], [[7], []])).rows == [2, 21, 21]
    pq.write_table(data, tmp_path / "raw.parquet")
    convert_files(tmp_path / "raw.parquet", tmp_path / "out", **asked)
    assert read_encoder(tmp_path / "out/_encoder.parquet").rows == [2, 8, 8]
    sized = Encoder.fit(data, **asked, sizes={"user": 5, "item": 9, "history": 9})
    assert sized.rows == [5, 9, 9]
    with pytest.raises(ConfigError, match="history has 9 rows and item 8, but they share a table"):
        Encoder.fit(data, **asked, sizes=[5, 9, 8])


def test_unseen_ids_are_counted_for_each_column():
    encoder = Encoder.fit(table([1, 2], [[1], [2, 3]]), schema=schema(), min_count=1)
    rows = Dataset(table([3, 9], [[9], [9, 1, 8]]), encoder)
    list(rows.batches(2))
    assert {share.column: share.unseen for share in rows.id_shares}["item"] == 1
    assert {share.column: share.unseen for share in rows.id_shares}["history"] == 3


def test_the_picture_of_data_has_each_columns_own_values_and_says_that_they_share():
    found = profile(table([1, 2], [[1, 5], [5, 6, 7]]), schema=schema())
    assert [column.distinct for column in found.categories] == [2, 4, 2]
    assert "history shares the table of item" in found.layout
