# SPDX-License-Identifier: Apache-2.0
"""Pass that marks generated shape functions free of aliasing and makes them reproducible.

A shape function has only one buffer. TVM 0.27 drops `noalias` from a whole LLVM module if the
function that sorts last by name lacks it. Kernels then keep their accumulators in memory, at a
third of the speed. Hand-written kernels should therefore have `tirx.noalias` too.

TVM stores computed extents in the order of memory addresses. This pass sorts the stores by index,
so equal programs have equal code.
"""

import tvm
from tvm import tirx


@tvm.transform.module_pass(opt_level=0, name="SettleShapeFunctions")
class SettleShapeFunctions:
    """Mark and order the functions that `VMShapeLower` generated."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Set `tirx.noalias` on host functions that `VMShapeLower` made, and order their stores."""
        for name, function in mod.functions_items():
            if isinstance(function, tirx.PrimFunc) and function.attrs.get("tirx.is_host_func"):
                settled = function.with_body(_by_place(function.body))
                mod[name] = settled.with_attr("tirx.noalias", True)
        return mod


def _by_place(body: tirx.Stmt) -> tirx.Stmt:
    if not isinstance(body, tirx.SeqStmt):
        return body
    return tirx.SeqStmt(sorted(body.seq, key=lambda store: int(store.indices[0])))
