# SPDX-License-Identifier: Apache-2.0
"""Rows of int8 against the rows they were made of."""

import numpy as np
import pytest

from sparsetrain.kernels.table_formats import format_of, uint8
from sparsetrain.kernels.table_formats.uint8 import EXTRA, quantize_rows_
from tests.kernels.table_formats.in_numpy import dequantized


def quantized(rows: np.ndarray) -> np.ndarray:
    out = np.full((len(rows), rows.shape[1] + EXTRA), 77, np.uint8)
    assert quantize_rows_(out, rows) is None
    return out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("width", [1, 2, 16, 33])
def test_a_number_is_off_by_half_a_step_of_its_row_at_most(width, dtype, monkeypatch):
    monkeypatch.setattr(uint8, "BLOCK", 7)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((100, width)) * 10.0 ** rng.integers(-4, 4, (100, 1))
    rows = rows.astype("f4").astype(format_of(dtype).array)
    exact = rows.astype("f8")
    found = dequantized(quantized(rows)).astype("f8")
    step = (exact.max(axis=1) - exact.min(axis=1)) / 255
    bound = 0.5001 * step + 2e-7 * np.abs(exact).max(axis=1)
    assert (np.abs(found - exact) <= bound[:, None]).all()


def test_the_least_and_the_greatest_number_of_a_row_are_the_ends_of_its_scale():
    stored = quantized(np.float32([[3.0, -1.0, 1.2, 0.5]]))
    assert stored[0, :4].tolist() == [255, 0, 140, 96]
    assert stored[0, 4:].view("<f4").tolist() == [np.float32(4 / 255), -1.0]


@pytest.mark.parametrize("row", [[0.0] * 4, [-2.5] * 4, [1e-45, 0, 0, 0], [1e38, -1e38, 0, 1]])
def test_rows_at_the_ends_of_the_range_have_a_scale(row):
    rows = np.float32([row])
    found = dequantized(quantized(rows)).astype("f8")
    span = float(rows.astype("f8").max() - rows.astype("f8").min())
    assert np.isfinite(found).all() and (np.abs(found - rows) <= span / 500 + 1e-43).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2e38])
def test_a_row_without_a_scale_is_named(bad, monkeypatch):
    monkeypatch.setattr(uint8, "BLOCK", 4)
    rows = np.ones((10, 3), "f4")
    rows[6, 1] = bad
    problem = quantize_rows_(np.empty((10, 3 + EXTRA), np.uint8), rows)
    assert problem is not None and problem.row == 6
