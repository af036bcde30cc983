# SPDX-License-Identifier: Apache-2.0
"""Kernels of a program that check their arguments, and those that need not."""

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.script import tirx as T

from sparsetrain import runtime
from sparsetrain.compiler import schedule
from sparsetrain.kernels.builder import SCHEDULED
from sparsetrain.runtime.compiling import build_relax
from sparsetrain.runtime.host import host_target
from sparsetrain.runtime.lowering import PIPELINE, SKIP_ASSERTS
from sparsetrain.runtime.tensors import leading_rows
from tests.compiler.schedule.relax_programs import function, run_passes


@T.prim_func(s_tir=True)
def first_differences(x: T.handle, out: T.handle):
    """Its result is one shorter than what it is given."""
    T.func_attr(SCHEDULED)
    n = T.int64()
    X = T.match_buffer(x, (n + T.int64(1), 8), "float32")
    Out = T.match_buffer(out, (n, 8), "float32")
    for i, j in T.grid(n, 8):
        Out[i, j] = X[i + T.int64(1), j] - X[i, j]


@T.prim_func(s_tir=True)
def asserting(x: T.handle, out: T.handle):
    T.func_attr(SCHEDULED)
    n = T.int64()
    X = T.match_buffer(x, (n, 8), "float32")
    Out = T.match_buffer(out, (n, 8), "float32")
    assert n % T.int64(2) == T.int64(0), "an even number of rows"
    for i, j in T.grid(n, 8):
        Out[i, j] = X[i, j]


def calling(kernel, extents):
    """A program that calls a kernel for results of `extents(b)` rows, between two operators."""

    def body(x):
        builder = relax.BlockBuilder.current()
        batch = x.ty.shape[0]
        results = [
            relax.call_tir(
                builder.add_func(kernel.with_attr("global_symbol", "kernel"), "kernel"),
                [relax.op.nn.relu(x)],
                relax.TensorType((rows, 8), "float32"),
            )
            for rows in extents(batch)
        ]
        return relax.Tuple([relax.op.nn.relu(result) for result in results])

    return function({"x": ("b", 8)}, body)


def run(module, x):
    """Its results for an array."""
    machine = build_relax(module, host_target(), schedule.pipeline(host_target()))
    results = machine["main"](runtime.as_tensor(x))
    return [runtime.as_numpy(result) for result in results]


def marked(module):
    lowered = run_passes(module, until="HoistAllocations")
    return {
        var.name_hint: bool((kernel.attrs or {}).get(SKIP_ASSERTS))
        for var, kernel in lowered.functions.items()
        if isinstance(kernel, tirx.PrimFunc)
    }


def test_operators_and_calls_whose_extents_agree_check_nothing():
    module = calling(first_differences, lambda batch: [batch - 1])
    found = marked(module)
    assert all(found[name] for name in ("relu", "kernel", "relu1"))
    x = np.arange(40, dtype="f4").reshape(5, 8) ** 2
    np.testing.assert_array_equal(run(module, x), [np.diff(x, axis=0)])


WRONG = {
    "too many rows": lambda batch: [batch],
    "one call of two": lambda batch: [batch - 1, batch],
}


@pytest.mark.parametrize("case", WRONG)
def test_a_kernel_that_is_called_with_other_extents_says_so(case):
    module = calling(first_differences, WRONG[case])
    assert marked(module)["kernel"] is False
    with pytest.raises(ValueError, match=r"[Mm]ismatched|Invalid"):
        run(module, np.zeros((5, 8), "f4"))


def test_a_symbol_of_a_kernel_that_its_caller_uses_for_another_extent_proves_nothing():
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    square = te.placeholder((n, n), name="square")
    sums = te.compute((n,), lambda i: square[0, i] + square[i, 0])
    kernel = te.create_prim_func([square, sums]).with_attr("global_symbol", "kernel")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((n, m), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = relax.call_tir(
                builder.add_func(kernel, "kernel"), [x], relax.TensorType((m,), "float32")
            )
            result = builder.emit_output(made)
        builder.emit_func_output(result)
    assert marked(builder.get())["kernel"] is False


NOT_PLAIN = {
    "a function from outside": lambda x: relax.call_pure_packed(
        "sparsetrain.test.upper_half", x, ty_args=relax.TensorType((8, 8), "float32")
    ),
    "a view with an offset": lambda x: relax.op.memory.view(x, (8, 8), "float32", 64),
}


@pytest.mark.parametrize("case", NOT_PLAIN)
def test_what_may_have_an_offset_or_any_shape_is_checked_when_it_is_read(case):
    tvm.register_global_func(
        "sparsetrain.test.upper_half", lambda x: leading_rows(x, 4), override=True
    )
    module = function({"x": (16, 8)}, lambda x: relax.op.nn.relu(NOT_PLAIN[case](x)))
    assert marked(module)["relu"] is False
    with pytest.raises(ValueError, match=r"[Mm]ismatched|Invalid"):
        run(module, np.zeros((16, 8), "f4"))


def test_what_a_kernel_asserts_itself_stays():
    module = calling(asserting, lambda batch: [batch])
    assert np.sum(run(module, np.ones((4, 8), "f4"))) == 32
    with pytest.raises(RuntimeError, match="an even number of rows"):
        run(module, np.ones((5, 8), "f4"))


@pytest.mark.parametrize("unchecked", [False, True])
def test_checks_are_code_unless_a_kernel_is_marked(unchecked):
    kernel = first_differences.with_attr({"global_symbol": "kernel", SKIP_ASSERTS: unchecked})
    module = tvm.IRModule({"kernel": kernel})
    text = tvm.compile(module, host_target(), tir_pipeline=PIPELINE).mod.inspect_source("ll")
    assert ("Mismatched" in text) is not unchecked
