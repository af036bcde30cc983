# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pyarrow as pa
import pytest

from sparsetrain.data import Batch, Encoder
from sparsetrain.errors import ConfigError, DataError
from tests.data.criteo_tables import encoded_table, make_rows, table

ROWS = make_rows()


def single(dense=(0,), category=("a",), label=None):
    """A table of one dense and one category column."""
    return pa.table(
        {
            "I1": pa.array(dense, pa.int64()),
            "C1": pa.array(category, pa.string()),
            "label": pa.array(label or [0] * len(dense)),
        }
    )


def counted(**counts):
    """A table in which each value of C1 occurs so many times."""
    values = [value for value, times in counts.items() for _ in range(times)]
    return single([0] * len(values), values)


def ids_of(encoder, values):
    return encoder.encode(single([0] * len(values), values)).ids[:, 0].tolist()


def test_dense_values_become_logarithms_that_are_finite_below_minus_2():
    values = [-3, -2, -1, 0, 1, 65535, 2**31 - 1, 2**40]
    dense = Encoder.fit(single()).encode(single(values, ["a"] * 8)).dense[:, 0]
    expected = [np.float32(math.log(max(x, -2) + 3)) for x in values]
    np.testing.assert_allclose(dense, expected, rtol=1e-7)
    assert dense[0] == dense[1] == 0


def test_a_missing_dense_value_is_filled_in_raw_units():
    for fill in (0.0, 0.5, -2.0, 17):
        batch = Encoder.fit(single(), dense_fill=fill).encode(single([None, 4], ["a", "a"]))
        assert batch.dense[0, 0] == np.float32(math.log(fill + 3))
        assert batch.dense[1, 0] == np.float32(math.log(7))


def test_flags_come_after_all_values_and_say_what_was_missing():
    encoder = Encoder.fit(table(ROWS), missing_flags=True)
    batch = encoder.encode(table(ROWS))
    assert encoder.num_dense == batch.dense.shape[1] == 6
    missing = np.array([[value is None for value in ROWS[f"I{i}"]] for i in (1, 2, 3)]).T
    np.testing.assert_array_equal(batch.dense[:, 3:], missing)
    np.testing.assert_array_equal(
        batch.dense[:, :3], Encoder.fit(table(ROWS)).encode(table(ROWS)).dense
    )


def test_ids_are_missing_rare_and_then_by_falling_count():
    encoder = Encoder.fit(counted(b=7, a=9, rare=1, c=8), min_count=2)
    assert ids_of(encoder, ["a", "c", "b", "rare", "new", "", None]) == [2, 3, 4, 1, 1, 0, 0]
    assert encoder.rows == [5]


def test_equal_counts_are_ordered_by_value_numbers_first():
    text = {"b": 2, "0000000a": 2, "a": 2, "00000009": 2, "B": 2}
    for order in (text, dict(reversed(text.items()))):
        encoder = Encoder.fit(counted(**order), min_count=1)
        assert ids_of(encoder, ["00000009", "0000000a", "B", "a", "b"]) == [2, 3, 4, 5, 6]


def test_bytes_that_are_no_utf8_are_kept_apart():
    values = pa.array([b"\xff\xfe", b"\xff", b"ok"], pa.binary())
    found = single([0] * 3, ["x"] * 3).set_column(1, "C1", values)
    encoder = Encoder.fit(found, min_count=1)
    assert sorted(encoder.encode(found).ids[:, 0].tolist()) == [2, 3, 4]
    again = Encoder.from_state(*encoder.to_state())
    assert again.encode(found).ids.tolist() == encoder.encode(found).ids.tolist()


def test_a_cap_gives_the_most_frequent_their_own_row_and_hashes_the_others():
    counts = {f"{i:08x}": 100 - i for i in range(80)} | {"rare": 1}
    encoder = Encoder.fit(counted(**counts), min_count=2, max_rows=34)
    ids = ids_of(encoder, [*counts, "new", None])
    assert encoder.rows == [34]
    own, hashed = ids[:28], ids[28:80]
    assert own == list(range(2, 30))
    assert set(hashed) == {30, 31, 32, 33}
    assert ids[80:] == [1, 1, 0]


def test_the_bucket_of_a_value_does_not_depend_on_the_other_values():
    def bucket(**others):
        counts = {f"{i:08x}": 50 for i in range(10)} | others | {"last": 2}
        return ids_of(Encoder.fit(counted(**counts), min_count=2, max_rows=12), ["last"])

    assert bucket() == bucket(x=40, y=30) != [1]


def test_the_layout_names_and_sizes_are_told():
    encoder = Encoder.fit(table(ROWS))
    assert encoder.columns == ("C1", "C2", "C3", "C4")
    assert encoder.dense_columns == ("I1", "I2", "I3")
    assert encoder.num_dense == 3
    assert encoder.layout.startswith("raw, Criteo names: 3 dense")
    assert repr(encoder) == f"<Encoder: dense=3, features=4, rows={sum(encoder.rows)}>"


