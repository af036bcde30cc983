# SPDX-License-Identifier: Apache-2.0
"""An encoder that learns newer data: known values keep their rows, new ones get those behind."""

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsetrain.data import ColumnRule, Encoder, Schema
from sparsetrain.data.columns.category import Category, Vocabulary
from sparsetrain.data.columns.counts import count_values
from sparsetrain.data.values.arrow_values import NanRule
from sparsetrain.data.values.location import Location
from sparsetrain.errors import ConfigError, DataError, DataWarning

NAN, PLACE = NanRule("error"), Location("test")
texts = st.lists(st.one_of(st.none(), st.text("ab", max_size=2), st.just("0000007b")), max_size=30)


def counts_of(values):
    return count_values(pa.array(values, pa.string()), NAN, PLACE)


def ids_of(vocabulary, values):
    return vocabulary.encode(pa.array(values, pa.string()), PLACE).tolist()


@settings(max_examples=80, deadline=None)
@given(texts, texts, st.integers(1, 3), st.sampled_from([None, 4, 6]))
def test_known_values_keep_their_rows_and_new_ones_get_rows_behind(before, after, least, cap):
    known = Vocabulary.blank(NAN).learnt(counts_of(before), "text", False, 1, cap)
    grown = known.extended(counts_of(after), least, cap)
    assert ids_of(grown, before) == ids_of(known, before)
    assert Category("c", "c", values=grown).extends(Category("c", "c", values=known))
    new = Counter(value for value in after if value and value not in before)
    frequent = [value for value, times in new.items() if times >= least]
    room = len(frequent) if cap is None else min(len(frequent), cap - known.rows)
    assert grown.rows == known.rows + room
    rows = dict(zip(new, ids_of(grown, list(new)), strict=True))
    own = sorted(row for row in rows.values() if row != 1)
    assert own == list(range(known.rows, grown.rows))
    by_row = sorted((value for value in new if rows[value] != 1), key=rows.get)
    assert [new[value] for value in by_row] == sorted((new[v] for v in by_row), reverse=True)


def test_the_share_of_rare_values_is_that_of_the_newer_data():
    known = Vocabulary.blank(NAN).learnt(counts_of(["a", "b"]), "text", False, 1, None)
    grown = known.extended(counts_of(["a", "a", "c", "d", "d"]), 2, None)
    assert grown.rare_share == 1 / 5


def rows(users, **more):
    count = len(users)
    return {"click": [0] * count, "price": [1.0] * count, "user": users, **more}


SCHEMA = Schema("click", ("price",), ("user",))


def test_an_encoder_that_was_extended_is_saved_and_read_as_it_is():
    known = Encoder.fit(rows([7, 7, 2**40]), schema=SCHEMA, min_count=1)
    grown = known.extended(rows([5, 5, 7, 9]))
    read = Encoder.from_state(*grown.to_state())
    assert read.encode(rows([7, 2**40, 5, 9, 8])).ids.ravel().tolist() == [2, 3, 4, 5, 1]
    assert read.fingerprint == grown.fingerprint != known.fingerprint
    assert grown.extends(known)
    assert not known.extends(grown)


def test_the_rule_of_a_column_goes_before_the_argument_and_that_before_the_setting():
    schema = Schema("click", ("price",), ("user", "item"), columns={"item": ColumnRule(2)})
    known = Encoder.fit(rows([1] * 5, item=[1] * 5), schema=schema, min_count=3)
    newer = rows([2, 2, 3], item=[2, 2, 3])
    assert known.extended(newer).rows == [3, 4]
    grown = known.extended(newer, min_count=1)
    assert grown.rows == [5, 4]
    assert grown.extended(rows([4], item=[4])).rows == [6, 4]  # the argument holds on


def test_tables_of_encoded_data_get_as_long_as_the_largest_id_says():
    known = Encoder.fit(rows([4, 2]), schema=SCHEMA, treat_as="encoded")
    assert known.extended(rows([1, 9])).rows == [10]
    assert known.extended(rows([1])).rows == [5]


def test_an_encoder_that_was_fitted_anew_extends_none():
    known = Encoder.fit(rows([7, 7, 5]), schema=SCHEMA, min_count=1)
    anew = Encoder.fit(rows([5, 5, 5, 7]), schema=SCHEMA, min_count=1)
    filled = Encoder.fit(rows([7, 7, 5]), schema=SCHEMA, min_count=1, dense_fill=1.0)
    assert not anew.extends(known)
    assert not filled.extends(known)


def test_what_cannot_be_learnt_from_is_refused():
    known = Encoder.fit(rows([7]), schema=SCHEMA, min_count=1)
    with pytest.raises(DataError, match="batches, which are encoded already"):
        known.extended(iter([]))
    with pytest.raises(ConfigError, match="min_count is 0; it must be 1 or more"):
        known.extended(rows([7]), min_count=0)
    with pytest.raises(DataError, match="the category column is missing"):
        known.extended(pa.table({"click": [0], "price": [1.0]}))


def test_text_alone_in_a_column_of_numbers_is_warned_of():
    schema = Schema("y", categories=("c",), columns={"c": ColumnRule(kind="whole")})
    words, numbers = ({"y": [0, 1] * 50, "c": [v, "b"] * 50} for v in ("a", "7"))
    message = "column c: none of its 100 values is a number .* kind, 'whole'"
    with pytest.warns(DataWarning, match=message):
        assert Encoder.fit(words, schema=schema, min_count=1).tables == {"c": 2}
    known = Encoder.fit(numbers, schema=schema, min_count=1)  # warns of nothing
    with pytest.warns(DataWarning, match=message):
        assert known.extended(words).tables == known.tables
