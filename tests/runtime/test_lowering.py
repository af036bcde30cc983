# SPDX-License-Identifier: Apache-2.0
"""Local arrays of kernels: small ones live on the stack, without a call for each use."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import tirx as T

from sparsetrain import runtime
from sparsetrain.kernels.builder import SCHEDULED
from sparsetrain.runtime import lowering
from sparsetrain.runtime.compiling import compile_kernel, compile_relax
from sparsetrain.runtime.host import host_target

ALLOCATE = "TVMBackendAllocWorkspace"


def kernel(length: int, scope: str):
    """``out[n] = 2 x[n]``, by way of a named scalar, and of an array of a branch in a loop."""

    @T.prim_func(s_tir=True)
    def double(x: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        N = T.int64()
        X = T.match_buffer(x, (N,), "float32")
        Out = T.match_buffer(out, (N,), "float32")
        for n in T.parallel(N):
            value = X[n]
            if value > T.float32(0):
                many = T.alloc_buffer((length,), "float32", scope=scope)
                for i in T.serial(length):
                    many[i] = value
                Out[n] = many[n % length] + value
            else:
                Out[n] = value + value

    return double


def code(function) -> str:
    named = function.with_attr("global_symbol", "kernel")
    module = tvm.IRModule({"kernel": named})
    compiled = tvm.compile(module, host_target(), tir_pipeline=lowering.PIPELINE)
    return compiled.mod.inspect_source("ll")


@pytest.mark.parametrize("scope", ["local", "global"])
@pytest.mark.parametrize("length", [1, 16, lowering.MAX_STACK_BYTES // 4])
def test_small_arrays_and_scalars_are_not_allocated(length, scope):
    assert ALLOCATE not in code(kernel(length, scope))


def test_arrays_that_registers_cannot_hold_stay_in_a_workspace():
    assert ALLOCATE in code(kernel(lowering.MAX_STACK_BYTES // 4 + 1, "global"))


@pytest.mark.parametrize("length", [1, 7, 5000])
def test_wherever_they_live_the_result_is_the_same(length):
    x = np.linspace(-3, 4, 101, dtype="f4")
    out = runtime.empty((101,), "float32")
    compile_kernel(kernel(length, "local"), host_target())(runtime.as_tensor(x), out)
    np.testing.assert_array_equal(runtime.as_numpy(out), 2 * x)


def test_relax_programs_are_compiled_that_way_too():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8,), "float32"))
    with builder.function("main", [x]):
        double = builder.add_func(kernel(4, "local"), "double")
        builder.emit_func_output(builder.emit(relax.call_tir(double, [x], x.ty)))
    executable = compile_relax(builder.finalize(), host_target())
    (library,) = executable.mod.imports
    assert ALLOCATE not in library.inspect_source("ll")
