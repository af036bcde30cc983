# SPDX-License-Identifier: Apache-2.0
"""The random bits: a function of seed, parameter, step, row and column, and random to the eye."""

from functools import cache

import numpy as np
import pytest
from tvm import te
from tvm.script.ir_builder import tirx as T

from sparsetrain import runtime
from sparsetrain.kernels.builder import buffer, kernel, scalar
from sparsetrain.kernels.table_formats.noise import (
    element_bits,
    holding,
    keys_of,
    row_bits,
    times,
    uint,
)
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import host_target
from tests.kernels.table_formats.in_numpy import random_bits

WIDTH = 16


@cache
def _kernel():
    with kernel() as built:
        rows = T.int64()
        out = buffer("out", (rows, WIDTH), "uint32")
        keys = scalar("key0", "int64"), scalar("key1", "int64")
        first = scalar("first", "int64")
        with T.parallel(0, rows) as row:
            words = T.alloc_local((WIDTH,), "uint32")
            shared = row_bits(keys, first + row, holding(T.alloc_local((1,), "uint32"), 0))
            with T.vectorized(0, WIDTH) as column:
                bits = element_bits(shared, column, holding(words, column))
                T.buffer_store(out, bits, [row, column])
    return compile_kernel(built.get(), host_target())


def drawn(keys, first=0, rows=4096):
    out = runtime.empty((rows, WIDTH), "uint32")
    _kernel()(out, *keys, first)
    return runtime.as_numpy(out)


@pytest.mark.parametrize("first", [0, 2**31 - 7, 2**40 + 3])
def test_bits_are_those_of_numpy_for_rows_of_any_number(first):
    keys = keys_of(3, "embeddings.width16.weight", 17)
    expected = random_bits(keys, np.arange(first, first + 4096), WIDTH)
    np.testing.assert_array_equal(drawn(keys, first), expected)


def test_seed_parameter_and_step_each_give_other_keys():
    keys = [keys_of(0, "a", 1), keys_of(1, "a", 1), keys_of(0, "b", 1), keys_of(0, "a", 2)]
    assert len({number for pair in keys for number in pair}) == 8
    assert keys_of(0, "a", 1) == keys[0] and all(0 <= n < 2**32 for pair in keys for n in pair)


def test_bits_are_even_and_neighbours_know_nothing_of_one_another():
    bits = np.stack([drawn(keys_of(0, "a", step), rows=512) for step in range(1, 65)])
    unit = bits.astype(np.float64) / 2**32 - 0.5  # (steps, rows, columns)
    sigma = np.sqrt(1 / 12)
    for axis in range(3):  # means over an axis are as far from 0 as chance has them
        mean = unit.mean(axis=axis)
        spread = mean.std() / (sigma / np.sqrt(unit.shape[axis]))
        assert 0.95 < spread < 1.05
        others = np.roll(unit, 1, axis=axis)
        correlation = (unit * others).mean() / sigma**2
        assert abs(correlation) < 4 / np.sqrt(unit.size)
    for bit in range(32):
        share = (bits >> np.uint32(bit) & 1).mean()
        assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(bits.size)


@pytest.mark.parametrize("first", [0, 2, 50])
def test_a_product_wraps_at_32_bits_though_the_index_does_not_begin_at_0(first):
    out = te.compute((4,), lambda i: times(i + first, 0x9E3779B9) >> uint(3), "out")
    function = te.create_prim_func([out]).with_attr("global_symbol", "main")
    found = runtime.empty((4,), "uint32")
    compile_kernel(function, host_target())(found)
    expected = (np.arange(first, first + 4) * 0x9E3779B9 & 0xFFFFFFFF) >> 3
    np.testing.assert_array_equal(runtime.as_numpy(found), expected)
