# SPDX-License-Identifier: Apache-2.0
"""Kernels are named by what they compute, whatever a program called them."""

import tvm
import tvm_ffi
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from sparsetrain.runtime.kernel_names import name_by_content, plain_name


@I.ir_module
class Twice:
    """Two kernels that differ in the names of their arguments, and one that does something else."""

    @T.prim_func(s_tir=True)
    def double(x: T.Buffer((4,), "float32"), out: T.Buffer((4,), "float32")):
        for i in range(4):
            out[i] = x[i] + x[i]

    @T.prim_func(s_tir=True)
    def double1(y: T.Buffer((4,), "float32"), z: T.Buffer((4,), "float32")):
        for j in range(4):
            z[j] = y[j] + y[j]

    @T.prim_func(s_tir=True)
    def double2(x: T.Buffer((4,), "float32"), out: T.Buffer((4,), "float32")):
        for i in range(4):
            out[i] = x[i] * T.float32(3)

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        cls = Twice
        once = R.call_tir(cls.double, (x,), out_ty=R.Tensor((4,), "float32"))
        twice = R.call_tir(cls.double1, (once,), out_ty=R.Tensor((4,), "float32"))
        return R.call_tir(cls.double2, (twice,), out_ty=R.Tensor((4,), "float32"))


def names(module):
    return {var.name_hint for var in module.functions}


def called(function):
    found = []
    tvm_ffi.structural_walk(function.body, (tvm.ir.GlobalVar, found.append))
    return [var.name_hint for var in found]


def test_equal_kernels_become_one_that_is_called_in_place_of_both():
    named = name_by_content(Twice)
    kernels = names(named) - {"main"}
    assert len(kernels) == 2 and {plain_name(name) for name in kernels} == {"double"}
    first, second, third = called(named["main"])
    assert first == second != third and {first, third} == kernels


def test_a_name_does_not_depend_on_what_else_a_program_holds():
    alone = tvm.IRModule({"other5": Twice["double1"].without_attr("global_symbol")})
    (name,) = names(name_by_content(alone))
    assert name.replace("other", "double") in names(name_by_content(Twice))
