# SPDX-License-Identifier: Apache-2.0
"""The helper that multiplies by tile registers, called as kernels call it."""

import numpy as np
import pytest
import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from sparsetrain.compiler.schedule.amx.helpers import BEGIN_AND_END, PRODUCT, SIDE
from sparsetrain.kernels.builder import SCHEDULED
from sparsetrain.runtime.host import has_amx_tiles, host_target

pytestmark = pytest.mark.skipif(not has_amx_tiles(host_target()), reason="the CPU has no AMX_BF16")


def product(rows, contracted, columns):
    """A kernel of (rows, k) by pairs of rows (k / 2, 2 x 32), both bits of bfloat16."""
    with IRBuilder() as built, T.prim_func():
        T.func_name("main")
        T.func_attr(SCHEDULED)
        x = argument("x", (rows, contracted), "uint16")
        y = argument("y", (contracted // 2, 2 * SIDE), "uint16")
        to = argument("to", (SIDE, SIDE), "float32")
        with T.attr(T.int32(0), "pragma_import_llvm", BEGIN_AND_END + PRODUCT):
            call("begin")
            places = [T.address_of(buffer[0, 0]) for buffer in (to, x, y)]
            steps = T.int64(contracted // SIDE)
            strides = T.int64(2 * contracted), T.int64(2 * SIDE)
            extents = T.int32(rows), T.int32(columns), T.int32(1)
            call("product", *places[:2], *strides, places[2], steps, *extents)
            call("end")
    return tvm.compile(tvm.IRModule({"main": built.get()}), target=host_target())["main"]


def argument(name, shape, dtype):
    return T.match_buffer(T.arg(name, T.handle()), shape, dtype)


def call(name, *arguments):
    T.evaluate(T.call_extern("int32", f"sparsetrain_amx_{name}", *arguments))


@pytest.mark.parametrize("rows", [1, 16, 17, 32])
@pytest.mark.parametrize(("columns", "contracted"), [(3, 96), (32, 32), (32, 96)])
def test_a_product_reads_the_rows_there_are(rows, columns, contracted):
    random = np.random.default_rng(0)
    x, y = (random.integers(-3, 4, shape) for shape in [(rows, contracted), (contracted, SIDE)])
    pairs = y.reshape(-1, 2, SIDE).transpose(0, 2, 1).reshape(-1, 2 * SIDE)
    to = tvm.runtime.tensor(np.zeros((SIDE, SIDE), np.float32))
    product(rows, contracted, columns)(half_bits(x), half_bits(pairs), to)
    np.testing.assert_array_equal(to.numpy()[:rows, :columns], (x @ y)[:, :columns])


def half_bits(x):
    return tvm.runtime.tensor((x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16))
