# SPDX-License-Identifier: Apache-2.0
import dataclasses

import numpy as np
import pandas as pd
import pytest

from sparsetrain.data import Batch, Ragged
from sparsetrain.errors import DataError

DENSE = np.arange(6, dtype=np.float32).reshape(3, 2)
IDS = np.arange(9, dtype=np.int64).reshape(3, 3)
LABELS = np.array([0, 1, 1], dtype=np.float32)


def misaligned(array):
    raw = np.zeros(array.nbytes + 1, dtype=np.uint8)
    moved = raw[1:].view(array.dtype).reshape(array.shape)
    moved[...] = array
    assert not moved.flags.aligned
    return moved


def read_only(array):
    copy = array.copy()
    copy.flags.writeable = False
    return copy


SHAPES = {
    "as they are": lambda a: a,
    "strided": lambda a: np.repeat(a, 2, axis=0)[::2],
    "in Fortran order": np.asfortranarray,
    "reversed twice": lambda a: a[::-1].copy()[::-1],
    "read-only": read_only,
    "misaligned": misaligned,
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "lists": lambda a: a.tolist(),
    "pandas": lambda a: pd.DataFrame(a) if a.ndim == 2 else pd.Series(a),
}


@pytest.mark.parametrize("form", SHAPES.values(), ids=SHAPES.keys())
def test_arrays_of_any_form_give_the_same_batch(form):
    batch = Batch(form(DENSE), form(IDS), form(LABELS))
    for found, expected in ((batch.dense, DENSE), (batch.ids, IDS), (batch.labels, LABELS)):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
        assert found.flags.c_contiguous and found.flags.aligned and found.dtype.isnative


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64"])
def test_ids_of_any_integer_type_become_int64(dtype):
    batch = Batch(DENSE, IDS.astype(dtype))
    assert batch.ids.dtype == np.int64
    np.testing.assert_array_equal(batch.ids, IDS)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int64", "uint8"])
def test_dense_of_any_number_type_becomes_float32(dtype):
    np.testing.assert_array_equal(Batch(DENSE.astype(dtype), IDS).dense, DENSE)


@pytest.mark.parametrize("dtype", ["bool", "int64", "float64"])
def test_labels_of_any_number_type_become_float32(dtype):
    np.testing.assert_array_equal(Batch(DENSE, IDS, LABELS.astype(dtype)).labels, LABELS)


def test_a_batch_shares_no_memory_with_its_arguments():
    ids, offsets, weights = np.array([1, 2]), np.array([0, 1, 2, 2]), np.ones(2, np.float32)
    dense, grid, labels = DENSE.copy(), IDS.copy(), LABELS.copy()
    batch = Batch(dense, grid, labels)
    ragged = Batch(dense, [Ragged(ids, offsets, weights)], labels)
    for array in (ids, offsets, weights, dense, grid, labels):
        array[...] = 7
    np.testing.assert_array_equal(batch.ids, IDS)
    np.testing.assert_array_equal(ragged.dense, DENSE)
    assert ragged.ids[0].offsets.tolist() == [0, 1, 2, 2]
    assert ragged.ids[0].weights.tolist() == [1, 1]


