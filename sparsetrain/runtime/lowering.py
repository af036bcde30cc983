# SPDX-License-Identifier: Apache-2.0
"""How kernels for a CPU are lowered: as TVM does, but for three things.

They have no checks that are proved, small arrays live on the stack (`on_stack`), and exp of float32
is arithmetic (`exponential`). The checks are asserts that TVM puts in front of a kernel: that its
arguments fit.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from sparsetrain.runtime.exponential import inline_exp
from sparsetrain.runtime.stack_arrays import place_on_stack

PIPELINE = "sparsetrain"  # name of the pipeline, for TVM
SKIP_ASSERTS = "sparsetrain.unchecked"  # attribute of a kernel; it has no asserts of its own


@tvm.tirx.transform.prim_func_pass(opt_level=0)
def _drop_checks(function: tirx.PrimFunc, _module: Any, _context: Any) -> tirx.PrimFunc:
    """The function without asserts, if it is marked."""
    if not (function.attrs and function.attrs.get(SKIP_ASSERTS)):
        return function
    return tirx.transform.SkipAssert()(tvm.IRModule({"main": function}))["main"]


def _make() -> tuple[Any, Any, Any]:
    lower, finish_host, finish_device = tirx.get_tir_pipeline("s_tir")

    def finish() -> Any:
        @tvm.transform.module_pass(opt_level=0, name="FinishHost")
        def finish_in_arithmetic(module: Any, _context: Any) -> Any:
            with inline_exp():
                return finish_host()(module)

        return tvm.transform.Sequential([_drop_checks, place_on_stack, finish_in_arithmetic])

    return lower, finish, finish_device


tirx.register_tir_pipeline(PIPELINE, _make)
