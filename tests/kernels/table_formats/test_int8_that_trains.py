# SPDX-License-Identifier: Apache-2.0
"""Rows of int8 that train, against the rows they were made of."""

import numpy as np
import pytest

from sparsetrain.kernels.table_formats import INT8


@pytest.mark.parametrize("width", [1, 2, 16, 33])
def test_a_number_is_off_by_half_a_step_at_most_and_a_step_is_a_64th_of_the_row_at_most(width):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((100, width)) * 10.0 ** rng.integers(-4, 4, (100, 1))
    stored = INT8.rows(rows.astype("f4"))
    assert (stored.dtype, stored.shape) == (np.int8, (100, width + 4))
    scale, largest = INT8.scales(stored), np.abs(rows).max(axis=1, keepdims=True)
    assert (np.frexp(scale)[0] == 0.5).all()
    assert ((largest / 127 <= scale * 1.0001) & (scale <= largest / 63.5)).all()
    assert (np.abs(INT8.floats(stored) - rows) <= scale / 2 + 1e-7 * largest).all()


def test_what_a_row_holds_stays_as_it_is():
    drawn = np.random.default_rng(0).standard_normal((50, 16)).astype("f4")
    rows = INT8.floats(INT8.rows(drawn))
    np.testing.assert_array_equal(INT8.floats(INT8.rows(rows)), rows)


@pytest.mark.parametrize("large", [0.0, 1e-45, 2.0**-126, 127 * 2.0**121])
def test_rows_at_the_ends_of_the_range_have_a_scale(large):
    rows = np.float32([[large, -large, 0, large / 2]])
    stored = INT8.rows(rows)
    assert INT8.scales(stored) >= 2.0**-126
    np.testing.assert_allclose(INT8.floats(stored), rows, rtol=0, atol=max(large / 127, 2.0**-127))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.999 * 2.0**127])
def test_a_row_without_a_scale_reads_as_nan(bad):
    stored = INT8.rows(np.float32([[1, bad], [1, 2]]))
    np.testing.assert_array_equal(INT8.floats(stored), np.float32([[np.nan] * 2, [1, 2]]))
