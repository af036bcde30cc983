# SPDX-License-Identifier: Apache-2.0
"""Pass that elides checks of arguments from the workspace, which this package lays out itself.

`VMShapeLower` checks the rank, dtype and shape of every argument with a symbolic type, in two calls
of the runtime each.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from sparsetrain.compiler.schedule.hoist_allocations import KEPT

_CHECKS = ("vm.builtin.check_tensor_info", "vm.builtin.match_shape")


@tvm.transform.module_pass(opt_level=0, name="ElideWorkspaceChecks")
class ElideWorkspaceChecks:
    """Drop the checks of the arguments of `HoistAllocations` after `VMShapeLower` has written them.

    The workspace lays these arrays out as the program described them, so their shapes are right.
    """

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Rewrite the functions that have such arguments."""
        mod = mod.clone()
        for name, function in mod.functions_items():
            count = int((function.attrs or {}).get(KEPT, 0))
            if count:
                mod[name] = _without_checks(function, set(function.params[-count:]))
        return mod


def _without_checks(function: relax.Function, trusted: set[relax.Var]) -> relax.Function:
    blocks = [
        relax.BindingBlock(
            [b for b in block.bindings if not (_checks(b.value) and b.value.args[0] in trusted)]
        )
        for block in function.body.blocks
    ]
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(
        function.params, body, function.ret_ty, function.is_pure, attrs=function.attrs
    )


def _checks(value: Any) -> bool:
    callee = getattr(value, "op", None)
    return isinstance(callee, relax.ExternFunc) and str(callee.global_symbol) in _CHECKS
