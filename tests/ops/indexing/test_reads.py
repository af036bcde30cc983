# SPDX-License-Identifier: Apache-2.0
"""Reads by ids against NumPy; outside a tensor nothing is read."""

from itertools import product

import numpy as np
import pytest
from tvm.relax import op

from sparsetrain.errors import DataError
from tests.helpers import slow_except
from tests.ops.indexing.programs import TARGETS, compiled, run

X = np.arange(60, dtype="float32").reshape(5, 4, 3) + 1
FAR = 2**40
# The operator; its tensor and ids, of which the last stands for nothing; what NumPy says of others.
READS = {
    "gather_nd": (
        lambda x, ids: op.gather_nd(x, ids),
        {"x": X, "ids": np.array([[0, 1], [-1, -4], [4, 3], [4, 4]])},
        lambda x, ids: x[ids[:, 0], ids[:, 1]],
    ),
    "gather_nd of one axis": (
        lambda x, ids: op.gather_nd(x, ids),
        {"x": X, "ids": np.array([[0], [-5], [4], [-6]])},
        lambda x, ids: x[ids[:, 0]],
    ),
    "gather_nd by batches": (
        lambda x, ids: op.gather_nd(x, ids, batch_dims=1),
        {"x": X[:4], "ids": np.array([[2, 0], [-1, 1], [0, -3], [FAR, 0]])},
        lambda x, ids: np.stack([x[b, i, j] for b, (i, j) in enumerate(ids)]),
    ),
    "gather_elements": (
        lambda x, ids: op.gather_elements(x, ids, axis=0),
        {"x": X[:, :, 0], "ids": np.array([[0, -1], [4, -5], [5, FAR]])},
        lambda x, ids: np.take_along_axis(x[:, :2], ids, 0),
    ),
    "gather_elements of the last axis": (
        lambda x, ids: op.gather_elements(x, ids, axis=-1),
        {"x": X[:3, :, 0], "ids": np.array([[0, -1], [3, -4], [4, -FAR]], "int64")},
        lambda x, ids: np.take_along_axis(x[:2], ids, 1),
    ),
    "index_tensor": (
        lambda x, i, j: op.index_tensor(x, [i, j]),
        {"x": X, "i": np.array([[0], [-1], [7]]), "j": np.array([3, -4, 1], "int32")},
        lambda x, i, j: x[i, j],
    ),
    "take along another axis": (
        lambda x, ids: op.take(x, ids, axis=0),
        {"x": X, "ids": np.array([0, 4, -2, -6])},
        lambda x, ids: x[ids],
    ),
    "take of rows": (
        lambda x, ids: op.take(x, ids, axis=0),
        {"x": X[:, :, 0], "ids": np.array([-1, 4, -5, FAR])},
        lambda x, ids: x[ids],
    ),
}


def without_last(arrays):
    """Less the last row of ids."""
    first = next(name for name in arrays if name != "x")
    return {n: a[:-1] if n == first else a for n, a in arrays.items()}


QUICK = [*((name, "llvm") for name in READS), ("gather_nd", "cuda"), ("take of rows", "cuda")]


@pytest.mark.parametrize(
    ("name", "target"), slow_except(QUICK, product(READS, TARGETS)), indirect=["target"]
)
def test_ids_read_what_numpy_reads_and_outside_they_read_nan(name, target):
    body, arrays, reference = READS[name]
    found = run(body, arrays, target)
    np.testing.assert_array_equal(
        found[:-1], reference(*without_last(arrays).values())[: len(found) - 1]
    )
    assert np.isnan(found[-1]).all()


@pytest.mark.parametrize(
    ("dtype", "nothing"),
    [
        ("float64", np.nan),
        ("float16", np.nan),
        ("int32", -(2**31)),
        ("int64", -(2**63)),
        ("uint8", 255),
        ("bool", False),
    ],
)
def test_what_is_read_outside_is_no_number_or_the_lowest(dtype, nothing):
    given = {"x": X[:, 0].astype(dtype), "ids": np.array([[1], [5], [-6]])}
    found = run(lambda x, ids: op.gather_nd(x, ids), given)
    np.testing.assert_array_equal(found[0], given["x"][1])
    np.testing.assert_array_equal(found[1:], np.full((2, 3), nothing, dtype))


def test_nothing_is_read_of_an_empty_tensor():
    given = {"x": X[:0, 0], "ids": np.array([[0], [-1]])}
    assert np.isnan(run(lambda x, ids: op.gather_nd(x, ids), given)).all()


@pytest.mark.parametrize("mode", ["clip", "wrap"])
@pytest.mark.parametrize("axis", [0, 1])
def test_nothing_is_taken_of_an_axis_of_no_rows(mode, axis, target):
    given = {"x": np.zeros((0, 3) if axis == 0 else (3, 0), "float32"), "ids": np.array([-1, 5])}
    found = run(lambda x, ids: op.take(x, ids, axis, mode), given, target)
    assert np.isnan(found).all() and found.size == 6


@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_modes_of_take_are_those_of_numpy(mode, target):
    given = {"x": X[:, :, 0], "ids": np.array([[0, -1, -6], [4, 5, 99]])}
    found = run(lambda x, ids: op.take(x, ids, 1, mode), given, target)
    np.testing.assert_array_equal(found, np.take(given["x"], given["ids"], 1, mode=mode))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "gather_nd",
            r"'ids': id 4 at \(3, 1\) is outside the axis of length 4 that relax.gather_nd",
        ),
        ("gather_nd of one axis", r"'ids': id -6 at \(3, 0\) is outside the axis of length 5"),
        (
            "gather_nd by batches",
            r"'ids': id 1099511627776 at \(3, 0\) is outside the axis of length 4",
        ),
        ("gather_elements", r"'ids': id 5 at \(2, 0\) is outside the axis of length 5"),
        ("index_tensor", r"'i': id 7 at \(2, 0\) is outside the axis of length 5"),
        ("take along another axis", r"'ids': id -2 at \(2,\) is outside the table's 5 rows"),
    ],
)
def test_ids_that_are_arguments_are_refused(name, message):
    body, arrays, _ = READS[name]
    with pytest.raises(DataError, match=f"^argument {message}"):
        compiled(body, arrays, computed=False)()
