# SPDX-License-Identifier: Apache-2.0
"""Lowering pipeline of CPU kernels: TVM's, with three changes.

Asserts about arguments are dropped where they are proved, small arrays live on the stack
(`stack_arrays`), and exp of float32 is inline arithmetic (`exponential`).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from sparsetrain.runtime.exponential import inline_exp
from sparsetrain.runtime.stack_arrays import place_on_stack

PIPELINE = "sparsetrain"  # the name it is registered by
SKIP_ASSERTS = "sparsetrain.skip_asserts"  # attribute of a kernel without asserts of its own


@tvm.tirx.transform.prim_func_pass(opt_level=0)
def _drop_asserts(function: tirx.PrimFunc, _module: Any, _context: Any) -> tirx.PrimFunc:
    """Remove asserts from a function with the attribute `SKIP_ASSERTS`."""
    if not (function.attrs and function.attrs.get(SKIP_ASSERTS)):
        return function
    return tirx.transform.SkipAssert()(tvm.IRModule({"main": function}))["main"]


def _make() -> tuple[Any, Any, Any]:
    lower, finish_host, finish_device = tirx.get_tir_pipeline("s_tir")

    def finish() -> Any:
        @tvm.transform.module_pass(opt_level=0, name="FinishHost")
        def finish_with_inline_exp(module: Any, _context: Any) -> Any:
            with inline_exp():
                return finish_host()(module)

        return tvm.transform.Sequential([_drop_asserts, place_on_stack, finish_with_inline_exp])

    return lower, finish, finish_device


tirx.register_tir_pipeline(PIPELINE, _make)
