# SPDX-License-Identifier: Apache-2.0
"""Kernels that someone scheduled by hand pass through the pipeline as they are."""

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.script import tirx as T

from tests.compiler.schedule.relax_programs import compile_main, run_passes


@T.prim_func(s_tir=True)
def double_in_loops(x: T.handle, y: T.handle):
    T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
    n = T.int64()
    source = T.match_buffer(x, (n, 8))
    result = T.match_buffer(y, (n, 8))
    for i in T.parallel(n):
        for j in T.vectorized(8):
            result[i, j] = source[i, j] * T.float32(2)


@T.prim_func(s_tir=True)
def double_in_blocks(x: T.handle, y: T.handle):
    T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
    n = T.int64()
    source = T.match_buffer(x, (n, 8))
    result = T.match_buffer(y, (n, 8))
    for i, j in T.grid(n, 8):
        with T.sblock("double"):
            row, column = T.axis.remap("SS", [i, j])
            result[row, column] = source[row, column] * T.float32(2)


@T.prim_func(s_tir=True)
def increment_in_place(x: T.handle):
    T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
    n = T.int64()
    values = T.match_buffer(x, (n, 8))
    for i, j in T.grid(n, 8):
        values[i, j] = values[i, j] + T.float32(1)


def _around(kernel):
    """relu(double(relu(x))), which fusion would merge if it could."""
    builder = relax.BlockBuilder()
    batch = tirx.Var("b", "int64")
    x = relax.Var("x", relax.TensorType((batch, 8), "float32"))
    name = builder.add_func(kernel, "double")
    with builder.function("main", [x]):
        with builder.dataflow():
            h = builder.emit(relax.op.nn.relu(x))
            h = builder.emit(relax.call_tir(name, [h], relax.TensorType((batch, 8), "float32")))
            result = builder.emit_output(relax.op.nn.relu(h))
        builder.emit_func_output(result)
    return builder.finalize()


def test_a_kernel_of_plain_loops_is_neither_fused_nor_touched():
    _check(double_in_loops)


def test_a_kernel_of_blocks_that_is_marked_is_neither_fused_nor_touched():
    _check(double_in_blocks)


def test_a_kernel_of_plain_loops_needs_no_mark():
    _check(double_in_loops.without_attr("tirx.is_scheduled"))


def test_a_kernel_of_32_bit_extents_needs_no_mark_either():
    _check(double_in_blocks.without_attr("tirx.is_scheduled"))


def test_a_kernel_may_write_its_argument_in_place():
    batch = tirx.Var("b", "int64")
    ty = relax.TensorType((batch, 8), "float32")
    builder = relax.BlockBuilder()
    x = relax.Var("x", ty)
    name = builder.add_func(increment_in_place, "increment")
    with builder.function("main", [x]):
        with builder.dataflow():
            h = builder.emit(relax.op.nn.relu(x))
            h = builder.emit(relax.op.call_tir_inplace(name, [h], [0], ty))
            result = builder.emit_output(relax.op.nn.relu(h))
        builder.emit_func_output(result)
    x = np.random.default_rng(0).standard_normal((21, 8), dtype="float32")
    np.testing.assert_array_equal(compile_main(builder.finalize(), "host")(x), np.maximum(x, 0) + 1)


def test_the_callers_module_is_left_as_it_was():
    module = _around(double_in_blocks.without_attr("tirx.is_scheduled"))
    before = tvm.IRModule(dict(module.functions_items()))
    compile_main(module, "host")
    tvm.ir.assert_structural_equal(module, before)


def _check(kernel):
    module = _around(kernel)
    scheduled = run_passes(module, until="ToNonDataflow")
    tvm.ir.assert_structural_equal(
        scheduled[kernel.attrs["global_symbol"]].body, kernel.body, map_free_vars=True
    )
    x = np.random.default_rng(0).standard_normal((21, 8), dtype="float32")
    np.testing.assert_array_equal(compile_main(module, "host")(x), 2 * np.maximum(x, 0))
