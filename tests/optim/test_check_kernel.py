# SPDX-License-Identifier: Apache-2.0
"""The search for NaN and infinity finds every array that holds one, at any place."""

import numpy as np
import pytest

from sparsetrain import runtime
from sparsetrain.optim.update.check_kernel import CHUNKS, LANES, which_nonfinite

DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
SIZES = [1, LANES - 1, LANES, LANES + 1, LANES * CHUNKS, LANES * CHUNKS * 3 + 5]


def places(*arrays: np.ndarray) -> list[int]:
    return which_nonfinite([runtime.as_tensor(array) for array in arrays])


@DTYPES
@pytest.mark.parametrize("size", SIZES)
def test_one_number_is_found_at_any_place(size, dtype):
    for place in {0, size // 3, size // 2, size - LANES // 2, size - 1} & set(range(size)):
        for bad in (np.nan, -np.nan, np.inf, -np.inf):
            array = np.ones(size, dtype)
            array[place] = bad
            assert places(array) == [0], (place, bad)


@DTYPES
@pytest.mark.parametrize("size", [0, *SIZES])
def test_the_largest_and_the_smallest_numbers_are_finite(size, dtype):
    limits = np.finfo(dtype)
    numbers = [limits.max, limits.min, limits.smallest_subnormal, -0.0]
    assert places(np.resize(np.array(numbers, dtype), size)) == []


def test_arrays_of_any_shape_and_dtype_are_told_apart():
    bad = np.zeros((3, 7, 5))
    bad[2, 6, 4] = np.inf
    arrays = [np.zeros((40, 30), "f4"), bad, np.zeros(()), bad.astype("f4"), np.array(np.nan)]
    assert places(*arrays) == [1, 3, 4]
