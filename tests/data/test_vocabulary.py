# SPDX-License-Identifier: Apache-2.0
from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparsetrain.data.columns.category import Vocabulary
from sparsetrain.data.columns.counts import (
    ValueCounts,
    count_values,
    kind_of_column,
    reduce_numbers,
)
from sparsetrain.data.values.arrow_values import NanRule
from sparsetrain.data.values.location import Location
from tests.identity import key_of, kind_of

PLACE, NAN = Location("t"), NanRule()

hexes = st.integers(0, 2**32 - 1).map("{:08x}".format)
NEAR_HEX = ["0000abcd", "0000ABCD", "000abcd", "00000abcd", "0000abcg", " 000abcd", "é000abc"]
NUMBERS = ["12", "-12", "0", "-0", "012", "1.0", "true", "False", "12345678", "305419896"]
NUMBERS += [
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "99999999999999999999",
]
texts = st.one_of(
    st.sampled_from(["", "a", "00000001", *NEAR_HEX, *NUMBERS]), hexes, st.text(max_size=9)
)
columns = st.lists(st.one_of(st.none(), texts), min_size=1, max_size=40)
quick = settings(max_examples=60, deadline=None)


def counted(array):
    return count_values(array, NAN, PLACE)


def learn(values, min_count=1, max_rows=None, type_=None, kind=None):
    counts = counted(pa.array(values, type_ or pa.string()))
    return Vocabulary.blank(NAN).learnt(counts, kind, False, min_count, max_rows)


def encode(vocabulary, values, type_=None):
    return vocabulary.encode(pa.array(values, type_ or pa.string()), PLACE).tolist()


def keys_of(column):
    """Return what makes a key of a text, for a column that holds these texts."""
    return partial(key_of, kind=kind_of(column))


@quick
@given(columns, st.booleans())
@example(["01234567", "12345678"], True)
@example(["68fd1e64", "12"], False)
def test_the_kind_of_a_column_is_what_its_values_make_it(values, is_criteo):
    assert kind_of_column(counted(pa.array(values, pa.string())), is_criteo) == kind_of(
        values, is_criteo
    )


@quick
@given(columns, columns, st.integers(1, 3), st.sampled_from([None, 4, 7]))
@example(["true"], ["00000001"], 1, None)
def test_ids_keep_their_promises(seen, later, min_count, max_rows):
    vocabulary = learn(seen, min_count, max_rows)
    key = keys_of(seen)
    counts = Counter(key(value) for value in seen if value)
    for value, id_ in zip(seen + later, encode(vocabulary, seen + later), strict=True):
        expected = 0 if not value else 1 if counts[key(value)] < min_count else None
        assert id_ == expected if expected is not None else 2 <= id_ < vocabulary.rows
    if max_rows:
        assert vocabulary.rows <= max_rows


hashes = st.integers(-(2**63), 2**63 - 1)


def decode(vocabulary, ids):
    """Return the value of each id: a number, a text, or None for a missing one."""
    values = dict(zip(vocabulary.number_ids.tolist(), vocabulary.numbers.tolist(), strict=True))
    values |= dict(zip(vocabulary.text_ids.tolist(), vocabulary.texts.to_pylist(), strict=True))
    return [{0: None, **values}[id_] for id_ in ids]


@quick
@given(columns)
@example(NEAR_HEX)
@example(["-12", "00000000"])
def test_text_encoded_and_decoded_is_what_it_spells(values):
    vocabulary = learn(values)
    key = keys_of(values)
    assert decode(vocabulary, encode(vocabulary, values)) == [key(value) for value in values]


COLUMNS = {  # the same values as integers, as text, and the kind that both have
    "whole numbers": ([12, 0, -5, 2**40, None], ["12", "00", "-5", f"{2**40}.0", ""], "whole"),
    "ids of 8 digits and more": (
        [12345678, 305419896, 7],
        ["12345678", "305419896", "00000007"],
        "whole",
    ),
    "hashes": (
        [0x12345678, 0x68FD1E64, 0x00000001],
        ["12345678", "68fd1e64", "00000001"],
        "hexadecimal",
    ),
    "names": ([12, 12345678, -1], ["12", "12345678", "-1"], "text"),
    "booleans": ([True, False, None], ["True", "false", ""], "whole"),
}