def test_encoded_data_passes_through():
    found = encoded_table()
    encoder = Encoder.fit(found)
    batch = encoder.encode(found)
    np.testing.assert_array_equal(batch.dense[:, 1], found["I2"].to_numpy())
    np.testing.assert_array_equal(batch.ids[:, 2], found["C3"].to_numpy())
    assert encoder.encoded
    assert encoder.rows == [int(batch.ids[:, f].max()) + 1 for f in range(4)]


def test_an_encoder_for_encoded_data_reads_all_integer_types_but_no_raw_data():
    encoder = Encoder.fit(encoded_table())
    expected = encoder.encode(encoded_table()).ids
    for type_ in (pa.uint8(), pa.int64(), pa.uint64(), pa.dictionary(pa.int8(), pa.int32())):
        found = encoder.encode(encoded_table(integer=type_))
        np.testing.assert_array_equal(found.ids, expected)
    with pytest.raises(DataError, match=r"^t: raw, .*fitted on already encoded data"):
        encoder.encode(table(ROWS), where="t")
    with pytest.raises(DataError, match=r"^t: already encoded, .*fitted on raw data"):
        Encoder.fit(table(ROWS)).encode(encoded_table(), where="t")


def test_encoded_data_can_be_treated_as_raw():
    encoder = Encoder.fit(encoded_table(), treat_as="raw", min_count=1)
    assert not encoder.encoded
    assert encoder.rows == [12] * 4
    assert encoder.encode(encoded_table()).ids.min() == 2


@pytest.mark.parametrize("sizes", [[10, 11, 12, 13], {"C4": 13, "C3": 12, "C2": 11, "C1": 10}])
def test_sizes_can_be_stated(sizes):
    assert Encoder.fit(encoded_table(), sizes=sizes).rows == [10, 11, 12, 13]


def test_prediction_needs_no_label_and_reads_none():
    bad = table(ROWS | {"label": [9] * 60})
    encoder = Encoder.fit(table(ROWS))
    assert encoder.encode(bad, require_label=False).labels is None
    assert encoder.encode(bad.drop_columns(["label"]), require_label=False).labels is None


def test_fitting_needs_no_label():
    bad = table(ROWS).drop_columns(["label"])
    assert Encoder.fit(bad).rows == Encoder.fit(table(ROWS)).rows


REFUSED = {
    "min_count 0": ({"min_count": 0}, table, "min_count is 0; it must be 1 or more"),
    "a cap too small": ({"max_rows": 3}, table, "max_rows is 3; it must be 4 or more"),
    "a fill that is NaN": ({"dense_fill": math.nan}, table, "dense_fill is nan; it must be a fin"),
    "an unknown nan rule": (
        {"nan": "keep"},
        table,
        "nan is 'keep'; it must be 'error' or 'missing'",
    ),
    "sizes for raw data": ({"sizes": [1] * 4}, table, "sizes is for already encoded data, but"),
    "a cap for encoded data": ({"max_rows": 9}, encoded_table, "max_rows is for raw data, but"),
    "flags for encoded data": ({"missing_flags": True}, encoded_table, "missing_flags is for raw"),
    "nan for encoded data": ({"nan": "missing"}, encoded_table, "nan='missing' is for raw data"),
    "a size lacking": ({"sizes": {"C1": 3}}, encoded_table, "sizes lacks C2; give the rows of"),
    "a size too few": ({"sizes": [9]}, encoded_table, "sizes has 1 entries for 4 category columns"),
    "a size of 0": ({"sizes": [9, 0, 9, 9]}, encoded_table, "sizes: C2 has 0 rows; it must be 1.."),
}


@pytest.mark.parametrize("options, make, message", REFUSED.values(), ids=REFUSED.keys())
def test_a_setting_is_refused(options, make, message):
    data = make(ROWS) if make is table else make()
    with pytest.raises(ConfigError) as caught:
        Encoder.fit(data, **options)
    assert str(caught.value).startswith(message)


def test_batches_cannot_be_fitted_nor_encoded():
    batch = Batch([[0.0]], [[0]])
    with pytest.raises(DataError, match="batches, which are encoded already"):
        Encoder.fit([batch])
    with pytest.raises(DataError, match="table: cannot encode a Batch; give an Arrow table"):
        Encoder.fit(table(ROWS)).encode(batch)


def test_floats_that_hold_counts_are_not_taken_for_encoded():
    counts = encoded_table()
    counts = counts.set_column(1, "I1", pa.array(np.arange(60.0) * 100))
    for name in ("I2", "I3"):
        counts = counts.set_column(counts.column_names.index(name), name, pa.array(np.ones(60)))
    with pytest.raises(DataError, match=r"hold whole numbers up to 5900; use treat_as='raw' if"):
        Encoder.fit(counts)
    assert not Encoder.fit(counts, treat_as="raw").encoded
    assert Encoder.fit(counts, treat_as="encoded").encoded
