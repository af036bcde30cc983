# SPDX-License-Identifier: Apache-2.0
"""The columns of a row are visited once each, by vectors that fit registers."""

import re

import numpy as np
import pytest
import tvm
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.kernels.loops import HOST_LOOPS
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import host_target

# Width -> numbers of each vector that is written.
VECTORS = {1: {1}, 7: {7}, 16: {16}, 24: {16, 8}, 50: {16, 2}, 96: {32}, 256: {128}}


def adding_one(width: int) -> tvm.tirx.PrimFunc:
    """A kernel that adds 1 to each number of a table in place."""
    with kernel("adding_one") as built:
        (rows,) = extents(1)
        table = buffer("table", (rows, width), "float32")
        with HOST_LOOPS.each_row(rows, width) as (row, columns):
            columns(lambda c: T.buffer_store(table, table[row, c] + T.float32(1), [row, c]))
    return built.get()


@pytest.mark.parametrize("width", VECTORS)
def test_every_column_is_visited_once(width):
    table = tvm.runtime.tensor(np.zeros((3, width), "float32"))
    compile_kernel(adding_one(width), host_target())(table)
    assert np.array_equal(table.numpy(), np.ones((3, width)))


@pytest.mark.parametrize("width", VECTORS)
def test_a_vector_is_a_power_of_two_or_the_rest(width):
    script = adding_one(width).script()
    found = re.findall(r"T\.vectorized\((?:T\.int64\()?(\d+)", script)
    assert {int(lanes) for lanes in found} == VECTORS[width]