@pytest.mark.parametrize("numbers, spelled, kind", COLUMNS.values(), ids=COLUMNS.keys())
@pytest.mark.parametrize("type_", [None, pa.float64()])
def test_integers_floats_and_their_text_are_one_value(numbers, spelled, kind, type_):
    stored = (
        pa.array(numbers).cast(type_) if type_ and numbers[0] is not True else pa.array(numbers)
    )
    text = pa.array(spelled)
    of_text, of_numbers = (
        learn(spelled, kind=kind),
        learn(numbers, type_=pa.array(numbers).type, kind=kind),
    )
    assert of_text.rows == of_numbers.rows == 2 + len([n for n in numbers if n is not None])
    for vocabulary in (of_text, of_numbers):
        ids = vocabulary.encode(text, PLACE).tolist()
        assert vocabulary.encode(stored, PLACE).tolist() == ids
        assert vocabulary.encode(text.dictionary_encode(), PLACE).tolist() == ids
        assert 1 not in ids


def test_text_in_a_column_of_numbers_is_never_known():
    for kind in ("whole", "hexadecimal"):
        vocabulary = learn(["12", "seven", "seven"], kind=kind)
        assert encode(vocabulary, ["12", "seven", "012"]) == [2, 1, 2]
        assert vocabulary.rare_share == 2 / 3


@quick
@given(st.lists(st.one_of(st.none(), hashes), min_size=1, max_size=40))
@example([2**63 - 1, None, -(2**63), 2**53 + 1, -9223372036854775807])
def test_64_bit_hashes_beside_nulls_are_encoded_and_decoded_exactly(values):
    vocabulary = learn(values, type_=pa.int64())
    assert decode(vocabulary, encode(vocabulary, values, pa.int64())) == values


@quick
@given(st.sets(hashes, min_size=1, max_size=60), st.integers(4, 20), hashes)
@example({-(2**63), 2**63 - 1, 0, -1}, 4, -(2**63))
def test_hashing_gives_every_integer_there_is_a_row(values, max_rows, stranger):
    vocabulary = learn(sorted(values), max_rows=max_rows, type_=pa.int64())
    ids = encode(vocabulary, [*sorted(values), stranger], pa.int64())
    assert vocabulary.rows == min(max_rows, 2 + len(values))
    assert all(2 <= id_ < vocabulary.rows for id_ in ids[:-1])
    assert ids[-1] == 1 or stranger in values


@quick
@given(columns)
def test_ids_follow_falling_counts(values):
    key = keys_of(values)
    counts = Counter(key(value) for value in values if value)
    ids = {key(v): id_ for v, id_ in zip(values, encode(learn(values), values), strict=True)}
    ranked = sorted(counts, key=ids.get)
    assert [counts[value] for value in ranked] == sorted(counts.values(), reverse=True)
    assert [ids[value] for value in ranked] == list(range(2, 2 + len(ranked)))


@quick
@given(columns, st.sampled_from([pa.large_string(), pa.string_view(), pa.binary()]))
def test_a_dictionary_and_a_slice_of_any_text_type_are_read_alike(values, type_):
    vocabulary = learn(values, 1)
    expected = encode(vocabulary, values)
    array = pa.array(values, pa.string())
    padded = pa.concat_arrays([pa.array(["zzz", None, "00000000"]), array, array]).cast(type_)
    assert vocabulary.encode(padded.slice(3, len(values)), PLACE).tolist() == expected
    coded = array.dictionary_encode()
    assert vocabulary.encode(coded, PLACE).tolist() == expected
    found = Vocabulary.blank(NAN).learnt(counted(coded), "text", False, 1, None)
    assert found.rows >= vocabulary.rows


