# SPDX-License-Identifier: Apache-2.0
"""Scale, cast and concat: the same numbers as on the dense tensor, and nothing coalesced."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from sparsetrain import runtime
from sparsetrain.errors import DataError
from sparsetrain.sparse_tensor import RowSparse, algebra
from tests.helpers import assert_row_sparse, assert_same_bits, dense_sum, slow_except

RNG = np.random.default_rng(3)
ROWS, WIDTH = 7, 3
# Name -> entries, dtype of the indices, value rows (None: not pooled).
OPERANDS = {
    "plain int32": (9, "int32", None),
    "plain int64": (9, "int64", None),
    "pooled int32": (9, "int32", 4),
    "pooled int64": (9, "int64", 4),
    "empty": (0, "int64", None),
    "empty pooled": (0, "int32", 4),
}


def operand(name: str, dtype: str = "float32") -> tuple[RowSparse, np.ndarray]:
    """A tensor with duplicates and padding, and the dense array that it stands for."""
    entries, index_dtype, stored = OPERANDS[name]
    indices = RNG.integers(0, ROWS + 1, entries).astype(index_dtype)
    values = RNG.standard_normal((entries if stored is None else stored, WIDTH)).astype(dtype)
    source = None if stored is None else RNG.integers(0, stored, entries)
    tensor = RowSparse.from_numpy(indices, values, ROWS, source)
    return tensor, dense_sum(indices, values, ROWS, source)


# Indices of one type and of two, pooled and not, none on the left and on the right.
QUICK = [
    ("plain int32", "plain int32"),
    ("plain int32", "plain int64"),
    ("plain int64", "pooled int32"),
    ("pooled int64", "plain int32"),
    ("pooled int64", "pooled int64"),
    ("empty", "pooled int64"),
    ("plain int32", "empty pooled"),
]


@pytest.mark.parametrize(("left", "right"), slow_except(QUICK, product(OPERANDS, OPERANDS)))
def test_adding_puts_entries_side_by_side(left, right):
    (a, dense_a), (b, dense_b) = operand(left), operand(right)
    total = a + b
    assert total.nse == a.nse + b.nse and not total.coalesced
    dtypes = {str(t.indices.dtype) for t in (a, b)}
    assert str(total.indices.dtype) == (dtypes.pop() if len(dtypes) == 1 else "int64")
    assert_row_sparse(total, dense_a + dense_b, rtol=1e-6, atol=1e-6)


def test_adding_pooled_tensors_does_not_expand_their_values():
    a, b = operand("pooled int64")[0], operand("pooled int64")[0]
    assert (a + b).values.shape == (8, WIDTH)


def test_adding_coalesced_tensors_gives_one_that_is_not():
    once = operand("plain int64")[0].coalesce()
    twice = once + once
    assert not twice.coalesced
    assert_same_bits(twice.coalesce().values, 2 * runtime.as_numpy(once.values))


def test_adding_three_keeps_their_order():
    parts = [operand("plain int64")[0] for _ in range(3)]
    total = parts[0] + parts[1] + parts[2]
    expected = np.concatenate([runtime.as_numpy(part.values) for part in parts])
    assert_same_bits(total.values, expected)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            RowSparse.from_numpy([0], np.ones((1, WIDTH), "f4"), ROWS + 1),
            r"cannot add \(\(7, 3\), 'float32'\) and \(\(8, 3\), 'float32'\)",
        ),
        (
            RowSparse.from_numpy([0], np.ones((1, WIDTH)), ROWS),
            r"cannot add \(\(7, 3\), 'float32'\) and \(\(7, 3\), 'float64'\)",
        ),
    ],
    ids=["shape", "dtype"],
)
def test_adding_what_does_not_fit_is_refused(other, message):
    with pytest.raises(DataError, match=message):
        operand("plain int64")[0] + other


def test_adding_what_is_not_row_sparse_is_a_type_error():
    with pytest.raises(TypeError, match="unsupported operand"):
        operand("plain int64")[0] + 1


@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize("factor", [-0.5, 3, np.float64(0.1), np.array(2.0)], ids=repr)
def test_scaling_multiplies_every_value(name, factor):
    tensor, dense = operand(name)
    values = runtime.as_numpy(tensor.values)
    assert_same_bits(tensor.scale(factor).values, values * np.float32(factor))
    assert_row_sparse(tensor.scale(factor), dense * np.float32(factor), rtol=1e-6, atol=1e-6)


def test_scaling_by_a_tensor_of_no_axes():
    tensor, dense = operand("plain int32")
    factor = runtime.as_tensor(np.float32(4))
    assert_row_sparse(tensor.scale(factor), dense * np.float32(4), rtol=1e-6)


def test_scaling_and_casting_keep_a_tensor_coalesced():
    once = operand("plain int64")[0].coalesce()
    assert once.scale(2).coalesced and once.cast("float64").coalesced


@pytest.mark.parametrize("name", ["plain int32", "pooled int64", "empty"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_casting_converts_the_values(name, dtype):
    tensor, _ = operand(name)
    assert_same_bits(tensor.cast(dtype).values, runtime.as_numpy(tensor.values).astype(dtype))


@pytest.mark.parametrize("dtype", ["int32", "bool", "float33"])
def test_casting_to_what_values_cannot_be_is_refused(dtype):
    with pytest.raises(DataError, match=f"one of float16, float32, float64, not {dtype}"):
        operand("plain int64")[0].cast(dtype)


@pytest.mark.parametrize("name", ["plain int32", "pooled int64", "empty"])
@pytest.mark.parametrize(("start", "rows"), [(0, 7), (2, 3)])
def test_a_slice_of_rows_turns_the_others_into_padding(name, start, rows):
    tensor, dense = operand(name)
    part = algebra.eager(_slicing(start, rows), tensor)
    assert part.nse == tensor.nse
    assert_row_sparse(part, dense[start : start + rows], rtol=1e-6, atol=1e-6)


def _slicing(start: int, rows: int):
    """`slice_rows` with its numbers bound, under a name of its own: `eager` keeps rules by name."""

    def rule(tensor):
        return algebra.slice_rows(tensor, start, (rows, WIDTH))

    rule.__name__ = f"slice_{start}_{rows}"
    return rule


ARITHMETIC = {
    "difference": (lambda a, b: a - b, lambda a, b: a - b),
    "negation": (lambda a, b: -a, lambda a, b: -a),
    "product": (lambda a, b: a * 0.3, lambda a, b: a * np.float32(0.3)),
    "product from the left": (lambda a, b: np.float32(0.3) * a, lambda a, b: a * np.float32(0.3)),
    "quotient": (lambda a, b: a / 3, lambda a, b: a / np.float32(3)),
    "clip": (lambda a, b: a.clip(-0.5, 0.25), lambda a, b: np.clip(a, -0.5, 0.25)),
}


@pytest.mark.parametrize("left", OPERANDS)
@pytest.mark.parametrize("rule", ARITHMETIC)
def test_arithmetic_is_that_of_the_dense_tensor(rule, left):
    (a, dense_a), (b, dense_b) = operand(left), operand("pooled int64")
    sparse, dense = ARITHMETIC[rule]
    assert_row_sparse(sparse(a, b), dense(dense_a, dense_b), rtol=1e-6, atol=1e-6)


def test_a_quotient_is_divided_not_multiplied_by_the_reciprocal():
    tensor, _ = operand("plain int64")
    expected = runtime.as_numpy(tensor.values) / np.float32(3)
    assert_same_bits((tensor / 3).values, expected)


@pytest.mark.parametrize("left", OPERANDS)
def test_rows_and_norm_are_those_of_the_dense_tensor(left):
    tensor, dense = operand(left)
    rows = np.stack([tensor[row] for row in range(-ROWS, ROWS)])
    np.testing.assert_allclose(rows, np.tile(dense, (2, 1)), rtol=1e-6, atol=1e-6)
    assert tensor.norm() == pytest.approx(np.linalg.norm(dense), rel=1e-6)
    for row in (ROWS, -ROWS - 1):
        with pytest.raises(IndexError, match=f"row {row} of a RowSparse with 7 rows"):
            tensor[row]
    with pytest.raises(TypeError, match=r"\[row\] takes the number of one row, not slice"):
        tensor[1:3]
    with pytest.raises(TypeError, match="not iterable"):
        iter(tensor)


def test_tensors_are_equal_by_their_sums():
    rows, once = np.array([[1, 2, 3], [4, 5, 6], [-4, -5, -6]], "f4"), np.array([[1, 2, 3]], "f4")
    tensor = RowSparse.from_numpy([5, 2, 2], rows, ROWS)
    same = RowSparse.from_numpy(np.array([5], "i4"), once, ROWS)
    assert tensor.equal(same) and same.equal(tensor) and tensor.allclose(same)
    near = same * (1 + 1e-6)
    assert not tensor.equal(near) and tensor.allclose(near) and not tensor.allclose(same * 2)
    assert not same.equal(same.cast("float64"))
    assert not same.equal(RowSparse.from_numpy([5], once, ROWS + 1))
    with pytest.raises(DataError, match=r"shapes \(7, 3\) and \(8, 3\) differ"):
        same.allclose(RowSparse.from_numpy([5], once, ROWS + 1))
    for compare in (same.equal, same.allclose):
        with pytest.raises(DataError, match="takes a RowSparse, not a ndarray"):
            compare(once)


def test_values_that_are_not_finite_are_found_after_the_sum():
    huge = np.full((1, WIDTH), 3e38, "f4")
    one = RowSparse.from_numpy([2], huge, ROWS)
    assert one.isfinite() and not (one + one).isfinite()
    assert not (one * float("nan")).isfinite()


def test_arithmetic_that_would_touch_every_row_is_refused():
    tensor, _ = operand("plain int64")
    with pytest.raises(DataError, match=r"0 is outside \[1, 2\]; every row would change"):
        tensor.clip(1, 2)
    for call in (
        lambda: tensor * np.ones((9, 3)),
        lambda: np.ones(3) * tensor,
        lambda: tensor / "2",
    ):
        with pytest.raises(
            DataError, match="a factor or divisor must be one number, not"
        ) as caught:
            call()
        assert "\n" not in str(caught.value)
    with pytest.raises(TypeError, match="unsupported operand"):
        tensor - 1


def test_what_was_compiled_keeps_no_tensor_alive():
    operand("plain int64")[0].scale(2)
    structures = [structure for _, structure in algebra._compiled.values() if structure is not None]
    assert structures and all(structure.is_traced for structure in structures)


def test_a_tensor_with_a_shape_of_three_axes_keeps_it():
    tensor = replace(RowSparse.from_numpy([1, 5], np.ones((2, 3), "f4"), 6), shape=(2, 3, 3))
    for result in (tensor.scale(2), tensor.cast("float64"), tensor + tensor, tensor.coalesce()):
        assert result.shape == (2, 3, 3)
