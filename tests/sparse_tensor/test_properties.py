# SPDX-License-Identifier: Apache-2.0
"""Laws of the algebra on tensors that hypothesis draws.

Few row counts and widths, so that kernels compile once; any number of entries. Values are whole
numbers: every sum is exact, so the laws hold bit for bit.
"""

import numpy as np
from hypothesis import given, settings, strategies

from sparsetrain import runtime
from sparsetrain.sparse_tensor import RowSparse
from tests.helpers import assert_row_sparse, assert_same_bits, dense_sum

fast = settings(max_examples=60, deadline=None, database=None)
WIDTH = 3
ROW_COUNTS = strategies.sampled_from([1, 7, 3000])
SEVEN = strategies.just(7)


@strategies.composite
def tensors(draw, rows=ROW_COUNTS):
    """A `RowSparse` and the dense array that it stands for."""
    num_rows = draw(rows)
    indices = draw(strategies.lists(strategies.integers(0, num_rows), max_size=40))
    index_dtype = draw(strategies.sampled_from(["int32", "int64"]))
    pooled = draw(strategies.booleans())
    stored = draw(strategies.integers(1, 5)) if pooled else len(indices)
    numbers = strategies.lists(
        strategies.integers(-100, 100), min_size=stored * WIDTH, max_size=stored * WIDTH
    )
    values = np.array(draw(numbers), "float32").reshape(stored, WIDTH)
    source = None
    if pooled:
        each = strategies.lists(
            strategies.integers(0, stored - 1), min_size=len(indices), max_size=len(indices)
        )
        source = np.array(draw(each), "int32")
    indices = np.array(indices, index_dtype)
    tensor = RowSparse.from_numpy(indices, values, num_rows, source)
    return tensor, dense_sum(indices, values, num_rows, source)


@fast
@given(tensors())
def test_coalescing_keeps_the_dense_tensor(drawn):
    tensor, dense = drawn
    assert_row_sparse(tensor.coalesce(), dense)


@fast
@given(tensors())
def test_rows_of_a_coalesced_tensor_rise(drawn):
    rows = runtime.as_numpy(drawn[0].coalesce().indices)
    assert (np.diff(rows) > 0).all()


@fast
@given(tensors(SEVEN))
def test_to_dense_is_the_sum_of_the_entries(drawn):
    tensor, dense = drawn
    assert_same_bits(tensor.to_dense(), dense)
    assert_same_bits(tensor.coalesce().to_dense(), dense)


@fast
@given(tensors(SEVEN), tensors(SEVEN))
def test_addition_commutes_once_coalesced(left, right):
    forth, back = (left[0] + right[0]).coalesce(), (right[0] + left[0]).coalesce()
    assert_row_sparse(forth, left[1] + right[1])
    assert_same_bits(forth.values, runtime.as_numpy(back.values))


@fast
@given(tensors(SEVEN), tensors(SEVEN), strategies.integers(-8, 8))
def test_scaling_distributes_over_addition(left, right, factor):
    whole = (left[0] + right[0]).scale(factor)
    parts = left[0].scale(factor) + right[0].scale(factor)
    assert_same_bits(whole.values, runtime.as_numpy(parts.values))
    assert_row_sparse(whole, (left[1] + right[1]) * np.float32(factor))


@fast
@given(tensors())
def test_the_squared_norm_is_that_of_the_dense_tensor(drawn):
    tensor, dense = drawn
    assert tensor.squared_norm() == np.sum(np.square(dense, dtype="float64"))


@fast
@given(tensors())
def test_scipy_and_back_keeps_the_dense_tensor(drawn):
    tensor, dense = drawn
    assert_same_bits(tensor.to_scipy().toarray(), dense)
    assert_row_sparse(RowSparse.from_scipy(tensor.to_scipy()), dense)
