# SPDX-License-Identifier: Apache-2.0
"""Kernels of a program that would run on the host of a device, and rules that do not know one."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from sparsetrain.backends.cuda.schedule.schedule_rules import Guarded
from sparsetrain.compiler import schedule
from sparsetrain.errors import ConfigError
from sparsetrain.runtime.compiling import build_relax, compile_relax
from sparsetrain.runtime.targets import resolve_target
from tests.cuda import device
from tests.cuda.test_kernels import there


@I.ir_module
class Loops:
    @T.prim_func
    def twice(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
        for i in range(8):
            b[i] = a[i] * T.float32(2)

    @R.function
    def main(x: R.Tensor((8,), "float32")):
        with R.dataflow():
            y = R.call_tir(Loops.twice, (x,), out_ty=R.Tensor((8,), "float32"))
            R.output(y)
        return y


@I.ir_module
class Threads:
    @T.prim_func
    def twice(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
        for i in T.thread_binding(8, thread="threadIdx.x"):
            b[i] = a[i] * T.float32(2)

    @R.function
    def main(x: R.Tensor((8,), "float32")):
        with R.dataflow():
            y = R.call_tir(Threads.twice, (x,), out_ty=R.Tensor((8,), "float32"))
            R.output(y)
        return y


def test_loops_that_no_thread_runs_are_refused_by_name():
    target = device.hopper()
    message = r"kernel 'twice' has no threads, .* bind its loops to blockIdx\.x and threadIdx\.x"
    with pytest.raises(ConfigError, match=message):
        compile_relax(Loops, target, schedule.pipeline(target))


def test_loops_are_for_a_cpu_and_threads_for_a_device(target):
    module = Loops if target == "cpu" else Threads
    resolved = resolve_target(target)
    machine = build_relax(module, resolved, schedule.pipeline(resolved))
    given = np.arange(8, dtype="f4")
    np.testing.assert_array_equal(machine["main"](there(given, target)).numpy(), 2 * given)


class Fails:
    """A rule of TVM's that asserts of a function what does not hold."""

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, tunable: bool) -> None:
        raise AssertionError


def test_a_rule_that_fails_declines():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    legal = relax.transform.LegalizeOps()(builder.get())
    kernels = [f for f in legal.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert [Guarded(Fails()).apply(kernel, device.hopper(), False) for kernel in kernels] == [None]
