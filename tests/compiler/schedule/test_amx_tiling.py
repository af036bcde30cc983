# SPDX-License-Identifier: Apache-2.0
"""Tasks of products by tile registers."""

from itertools import product

from tvm import tirx

from sparsetrain.compiler.schedule.amx.helpers import SIDE
from sparsetrain.compiler.schedule.amx.matmul import choose_shape
from sparsetrain.compiler.schedule.product import Operand, Product

SIZES = list(product((8, 13, 16, 64, 100, 367, 472, 512, 1024), repeat=2))
NEAR_CACHE = 2 << 20  # bytes
LONG_BATCH = 2048
BATCH = tirx.Var("b", "int64")


def gradient(rows, columns):
    """A weight's gradient: the sum runs over a batch, known only at run time."""
    return Product(None, Operand(0, 1, 0), Operand(1, 1, 0), 0, 0, rows, columns, BATCH)


def forward(contracted, columns):
    """A layer: rows are a batch."""
    return Product(None, Operand(0, 0, 1), Operand(1, 0, 1), 0, 0, BATCH, columns, contracted)


def test_a_gradient_has_work_for_several_threads_and_little_waste():
    for rows, columns in SIZES:
        assert_work_and_little_waste(rows, columns)


def assert_work_and_little_waste(rows, columns):
    shape = choose_shape(gradient(rows, columns))
    tiles, panels = -(-rows // SIDE), -(-columns // SIDE)
    assert panels % shape.panels == 0
    blocks = -(-tiles // shape.tiles)
    assert blocks * (panels // shape.panels) >= min(4, tiles * panels)
    assert blocks * shape.tiles <= max(1.15 * tiles, tiles + 2)


def test_the_rows_of_a_task_stay_in_a_near_cache():
    for rows, columns in SIZES:
        shape = choose_shape(gradient(rows, columns))
        assert shape.tiles * SIDE * LONG_BATCH * 2 <= NEAR_CACHE / 2, (rows, columns)


def test_rows_come_first_where_all_panels_are_near():
    assert choose_shape(forward(512, 256)).by_rows
    assert not choose_shape(forward(1024, 1024)).by_rows
    assert not choose_shape(gradient(64, 64)).by_rows
