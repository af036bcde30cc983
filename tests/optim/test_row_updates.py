# SPDX-License-Identifier: Apache-2.0
"""The row kernel: the dense kernel's bits on touched rows, every other bit left alone."""

from itertools import product

import numpy as np
import pytest

from sparsetrain.sparse_tensor import RowSparse
from tests.helpers import assert_same_bits, dense_sum, slow_except
from tests.optim.formulas import OPTIMIZERS, Run, in_numpy
from tests.small_dlrm import assert_same_state

ROWS = 9
EACH = pytest.mark.parametrize("name", OPTIMIZERS)
CLOSE = {"float32": {"rtol": 1e-5, "atol": 1e-6}, "float64": {"rtol": 1e-13, "atol": 1e-14}}


def draw(width: int, dtype: str = "float32", seed: int = 0):
    rng = np.random.default_rng(seed)
    return rng, rng.standard_normal((ROWS, width)).astype(dtype)


def assert_same_arrays(found: Run, expected: Run) -> None:
    assert_same_state(found.arrays(), expected.arrays())


WIDTHS = [*((name, 17) for name in OPTIMIZERS), *(("adagrad", width) for width in (1, 131, 256))]


@pytest.mark.parametrize(
    ("name", "width"), slow_except([("mixed", 17), ("adagrad", 1), ("adagrad", 131)], WIDTHS)
)
def test_touched_rows_get_the_bits_of_the_dense_kernel(name, width):
    rng, weight = draw(width)
    rows, dense = Run(OPTIMIZERS[name], weight), Run(OPTIMIZERS[name], weight)
    for _ in range(3):
        indices, values = rng.permutation(ROWS), rng.standard_normal((ROWS, width)).astype("f4")
        rows.apply(RowSparse.from_numpy(indices, values, ROWS))
        dense.apply(dense_sum(indices, values, ROWS))
    assert_same_arrays(rows, dense)


DTYPES = ("float32", "float64")
QUICK = [*((name, "float32") for name in OPTIMIZERS), ("mixed", "float64")]


@pytest.mark.parametrize(("name", "dtype"), slow_except(QUICK, product(OPTIMIZERS, DTYPES)))
def test_both_kernels_follow_the_formula_in_float64(name, dtype):
    optimizer, (rng, weight) = OPTIMIZERS[name], draw(3, dtype)
    rows, dense = Run(optimizer, weight), Run(optimizer, weight)
    exact = {n: a.astype("f8") for n, a in rows.arrays().items()}
    for _ in range(3):
        values = rng.standard_normal((ROWS, 3)).astype(dtype)
        rows.apply(RowSparse.from_numpy(np.arange(ROWS), values, ROWS))
        dense.apply(values)
        w = exact.pop("w")
        w, exact = in_numpy(optimizer, w, values.astype("f8"), exact)
        exact["w"] = w
    for run in (rows, dense):
        for key, array in run.arrays().items():
            assert array.dtype == dtype
            np.testing.assert_allclose(array, exact[key], **CLOSE[dtype])


KINDS = ("int32", "int64")
QUICK = [*((name, "int32") for name in OPTIMIZERS), ("mixed", "int64")]


@pytest.mark.parametrize(("name", "index_dtype"), slow_except(QUICK, product(OPTIMIZERS, KINDS)))
def test_untouched_rows_and_their_slots_keep_their_bits(name, index_dtype):
    rng, weight = draw(3)
    weight[0], weight[8] = np.nan, -0.0  # bits that arithmetic would not preserve
    run = Run(OPTIMIZERS[name], weight)
    before = run.arrays()
    for _ in range(3):
        indices = rng.choice([2, 3, 5], 20).astype(index_dtype)
        run.apply(RowSparse.from_numpy(indices, rng.standard_normal((20, 3)).astype("f4"), ROWS))
    untouched = [0, 1, 4, 6, 7, 8]
    for key, array in run.arrays().items():
        assert_same_bits(array[untouched], before[key][untouched])
        assert (array[[2, 3, 5]] != before[key][[2, 3, 5]]).all()


QUICK = [*((name, False) for name in OPTIMIZERS), ("mixed", True)]


@pytest.mark.parametrize(("name", "pooled"), slow_except(QUICK, product(OPTIMIZERS, (False, True))))
def test_duplicates_are_summed_before_the_formula_is_applied_once(name, pooled):
    rng, weight = draw(3)
    indices = rng.integers(0, ROWS + 1, 60)  # with padding
    values = rng.standard_normal((4 if pooled else 60, 3)).astype("f4")
    source = rng.integers(0, 4, 60) if pooled else None
    gradient = RowSparse.from_numpy(indices, values, ROWS, source)
    found = Run(OPTIMIZERS[name], weight).apply(gradient)
    assert_same_arrays(found, Run(OPTIMIZERS[name], weight).apply(gradient.coalesce()))
    assert set(range(ROWS)) < set(indices)
    sums = dense_sum(indices, values, ROWS, source)
    assert_same_arrays(found, Run(OPTIMIZERS[name], weight).apply(sums))


@EACH
@pytest.mark.parametrize("indices", [[], [ROWS, ROWS]], ids=["no entries", "padding alone"])
def test_a_gradient_of_nothing_changes_nothing(name, indices):
    _, weight = draw(3)
    run = Run(OPTIMIZERS[name], weight)
    before = run.arrays()
    run.apply(RowSparse.from_numpy(indices, np.ones((len(indices), 3), "f4"), ROWS))
    assert_same_state(run.arrays(), before)


@EACH
def test_a_table_of_one_row_is_updated(name):
    weight = np.array([[1.0, 2.0, 3.0]], "f4")
    gradient = RowSparse.from_numpy([0] * 5, np.ones((5, 3), "f4"), 1)
    dense = Run(OPTIMIZERS[name], weight).apply(np.full((1, 3), 5, "f4"))
    assert_same_arrays(Run(OPTIMIZERS[name], weight).apply(gradient), dense)


def test_the_sum_of_duplicates_has_a_fixed_order():
    rng, weight = draw(3)
    values = (rng.standard_normal((300, 3)) * 10 ** rng.uniform(-5, 5, (300, 3))).astype("f4")
    indices = rng.integers(0, ROWS, 300)
    found = Run(OPTIMIZERS["sgd"], 0 * weight).apply(RowSparse.from_numpy(indices, values, ROWS))
    sums = dense_sum(indices, values, ROWS)
    assert_same_arrays(found, Run(OPTIMIZERS["sgd"], 0 * weight).apply(sums))