def test_a_dictionary_may_repeat_values_and_hold_nulls_and_unused_entries():
    coded = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 2, None, 3], pa.int8()), pa.array(["a", "a", None, "", "unused"])
    )
    vocabulary = Vocabulary.blank(NAN).learnt(counted(coded), "text", False, 1, None)
    assert vocabulary.texts.to_pylist() == [b"a"]
    assert vocabulary.encode(coded, PLACE).tolist() == [2, 2, 0, 0, 0]


def test_text_under_a_null_is_not_read():
    hidden = pa.Array.from_buffers(
        pa.string(),
        2,
        [
            pa.py_buffer(b"\x02"),
            pa.array([0, 8, 16], pa.int32()).buffers()[1],
            pa.py_buffer(b"0" * 15 + b"1"),
        ],
    )
    assert hidden.to_pylist() == [None, "00000001"]
    assert encode(learn(["00000001"]), hidden.to_pylist()) == [0, 2]
    assert learn(["00000001"]).encode(hidden, PLACE).tolist() == [0, 2]


@quick
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40), st.integers(1, 4))
def test_counts_do_not_depend_on_how_the_data_is_cut(values, cuts):
    whole, parts = ValueCounts(), ValueCounts()
    whole.add(counted(pa.array(values, pa.int64())))
    for piece in np.array_split(np.array(values, dtype=np.int64), cuts):
        parts.add(counted(pa.array(piece)))
    for found in (whole.total.numbers, parts.total.numbers):
        assert dict(zip(*(part.tolist() for part in found), strict=True)) == Counter(values)
        assert (found[0][1:] > found[0][:-1]).all()


def test_counts_are_merged_as_they_grow():
    counts = ValueCounts()
    for start in range(0, 40):
        counts.add(counted(pa.array(np.arange(start * 50_000, (start + 2) * 50_000))))
    numbers, times = counts.total.numbers
    assert len(numbers) == 41 * 50_000
    assert np.bincount(times).tolist() == [0, 2 * 50_000, 39 * 50_000]


SIGNED = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32()]


def test_an_integer_type_changes_no_key():
    vocabulary = learn([2**32 - 1, 5, 2**32 - 2], type_=pa.int64())
    expected = encode(vocabulary, [5, 2**32 - 1], pa.int64())
    for type_ in (pa.uint32(), pa.uint64()):
        assert encode(vocabulary, [5, 2**32 - 1], type_) == expected
    for type_ in SIGNED:
        assert encode(vocabulary, [5, -1], type_) == [expected[0], 1]


def test_hashes_that_an_int32_made_negative_are_unsigned_from_every_type():
    vocabulary = learn(["ffffffff", "00000005", "0000000a"])
    expected = encode(vocabulary, ["00000005", "ffffffff"])
    assert 1 not in expected
    for type_ in SIGNED:
        assert encode(vocabulary, [5, -1], type_) == expected
    assert encode(vocabulary, ["-1", "-2147483649"]) == [expected[1], 1]


@pytest.mark.parametrize(
    "min_count, max_rows, share",
    [(1, None, 0), (2, None, 2 / 6), (4, None, 1), (2, 4, 2 / 6)],
)
def test_a_vocabulary_knows_which_share_of_its_values_was_rare(min_count, max_rows, share):
    values = ["a", "a", None, "7", "7", "", "b", "c"]
    assert learn(values, min_count, max_rows).rare_share == share
    assert learn([None], 1).rare_share == 0


edges = st.sampled_from([0, 1, 7, 2**32 - 1, 2**32, 2**63 - 1, -1, -(2**63)])
times_of_edges = st.sampled_from([1, 2, 2**31, 2**32 - 1, 2**32])


@quick
@given(st.lists(st.tuples(edges, times_of_edges), max_size=12))
def test_counts_of_equal_numbers_are_added(pairs):
    total = Counter()
    for number, times in pairs:
        total[number] += times
    arrays = (np.array(values, np.int64) for values in zip(*pairs, strict=True))
    numbers, times = reduce_numbers(*arrays) if pairs else reduce_numbers(*np.zeros((2, 0), int))
    assert list(zip(numbers.tolist(), times.tolist(), strict=True)) == sorted(total.items())
