# SPDX-License-Identifier: Apache-2.0
"""Checksums of tables: of all values, and of nothing but them."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import sparsetrain as st
from sparsetrain.data.values.checksum import crc32_of

ROWS = 70_000  # several pieces
COLUMNS = {
    "numbers": (np.arange(ROWS), 7),
    "numbers, some missing": ([None, *range(ROWS - 1)], None),
    "floats": (np.arange(ROWS) / 3, 0.5),
    "switches": (np.arange(ROWS) % 3 == 0, False),
    "text": ([f"item {n}" for n in range(ROWS)], "item 6999"),
    "text, some missing": (["", *map(str, range(ROWS - 2)), "b"], None),
    "lists": ([[n, n] for n in range(ROWS)], [ROWS - 1]),
    "lists of text": ([["a", "bc"]] * ROWS, ["ab", "c"]),
    "lists with nulls": ([[1, None, 2]] * ROWS, [1, 2, None]),
    "decimals": ([Decimal(n) for n in range(ROWS)], Decimal(5)),
    "nothing": ([None] * ROWS, None),
}
# How the same values may lie elsewhere.
LAYOUTS = {
    "in chunks": lambda array: pa.chunked_array([array[:9], array[9:9], array[9:]]),
    "behind others": lambda array: pa.concat_arrays([array[5:8], array])[3:],
    "copied": lambda array: array.take(pa.array(np.arange(len(array)))),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_checksum_tells_the_last_value_of_a_column_but_not_where_it_lies(kind):
    values, other = COLUMNS[kind]
    array = pa.array(values)
    assert {crc32_of(make(array)) for make in LAYOUTS.values()} == {crc32_of(array)}
    changed = pa.concat_arrays([array[:-1], pa.array([other], array.type)])
    assert (crc32_of(changed) == crc32_of(array)) == changed.equals(array)
    assert changed.equals(array) == (kind == "nothing")


def test_a_checksum_is_of_values_whatever_a_null_hides_or_a_dictionary_holds():
    valid = pa.array([True, False]).buffers()[1]
    hidden = [
        pa.Array.from_buffers(pa.int64(), 2, [valid, pa.py_buffer(np.array([1, under]))])
        for under in (2, 3)
    ]
    assert crc32_of(hidden[0]) == crc32_of(hidden[1])
    coded = [
        pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(texts))
        for codes, texts in (([0, 1], ["a", "b"]), ([2, 0], ["b", "unused", "a"]))
    ]
    assert crc32_of(coded[0]) == crc32_of(coded[1])
    views = pa.array(["a", None, "longer than twelve"], pa.string_view())
    assert crc32_of(views) == crc32_of(pa.concat_arrays([views, views])[3:])


def test_the_checksum_of_a_data_set_is_of_every_column_that_is_read():
    numbers = np.arange(ROWS)
    rows = {"label": numbers % 2, "I1": numbers % 5, "C1": numbers % 9, "note": numbers}
    table = pa.table(rows)
    encoder = st.data.Encoder.fit(table)

    def checksum(**columns):
        return st.data.Dataset(pa.table(rows | columns), encoder).checksum()

    assert checksum() == st.data.Dataset(table.slice(0), encoder).checksum()
    last = numbers == ROWS - 1
    assert checksum(note=rows["note"][::-1]) == checksum()
    assert len({checksum(), *(checksum(**{n: rows[n] ^ last}) for n in ("label", "I1", "C1"))}) == 4