def test_a_batch_cannot_be_changed():
    batch = Batch(DENSE, IDS, LABELS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.dense = DENSE
    with pytest.raises(ValueError, match="read-only"):
        batch.ids[0, 0] = 5


def test_a_batch_says_its_sizes():
    assert len(Batch(DENSE, IDS)) == 3
    assert repr(Batch(DENSE, IDS)) == "<Batch: rows=3, dense=2, features=3, labels=no>"
    bags = Ragged([4, 5], [0, 0, 2, 2])
    assert repr(bags) == "<Ragged: bags=3, ids=2>"
    assert repr(Batch(DENSE, [bags], LABELS)) == "<Batch: rows=3, dense=2, features=1, labels=yes>"


def changed(array, where, value):
    copy = np.array(array, dtype=np.result_type(array, value))
    copy[where] = value
    return copy


def bags(ids=(1, 2), offsets=(0, 1, 2, 2), weights=None):
    return [Ragged([0], [0, 0, 1, 1]), Ragged(ids, offsets, weights)]


BAD = {
    "dense of one dimension": ((DENSE[0], IDS), "dense must be (rows, columns), its shape is (2,)"),
    "dense of text": (([["a"]], [[1]]), "dense has dtype <U1; give real numbers"),
    "dense of complex": ((DENSE + 1j, IDS), "dense has dtype complex64; give real numbers"),
    "dense of unequal rows": (([[1], [1, 2]], IDS), "dense cannot be read as an array: "),
    "masked dense": (
        (np.ma.masked_equal(DENSE, 3), IDS),
        "dense is a masked array with masked entries; fill them first",
    ),
    "NaN in dense": (
        (changed(DENSE, (1, 0), np.nan), IDS),
        "dense: row 1, column 0: nan is not finite in float32; "
        "fill or drop it before making a batch",
    ),
    "None in dense": (([[1.0, None]] * 3, IDS), "dense: row 0, column 1: None is not finite"),
    "inf in dense": ((changed(DENSE, (2, 1), np.inf), IDS), "dense: row 2, column 1: inf is not"),
    "dense beyond float32": (
        (changed(DENSE, (0, 0), np.float64(1e300)), IDS),
        "dense: row 0, column 0: 1e+300 is not finite in float32",
    ),
    "no rows": ((DENSE[:0], IDS[:0]), "a batch needs at least one row, dense has none"),
    "fewer ids than rows": ((DENSE, IDS[:2]), "ids have 2 rows, dense has 3"),
    "ids of one dimension": (
        (DENSE, IDS[0]),
        "ids must be (rows, features), their shape is (3,)",
    ),
    "ids of floats": ((DENSE, IDS * 1.0), "ids have dtype float64; give integers"),
    "a negative id": (
        (DENSE, changed(IDS, (1, 2), -4)),
        "ids: row 1, feature 2: id -4 is not in 0..2**63-1",
    ),
    "an id beyond int64": (
        (DENSE, changed(IDS.astype(np.uint64), (0, 1), np.uint64(2**64 - 1))),
        "ids: row 0, feature 1: id 18446744073709551615 is not in 0..2**63-1",
    ),
    "labels of another length": (
        (DENSE, IDS, LABELS[:2]),
        "labels must be (3,) as dense has it, their shape is (2,)",
    ),
    "labels in a column": ((DENSE, IDS, LABELS[:, None]), "labels must be (3,)"),
    "an infinite label": (
        (DENSE, IDS, [0, np.inf, 1]),
        "labels: row 1: the label is inf; it must be a number that is finite in float32",
    ),
    "an infinite label of two": (
        (DENSE, IDS, [[0, 1], [np.nan, 0], [0, -np.inf]]),
        "labels: row 2: the label is -inf; it must be a number that is finite in float32",
    ),
    "labels of three axes": ((DENSE, IDS, LABELS[:, None, None]), "labels must be (3,)"),
    "a null label": (
        (DENSE, IDS, [0, 1, None]),
        "labels: row 2: the label is null; drop the row or give it a number",
    ),
    "a text label": ((DENSE, IDS, ["0", "1", "1"]), "labels has dtype <U1; give real numbers"),
    "one Ragged": (
        (DENSE, Ragged([1], [0, 1])),
        "ids is one Ragged; give a sequence of them, one for each feature",
    ),
    "Ragged beside something else": (
        (DENSE, [Ragged([1], [0, 1]), [1, 2]]),
        "ids mixes Ragged with something else; give a Ragged for each feature",
    ),
    "too few offsets": (
        (DENSE, bags(offsets=[0, 1, 2])),
        "feature 1: 3 offsets for 3 rows; give rows + 1, the last being the number of ids",
    ),
    "offsets that do not begin at 0": (
        (DENSE, bags(offsets=[1, 1, 2, 2])),
        "feature 1: offsets go from 1 to 2; they must go from 0 to the number of ids, 2",
    ),
    "offsets that end early": (
        (DENSE, bags(offsets=[0, 1, 1, 1])),
        "feature 1: offsets go from 0 to 1",
    ),
    "falling offsets": (
        (DENSE, bags(offsets=[0, 2, 1, 2])),
        "feature 1: offsets fall at row 1, from 2 to 1",
    ),
    "float offsets": (
        (DENSE, bags(offsets=[0.0, 1, 2, 2])),
        "feature 1: offsets have dtype float64; give integers",
    ),
    "a negative id in a bag": (
        (DENSE, bags(ids=[1, -2])),
        "ids: row 1, feature 1: id -2 is not in 0..2**63-1",
    ),
    "too many weights": (
        (DENSE, bags(weights=[1, 1, 1])),
        "feature 1: weights must be (2,), one for each id, their shape is (3,)",
    ),
    "a NaN weight": (
        (DENSE, bags(weights=[1, np.nan])),
        "feature 1: weights: entry 1 is not finite",
    ),
}


@pytest.mark.parametrize("arguments, message", BAD.values(), ids=BAD.keys())
def test_a_batch_refuses(arguments, message):
    with pytest.raises(DataError) as caught:
        Batch(*arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_an_empty_bag_and_a_feature_without_ids_are_legal():
    batch = Batch(DENSE, [Ragged([], [0, 0, 0, 0]), Ragged([8], [0, 0, 1, 1])])
    assert [bag.ids.dtype for bag in batch.ids] == [np.int64, np.int64]
    batch.check_rows([1, 9])


CHECKS = {
    "a grid": (Batch(DENSE, IDS), [7, 8, 8], "row 2, feature b: id 8 is outside its table of 8 "),
    "the first of several": (Batch(DENSE, IDS), [3, 4, 9], "row 1, feature a: id 3 is outside"),
    "bags": (
        Batch(
            DENSE, [Ragged([1], [0, 0, 0, 1]), Ragged([2, 9], [0, 1, 1, 2]), Ragged([], [0] * 4)]
        ),
        [2, 9, 1],
        "row 2, feature a: id 9 is outside its table of 9 rows; "
        "use the encoder of the model, or a larger table",
    ),
    "another number of tables": (
        Batch(DENSE, IDS),
        [9],
        "the batch has 3 categorical features, the model 1",
    ),
}


@pytest.mark.parametrize("batch, rows, message", CHECKS.values(), ids=CHECKS.keys())
def test_check_rows_names_the_first_id_outside_its_table(batch, rows, message):
    names = ["a", "a", "b"] if len(rows) == 3 else None
    with pytest.raises(DataError) as caught:
        batch.check_rows(rows, names)
    assert str(caught.value).startswith(message)


def test_check_rows_accepts_the_last_row_of_each_table():
    Batch(DENSE, IDS).check_rows([7, 8, 9])
