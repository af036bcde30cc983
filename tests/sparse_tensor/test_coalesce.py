# SPDX-License-Identifier: Apache-2.0
"""Coalescing: unique sorted rows, and sums whose order, hence bits, is fixed."""

import numpy as np
import pytest
from tvm.script.ir_builder import tirx as T

from sparsetrain import runtime
from sparsetrain.errors import DataError
from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import host_target
from sparsetrain.sparse_tensor import RowSparse, coalesce
from sparsetrain.sparse_tensor import plan_kernel as plans
from sparsetrain.sparse_tensor.coalesce import make_plan
from sparsetrain.sparse_tensor.plan_kernel import CHUNK_NOTES, plan_kernel
from tests.helpers import assert_row_sparse, assert_same_bits, dense_sum

RNG = np.random.default_rng(2)
# Name -> indices, rows of the tensor. One radix digit holds 2048 rows.
CASES = {
    "empty": ([], 5),
    "one entry of a tensor of one row": ([0], 1),
    "all duplicates": ([3] * 50, 7),
    "nothing but padding": ([7, 7], 7),
    "no rows at all": ([0, 0], 0),
    "falling": (range(9, -1, -1), 10),
    "first and last row": ([6, 0, 6, 0], 7),
    "duplicates and padding": (RNG.integers(0, 138, 1000), 137),
    "skewed": (RNG.zipf(1.3, 2000) % 500, 500),
    "one digit, full": (RNG.integers(0, 2047, 500), 2047),
    "two digits": (RNG.integers(0, 2049, 500), 2048),
    "three digits": (RNG.integers(0, 2**25, 500), 2**25),
    "most that int32 counts": ([2**31 - 1, 0, 2**31 - 1, 2**30], 2**31),
}
WIDE_CASES = {
    "past int32": ([2**40 - 1, 3, 2**31, 2**40, 3], 2**40),
    "past int32, few bits used": ([5, 1, 5], 2**62),
}
BY_DTYPE = [("int32", CASES), ("int64", CASES | WIDE_CASES)]
WIDTHS = [1, 2, 3, 16, 17, 64, 127, 128, 131, 256, 257]


def scattered(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """Numbers over ten orders of magnitude, so that every order of summing gives other bits."""
    return (RNG.standard_normal(shape) * 10 ** RNG.uniform(-5, 5, shape)).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "indices", "rows"),
    [
        pytest.param(dtype, *case, id=f"{dtype}, {name}")
        for dtype, cases in BY_DTYPE
        for name, case in cases.items()
    ],
)
def test_a_plan_lists_unique_rows_and_their_entries_in_order(dtype, indices, rows):
    indices = np.array(indices, dtype)
    plan = RowSparse.from_numpy(indices, np.zeros((len(indices), 1)), rows).plan()
    unique, first = np.unique(np.sort(indices[indices < rows]), return_index=True)
    assert_same_bits(plan.rows, unique)
    assert_same_bits(plan.offsets, np.append(first, (indices < rows).sum()).astype("i4"))
    assert_same_bits(plan.order, np.argsort(indices, kind="stable").astype("i4"))
    assert plan.num_unique == len(unique)


def test_int32_indices_of_a_tensor_with_more_rows_than_they_can_name():
    indices = np.array([5, 2**30, 7, 2**30, 2**31 - 1, 3000, 5], "int32")
    once = RowSparse.from_numpy(indices, np.ones((7, 2)), 2**40).coalesce()
    assert_same_bits(once.indices, np.array([5, 7, 3000, 2**30, 2**31 - 1], "int32"))
    assert_same_bits(once.values, np.array([[2, 2], [1, 1], [1, 1], [2, 2], [1, 1]], "f8"))


@pytest.mark.parametrize("width", WIDTHS)
def test_sums_have_the_bits_of_adding_one_entry_after_the_other(width):
    indices = RNG.integers(0, 8, 60)
    values = scattered((60, width))
    once = RowSparse.from_numpy(indices, values, 7).coalesce()
    assert_same_bits(once.values, dense_sum(indices, values, 7))
    backwards = dense_sum(indices[::-1], values[::-1], 7)
    assert (backwards != runtime.as_numpy(once.values)).any()


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_sums_are_taken_in_the_dtype_of_the_values(dtype):
    indices, values = RNG.integers(0, 8, 60), RNG.standard_normal((60, 3)).astype(dtype)
    once = RowSparse.from_numpy(indices, values, 7).coalesce()
    assert_same_bits(once.values, dense_sum(indices, values, 7))


