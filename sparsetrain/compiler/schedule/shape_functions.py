# SPDX-License-Identifier: Apache-2.0
"""Pass that declares generated shape functions free of aliasing: they have one buffer.

TVM 0.27 drops `noalias` from a whole LLVM module if one function lacks it and sorts last by name.
Kernels then keep their accumulators in memory, at a third of the speed. Hand-written kernels should
therefore carry `tirx.noalias` too.
"""

import tvm
from tvm import tirx


@tvm.transform.module_pass(opt_level=0, name="ShapeFunctionsDoNotAlias")
class ShapeFunctionsDoNotAlias:
    """Mark the functions that `VMShapeLower` generated."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Set `tirx.noalias` on host functions that `VMShapeLower` made."""
        for name, function in mod.functions_items():
            if isinstance(function, tirx.PrimFunc) and function.attrs.get("tirx.is_host_func"):
                mod[name] = function.with_attr("tirx.noalias", True)
        return mod
