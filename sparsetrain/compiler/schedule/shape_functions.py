# SPDX-License-Identifier: Apache-2.0
"""Pass that marks generated shape functions as `noalias` and makes their code reproducible.

A shape function has only one buffer, so nothing can alias. TVM 0.27 drops `noalias` from a whole
LLVM module if the function that sorts last by name lacks it. Kernels then keep their accumulators
in memory and run at a third of the speed. Hand-written kernels should therefore have `tirx.noalias`
too.

TVM orders the stores of computed extents by memory addresses, which differ between processes. This
pass sorts the stores by index, so that equal programs have equal code.
"""

import tvm
from tvm import tirx


@tvm.transform.module_pass(opt_level=0, name="SettleShapeFunctions")
class SettleShapeFunctions:
    """Mark and order the functions that `VMShapeLower` generated."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Set `tirx.noalias` on the functions from `VMShapeLower`, and sort their stores."""
        for name, function in mod.functions_items():
            if isinstance(function, tirx.PrimFunc) and function.attrs.get("tirx.is_host_func"):
                settled = function.with_body(_by_place(function.body))
                mod[name] = settled.with_attr("tirx.noalias", True)
        return mod


def _by_place(body: tirx.Stmt) -> tirx.Stmt:
    if not isinstance(body, tirx.SeqStmt):
        return body
    return tirx.SeqStmt(sorted(body.seq, key=lambda store: int(store.indices[0])))