@pytest.mark.parametrize("width", [1, 17, 128])
def test_a_pooled_tensor_sums_the_value_row_of_each_entry(width):
    indices, source = RNG.integers(0, 8, 60), RNG.integers(0, 9, 60)
    values = scattered((9, width))
    once = RowSparse.from_numpy(indices, values, 7, source).coalesce()
    assert once.source is None
    assert_same_bits(once.values, dense_sum(indices, values, 7, source))


@pytest.mark.parametrize("name", CASES)
def test_coalescing_agrees_with_float64_within_rounding(name):
    indices, rows = CASES[name]
    if rows > 10**6:
        indices, rows = np.array(indices) % 1000, 1000
    values = RNG.standard_normal((len(indices), 16)).astype("float32")
    once = RowSparse.from_numpy(np.array(indices), values, rows).coalesce()
    expected = dense_sum(indices, values, rows, dtype="float64").astype("float32")
    assert once.coalesced
    assert_row_sparse(once, expected, rtol=1e-4, atol=1e-5)


def test_a_coalesced_tensor_is_its_own_coalesced_form():
    once = RowSparse.from_numpy([2, 2], np.ones((2, 3)), 5).coalesce()
    assert once.coalesce() is once


def test_a_plan_made_before_the_values_gives_the_same_bits():
    indices, values = RNG.integers(0, 8, 60), scattered((60, 3))
    plan = RowSparse.from_numpy(indices, np.zeros((60, 1)), 7).plan()
    tensor = RowSparse.from_numpy(indices, values, 7)
    assert_same_bits(tensor.coalesce(plan).values, runtime.as_numpy(tensor.coalesce().values))


def test_coalescing_changes_nothing_of_its_argument():
    indices, values = RNG.integers(0, 8, 60), scattered((60, 3))
    tensor = RowSparse.from_numpy(indices, values, 7)
    tensor.coalesce()
    assert_same_bits(tensor.indices, indices)
    assert_same_bits(tensor.values, values)


@pytest.mark.parametrize("width", [1, 3, 17])
@pytest.mark.parametrize("source", [None, [0, 1, 1, 0]], ids=["plain", "pooled"])
def test_the_squared_norm_adds_duplicates_first_and_squares_in_float64(width, source):
    values = scattered((4, width))
    tensor = RowSparse.from_numpy([2, 5, 2, 0], values, 5, source)
    sums = dense_sum(np.array([2, 5, 2, 0]), values, 5, source and np.array(source))
    assert tensor.squared_norm() == pytest.approx(np.sum(np.square(sums, dtype="f8")), rel=1e-14)


def test_duplicates_that_cancel_have_no_norm():
    assert RowSparse.from_numpy([2, 2], np.array([[3.0], [-3.0]]), 5).squared_norm() == 0.0


def test_the_squared_norm_of_nothing_is_zero():
    assert RowSparse.from_numpy([], np.empty((0, 3)), 5).squared_norm() == 0.0


@pytest.mark.parametrize("name", CASES)
def test_a_plan_made_without_the_threads_is_the_same(name, monkeypatch):
    monkeypatch.setattr(coalesce, "SHARED_FROM", 1)  # however few the ids
    indices, rows = CASES[name]
    tensor = RowSparse.from_numpy(np.array(indices, "int32"), np.zeros((len(indices), 1)), rows)
    alone = make_plan(tensor.indices, rows, parallel=False)
    for field in ("rows", "order", "offsets"):
        assert_same_bits(getattr(alone, field), runtime.as_numpy(getattr(tensor.plan(), field)))


