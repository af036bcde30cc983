# SPDX-License-Identifier: Apache-2.0
"""The type: what it refuses, what it prints, what goes to SciPy and back."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse

from sparsetrain import runtime
from sparsetrain.errors import DataError, ResourceError
from sparsetrain.sparse_tensor import RowSparse
from tests.helpers import assert_row_sparse, assert_same_bits, dense_sum


def ones(rows: int, width: int = 4, dtype: str = "float32") -> np.ndarray:
    return np.ones((rows, width), dtype)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 6, -1], ones(3), 5), "index 6 at entry 1 is outside 0 to 5, where 5 is padding"),
        (([0, -1], ones(2), 5), "index -1 at entry 1 is outside 0 to 5, where 5 is padding"),
        (([0, 1], ones(3), 5), "2 indices but 3 value rows"),
        (([0, 1], ones(3), 5, [0]), "2 indices but 1 sources"),
        (([0, 1], ones(3), 5, [0, 3]), "source 3 at entry 1 is outside the 3 value rows"),
        (([0, 1], ones(3), 5, [-1, 0]), "source -1 at entry 0 is outside the 3 value rows"),
        (([0], ones(0), 5, [0]), "source 0 at entry 0 is outside the 0 value rows"),
        (([[0], [1]], ones(2), 5), r"indices must be (N,) int32 or int64, not shape (2, 1) int64"),
        (([0], ones(1), 5, [[0]]), "source must be (N,) int32, not shape (1, 1) int32"),
        (([0], np.ones(4), 5), "values must be (M, D) with D of 1 or more, not shape (4,)"),
        (([0], ones(1, 0), 5), "values must be (M, D) with D of 1 or more, not shape (1, 0)"),
        (
            ([0], ones(1, 4, "int64"), 5),
            "values must be one of float16, float32, float64, not int64",
        ),
        (([], ones(0), -1), "num_rows is -1; it must be 0 or more"),
        (([0], ones(1), True), "num_rows is True; it must be a whole number"),
        (([0], ones(1), 1.0), "num_rows is 1.0; it must be a whole number"),
        (([0], ones(1), "3"), "num_rows is '3'; it must be a whole number"),
        (([0], ones(1), None), "num_rows is None; it must be a whole number"),
    ],
)
def test_what_kernels_could_not_trust_is_refused(arguments, message):
    with pytest.raises(DataError) as caught:
        RowSparse.from_numpy(*arguments)
    assert str(caught.value) == "RowSparse: " + message


@pytest.mark.parametrize(
    "indices", [[0.5], np.array([2**63], "uint64"), ["1"]], ids=["float", "too large", "text"]
)
def test_indices_that_are_no_row_numbers_are_refused(indices):
    with pytest.raises(DataError):
        RowSparse.from_numpy(indices, ones(1), 5)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([1, 1], "coalesced, but index 1 at entry 1 is not above index 1 before it"),
        ([3, 1], "coalesced, but index 1 at entry 1 is not above index 3 before it"),
        ([1, 5], "coalesced, but entry 1 is padding"),
    ],
)
def test_a_false_promise_of_being_coalesced_is_refused(indices, message):
    tensor = replace(RowSparse.from_numpy(indices, ones(2), 5), coalesced=True)
    with pytest.raises(DataError, match=message):
        tensor.validate()


def test_a_coalesced_tensor_has_no_source():
    tensor = replace(RowSparse.from_numpy([1], ones(1), 5, [0]), coalesced=True)
    with pytest.raises(DataError, match="a coalesced tensor must have no source"):
        tensor.validate()


def test_a_shape_must_hold_the_rows():
    tensor = RowSparse.from_numpy([1], ones(1), 6)
    assert replace(tensor, shape=(2, 3, 4)).shape == (2, 3, 4)
    with pytest.raises(DataError, match=r"shape \(2, 2, 4\) does not hold 6 rows of width 4"):
        replace(tensor, shape=(2, 2, 4))


@pytest.mark.parametrize(
    ("given", "kept"),
    [("int32", "int32"), ("int64", "int64"), ("uint8", "int64"), (">i4", "int32"), (None, "int64")],
)
def test_indices_stay_int32_if_they_are_and_become_int64_otherwise(given, kept):
    indices = [2, 0] if given is None else np.array([2, 0], given)
    assert str(RowSparse.from_numpy(indices, ones(2), 5).indices.dtype) == kept


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: RowSparse.from_numpy([2, 0, 2], ones(3), 5),
            "RowSparse(5 x 4, float32, nse=3, int64 indices)",
        ),
        (
            lambda: RowSparse.from_numpy(np.array([2, 0], "int32"), ones(2, 1, "float64"), 5),
            "RowSparse(5 x 1, float64, nse=2, int32 indices)",
        ),
        (
            lambda: RowSparse.from_numpy([2, 0, 5], ones(2), 5, [1, 1, 0]),
            "RowSparse(5 x 4, float32, nse=3, int64 indices, 2 value rows)",
        ),
        (
            lambda: RowSparse.from_numpy([2, 0, 2], ones(3), 5).coalesce(),
            "RowSparse(5 x 4, float32, nse=2, int64 indices, coalesced)",
        ),
        (
            lambda: replace(RowSparse.from_numpy([], ones(0), 6), shape=(2, 3, 4)),
            "RowSparse(2 x 3 x 4, float32, nse=0, int64 indices)",
        ),
    ],
)
def test_it_prints_on_one_line(make, text):
    assert repr(make()) == text


COPIES = {
    "pickled": lambda tensor: pickle.loads(pickle.dumps(tensor)),  # noqa: S301
    "copied": copy.deepcopy,
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("source", [None, [1, 1, 0]])
def test_a_pickled_or_copied_tensor_has_the_same_bits(copied, source):
    values = np.arange(12, dtype="float32").reshape(3, 4)
    tensor = replace(RowSparse.from_numpy([2, 0, 2], values, 6, source), shape=(2, 3, 4))
    for made in (tensor, tensor.coalesce()):
        again = copied(made)
        assert repr(again) == repr(made)
        for leaf, expected in zip(again.leaves, made.leaves, strict=True):
            assert_same_bits(leaf, runtime.as_numpy(expected))


def test_it_does_not_become_an_array_silently():
    with pytest.raises(TypeError, match=r"does not become dense silently: to_dense\(\) has all"):
        np.asarray(RowSparse.from_numpy([2, 0], ones(2), 5))


def test_the_number_of_entries_counts_duplicates_and_padding():
    assert RowSparse.from_numpy([2, 2, 5, 5], ones(4), 5).nse == 4


def test_to_dense_adds_duplicates_and_skips_padding():
    indices, values = np.array([2, 5, 2, 0]), np.arange(16, dtype="f4").reshape(4, 4)
    assert_same_bits(
        RowSparse.from_numpy(indices, values, 5).to_dense(), dense_sum(indices, values, 5)
    )


def test_to_dense_of_a_pooled_tensor_reads_the_value_row_of_each_entry():
    indices, values, source = np.array([2, 5, 2]), np.arange(8.0).reshape(2, 4), np.array([1, 0, 0])
    tensor = RowSparse.from_numpy(indices, values, 5, source)
    assert_same_bits(tensor.to_dense(), dense_sum(indices, values, 5, source))


def test_to_dense_has_the_shape_of_the_tensor():
    tensor = replace(RowSparse.from_numpy([1, 5], ones(2), 6), shape=(2, 3, 4))
    expected = dense_sum(np.array([1, 5]), ones(2), 6).reshape(2, 3, 4)
    assert_same_bits(tensor.to_dense(), expected)


def test_to_dense_refuses_more_than_its_limit():
    tensor = RowSparse.from_numpy([1], ones(1), 5)
    assert_same_bits(tensor.to_dense(limit_bytes=80), dense_sum(np.array([1]), ones(1), 5))
    message = (
        "to_dense: shape (1000000000, 4) float32 needs 14.90 GiB, above the limit of 1.00; "
        "pass limit_bytes=None to allow it"
    )
    with pytest.raises(ResourceError) as caught:
        RowSparse.from_numpy([1], ones(1), 10**9).to_dense()
    assert str(caught.value) == message
    with pytest.raises(ResourceError, match="above the limit of 0.00"):
        tensor.to_dense(limit_bytes=79)


def test_to_dense_without_a_limit_says_when_there_is_no_memory():
    tensor = RowSparse.from_numpy([1], ones(1), 2**40)
    with pytest.raises(ResourceError, match="needs 16384.00 GiB, more than the available memory"):
        tensor.to_dense(limit_bytes=None)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scipy_and_back_gives_the_coalesced_tensor(dtype):
    indices, values = np.array([4, 0, 4, 5]), np.arange(12, dtype=dtype).reshape(4, 3)
    tensor = RowSparse.from_numpy(indices, values, 5)
    matrix = tensor.to_scipy()
    assert isinstance(matrix, scipy.sparse.csr_array)
    assert_same_bits(matrix.toarray(), dense_sum(indices, values, 5))
    back, once = RowSparse.from_scipy(matrix), tensor.coalesce()
    assert repr(back).replace("int32", "int64") == repr(once)
    assert_same_bits(back.values, runtime.as_numpy(once.values))


def test_scipy_keeps_a_row_of_explicit_zeros():
    tensor = RowSparse.from_numpy([3], np.zeros((1, 2)), 5)
    assert RowSparse.from_scipy(tensor.to_scipy()).nse == 1


@pytest.mark.parametrize("kind", ["csr", "coo", "csc"])
def test_any_scipy_format_is_taken_and_its_duplicates_are_summed(kind):
    entries = (np.array([1.0, 2, 4, 8]), ([3, 0, 3, 3], [1, 0, 1, 0]))
    matrix = scipy.sparse.coo_array(entries, shape=(5, 2)).asformat(kind)
    tensor = RowSparse.from_scipy(matrix)
    assert tensor.coalesced and tensor.nse == 2
    assert_row_sparse(tensor, matrix.toarray())


def test_an_empty_scipy_matrix_is_an_empty_tensor():
    tensor = RowSparse.from_scipy(scipy.sparse.csr_matrix((4, 3), dtype=np.float32))
    assert_row_sparse(tensor, np.zeros((4, 3), np.float32))


@pytest.mark.parametrize("factor", [np.ones((2, 1), "f4"), np.ones(1), [1.0, 2.0], "2", None])
def test_a_factor_that_is_not_one_number_is_refused(factor):
    tensor = RowSparse.from_numpy([1, 2], np.ones((2, 4), "f4"), 5)
    with pytest.raises(DataError, match=r"RowSparse: a factor or divisor must be one number, not"):
        tensor.scale(factor)
    assert (runtime.as_numpy(tensor.scale(np.float64(2)).values) == 2).all()
