# SPDX-License-Identifier: Apache-2.0
"""Tasks of bfloat16 products."""

from itertools import product

from tvm import tirx

from sparsetrain.compiler.schedule.bf16.tiling import LANES, choose_shape
from sparsetrain.compiler.schedule.product import Operand, Product

SIZES = list(product((8, 13, 16, 64, 100, 367, 472, 512, 1024), repeat=2))
NEAR_CACHE = 1 << 20  # bytes
LONG_BATCH = 2048


def gradient(rows, columns):
    """A weight's gradient: the sum runs over a batch, known only at run time."""
    batch = tirx.Var("b", "int64")
    return Product(None, Operand(0, 1, 0), Operand(1, 1, 0), 0, 0, rows, columns, batch)


def test_a_gradient_has_work_for_several_threads_and_little_waste():
    for rows, columns in SIZES:
        assert_work_and_little_waste(rows, columns)


def assert_work_and_little_waste(rows, columns):
    shape = choose_shape(gradient(rows, columns))
    tiles = -(-rows // shape.rows)
    panels = -(-columns // shape.columns)
    groups = 1 if shape.panels is None else panels // shape.panels
    assert shape.panels is None or panels % shape.panels == 0
    blocks = -(-tiles // shape.tiles)
    assert blocks * groups >= min(6, tiles * panels)
    assert blocks * shape.tiles <= max(1.15 * tiles, tiles + 2)


def test_the_rows_of_a_task_stay_in_a_near_cache():
    for rows, columns in SIZES:
        shape = choose_shape(gradient(rows, columns))
        assert shape.tiles * shape.rows * LONG_BATCH * 2 <= NEAR_CACHE / 2, (rows, columns)


def test_a_narrow_gradient_has_as_many_sums_in_flight_as_a_wide_one():
    narrow, wide = (choose_shape(gradient(512, columns)) for columns in (LANES - 3, LANES + 1))
    assert narrow.rows * narrow.vectors == wide.rows * wide.vectors == 16