SPREADS = {
    "all equal": lambda rows, n: np.full(n, rows - 1),
    "two values": lambda rows, n: np.arange(n) % 2 * (rows - 1),
    "falling": lambda rows, n: np.linspace(rows, 0, n),
    "neighbours": lambda rows, n: np.maximum(rows - RNG.integers(0, 9, n), 0),
    "spread": lambda rows, n: RNG.integers(0, rows + 1, n),
}


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("rows", [1, 2047, 2048, 10**4, 2**22 - 1, 2**22, 10**8, 2**31 - 1])
@pytest.mark.parametrize("spread", SPREADS)
def test_one_thread_sorts_by_any_number_of_digits(spread, rows, dtype):
    for count in 1, 130, 2048:
        indices = SPREADS[spread](rows, count).astype(dtype)
        plan = make_plan(runtime.as_tensor(indices), rows, parallel=False)
        assert_same_bits(plan.order, np.argsort(indices, kind="stable").astype("i4"))
        assert_same_bits(plan.rows, np.unique(indices[indices < rows]))


@pytest.mark.parametrize("repeated", [1, 10])
@pytest.mark.parametrize("rows", [5, 2048, 2**22])
@pytest.mark.parametrize("parallel", [False, True])
def test_indices_outside_the_rows_are_counted(rows, parallel, repeated, monkeypatch):
    monkeypatch.setattr(coalesce, "SHARED_FROM", 1)
    some = [0, rows + 1, rows, -1, 2**31 - 1, -(2**31), rows - 1]
    indices = np.array(some * repeated, "int32")
    with pytest.raises(DataError, match=f"{4 * repeated} of {7 * repeated}"):
        make_plan(runtime.as_tensor(indices), rows, parallel=parallel)


def test_all_rows_occur_once():
    """Then every place of `rows` is taken."""
    for count in 32, 33, 256:
        indices = RNG.permutation(count - 1).astype("int32")
        plan = make_plan(runtime.as_tensor(np.append(indices, np.int32(0))), count - 1)
        assert_same_bits(plan.rows, np.arange(count - 1, dtype="int32"))


def _arrays(count: int, chunks: int, dtype: str) -> list[runtime.NDArray]:
    """Keys, order, notes, rows, offsets, counts."""
    others = [(2, count), (chunks, CHUNK_NOTES), (count,), (count + 1,), (2,)]
    kinds = ["int32", "int32", dtype, "int32", "int32"]
    keys = runtime.empty((2 * count,), dtype)
    return [keys, *(runtime.empty(*each) for each in zip(others, kinds, strict=True))]


@pytest.mark.parametrize("indices", [[], [3], [5], [3, 3], [5, 5, 1, 5, 1, 1, 4]])
def test_more_chunks_than_entries_make_the_same_plan(indices):
    """As in a step of several tables, which share what the largest one sorts with."""
    count = len(indices)
    made = _arrays(count, 4, "int32")
    sort = compile_kernel(plan_kernel("int32"), host_target())
    ids = runtime.as_tensor(np.array(indices, "int32"))
    sort(ids, *made, 5)
    _, order, _, rows, offsets, counts = map(runtime.as_numpy, made)
    expected, used = make_plan(ids, 5), counts[0]
    assert counts.tolist() == [expected.num_unique, 0]
    assert_same_bits(expected.rows, rows[:used])
    assert_same_bits(expected.offsets, offsets[: used + 1])
    assert_same_bits(expected.order, order[0])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_kernel_sorts_as_many_digits_as_the_rows_have(dtype):
    with kernel() as built:
        rows, found = (
            buffer("rows", extents(1), "int64"),
            buffer("found", (2, *extents(1)), "int32"),
        )
        with T.serial(rows.shape[0]) as n:
            for place, number in enumerate(plans._digits_of(rows[n], dtype)):
                T.buffer_store(found, number, [place, n])
    most = np.iinfo(dtype).bits - 1
    edges = {max(0, (1 << bits) + more) for bits in range(most) for more in (-1, 0, 1)}
    counts = np.array(sorted({*edges, (1 << most) - 1}), "int64")
    told = runtime.empty((2, len(counts)), "int32")
    compile_kernel(built.get(), host_target())(runtime.as_tensor(counts), told)
    expected = [plans.digits_of(int(count), dtype) for count in counts]
    assert runtime.as_numpy(told).T.tolist() == [[*each] for each in expected]
