# SPDX-License-Identifier: Apache-2.0
"""Pass that makes reciprocal square roots as exact as on the CPU.

CUDA's `rsqrt` is off by up to two units in the last place. A square root and a division are each
rounded correctly, as on the CPU. Cost: a check of each kernel at compile time.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, Op


@tvm.transform.module_pass(opt_level=0, name="DivideByRoots")
class DivideByRoots:
    """Replace each reciprocal square root by 1 divided by a square root."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Rewrite functions that contain reciprocal square roots."""
        for name, function in mod.functions_items():
            if isinstance(function, tirx.PrimFunc):
                mod[name] = tvm_ffi.structural_map(function, (Call, _divided))
        return mod


def _divided(call: Call) -> Expr:
    if not call.op.same_as(Op.get("tirx.rsqrt")):
        return call
    (number,) = call.args
    return tirx.const(1, str(number.ty.dtype)) / tirx.sqrt(number)
