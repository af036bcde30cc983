# SPDX-License-Identifier: Apache-2.0
"""Ids by the key kernel, against a dict and the identity of values in plain Python."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparsetrain.parsing.identity import ABSENT, HEX, KINDS, LOOSE, NUMBER, OTHER, Entries, Texts
from sparsetrain.parsing.lookup import Lookup, hashes_of, keys_of
from tests.identity import is_hexadecimal, key_of, whole_number

quick = settings(max_examples=100, deadline=None)
digits = st.integers(0, 2**32 - 1).map("{:08x}".format)
integers = st.integers(-(2**64), 2**65).map(str)
padded = st.builds("{}{}{}".format, st.sampled_from(["", "-", "+"]), st.sampled_from(["0", "00"]),
                   st.integers(0, 10**20))  # fmt: skip
EDGES = ["", "-", "--1", "-0", "0", "00", "-01", ".0", "1.", "1.0", "-1.00", "1.01", "12.0x", "1e3"]
EDGES += ["+1", " 1", "1 ", "true", "True", "TRUE", "tRUE", "truex", "false", "False", "FALSE"]
EDGES += ["9223372036854775807", "-9223372036854775808", "-9223372036854775809"]
EDGES += ["18446744073709551615", "18446744073709551616", "0" * 40 + "7", "99999999", "ffffffff"]
EDGES += [
    "FFFFFFFF",
    "0000000g",
    "fffffff",
    "fffffffff",
    "é00000b",
    "１２",
    "\0",
    "12\0",
    "1234567`",
]
texts = st.one_of(st.sampled_from(EDGES), digits, integers, padded, st.text(max_size=12))


def lookup_of(columns):
    """Return a lookup of columns, each a kind and a dict from keys to ids."""
    made = []
    for kind, known in columns:
        numbers = {k: v for k, v in known.items() if isinstance(k, int)}
        names = {k: v for k, v in known.items() if isinstance(k, bytes)}
        arrays = (np.array([*each], np.int64) for each in (numbers, numbers.values()))
        ids = np.array([*names.values()], np.int64)
        made.append(Entries(KINDS.index(kind), *arrays, Texts.of([*names]), ids))
    return Lookup(made)


def known_of(values, kind):
    keys = dict.fromkeys(key_of(value, kind) for value in values)
    kept = [k for k in keys if k is not None and (kind == "text" or isinstance(k, int))]
    return {key: 2 + i for i, key in enumerate(kept)}


def expected(values, kind, known):
    keys = [key_of(value, kind) for value in values]
    return [0 if key is None else known.get(key, 1) for key in keys]


def joined(values, dtype=np.int64):
    made = Texts.of([value.encode() for value in values])
    return Texts(made.data, made.offsets.astype(dtype))


@quick
@given(st.lists(texts, max_size=60), st.lists(texts, max_size=20), st.sampled_from(KINDS))
@example(EDGES, EDGES, "text")
@example(EDGES, EDGES, "whole")
@example(EDGES, EDGES, "hexadecimal")
def test_texts_have_the_ids_of_their_keys(seen, others, kind):
    known = known_of(seen, kind)
    lookup = lookup_of([(kind, known)])
    for dtype in (np.int32, np.int64):
        ids = lookup.text_ids(0, joined([*seen, *others], dtype)).tolist()
        assert ids == expected([*seen, *others], kind, known)


@quick
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60), st.sampled_from(KINDS))
@example([-1, -(2**31), -(2**31) - 1, 2**32 - 1, 2**32, 0], "hexadecimal")
def test_numbers_have_the_ids_of_their_keys(numbers, kind):
    known = known_of(numbers[::2], kind)
    lookup = lookup_of([(kind, known)])
    asked = np.array(numbers, np.int64)
    assert lookup.number_ids(0, asked).tolist() == expected(numbers, kind, known)
    for dtype in ("int8", "uint8", "int32", "uint32", "uint64"):
        short = asked.astype(dtype)
        assert lookup.number_ids(0, short).tolist() == expected(short.tolist(), kind, known)


@quick
@given(st.lists(texts, max_size=60))
@example(EDGES)
def test_a_text_has_one_form(values):
    keys, forms = keys_of(joined(values))
    for value, key, form in zip(values, keys.tolist(), forms.tolist(), strict=True):
        number = whole_number(value)
        if not value:
            assert form == ABSENT
        elif is_hexadecimal(value):
            assert (form, key) == (HEX, int(value, 16))
        elif number is None:
            assert form == OTHER
        else:
            assert (form, key) == (NUMBER if number[1] else LOOSE, number[0])


def test_columns_take_turns_and_missing_values_are_not_read():
    seen = ["12", "68fd1e64", "a", "012", "7"]
    columns = [(kind, known_of(seen, kind)) for kind in KINDS]
    lookup, asked = lookup_of(columns), np.array([2, 0, 1], np.int32)
    values, missing = seen * 100, np.arange(500) % 7 == 0
    made = joined(values)
    ids = lookup.text_ids(asked, Texts(made.data, made.offsets, missing)).tolist()
    for i, (value, id_) in enumerate(zip(values, ids, strict=True)):
        kind, known = columns[asked[i % 3]]
        assert id_ == (0 if missing[i] else expected([value], kind, known)[0])
    numbers = lookup.number_ids(asked, np.arange(500), missing).tolist()
    for i, id_ in enumerate(numbers):
        kind, known = columns[asked[i % 3]]
        assert id_ == (0 if missing[i] else known.get(i, 1))


@pytest.mark.parametrize("multiple", [1, 2**31])
def test_keys_that_all_want_one_slot_are_found(multiple):
    inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)
    clash = [i * multiple * inverse % 2**64 for i in range(1, 200)]
    clash = np.array(clash, dtype=np.uint64).view(np.int64)
    values = Entries(0, clash[:100], np.arange(100) + 2)
    assert Lookup([values]).number_ids(0, clash).tolist() == [*range(2, 102), *[1] * 99]


@pytest.mark.parametrize("again", [copy.deepcopy, lambda kept: pickle.loads(pickle.dumps(kept))])  # noqa: S301
def test_a_copy_finds_the_same(again):
    lookup = lookup_of([("text", known_of(["a", "12", str(2**40)], "text"))])
    asked = joined(["a", "b", "12", str(2**40)])
    for _ in range(2):
        assert lookup.text_ids(0, asked).tolist() == [2, 1, 3, 4]
        lookup = again(lookup)


def test_texts_of_one_hash_and_size_are_told_apart():
    texts = [b"a text of more than two words, %06d" % number for number in range(400_000)]
    hashes = hashes_of(Texts.of(texts))
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(np.diff(hashes[order]) == 0)
    assert 0 < len(same) < 100  # chance makes about 20
    known, others = ([texts[i] for i in order[same + n]] for n in (0, 1))
    ids = np.arange(len(known)) + 2
    lookup = Lookup(
        [Entries(2, np.zeros(0, np.int64), np.zeros(0, np.int64), Texts.of(known), ids)]
    )
    assert lookup.text_ids(0, Texts.of(known)).tolist() == ids.tolist()
    unknown = [text for text in others if text not in known]
    assert {*lookup.text_ids(0, Texts.of(unknown)).tolist()} == {1}
