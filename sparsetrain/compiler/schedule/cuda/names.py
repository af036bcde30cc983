# SPDX-License-Identifier: Apache-2.0
"""Valid C++ names for kernels: the source of a CUDA kernel contains its name.

`emit_te` names a kernel after its Python function, which may be ``<lambda>``. Cost: a look at each
name at compile time, none in a step.
"""

from __future__ import annotations

import re
from itertools import count

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import GlobalVar

from sparsetrain.kernels.relax_op import compiles_for

_NOT_IN_NAMES = re.compile(r"\W", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@tvm.transform.module_pass(opt_level=0, name="NameForC")
class NameForC:
    """Rename kernels whose names are no identifiers of C++."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Leave a module for another target as it is, and other names."""
        if not compiles_for("cuda"):
            return mod
        renamed = _renamed(mod)
        if not renamed:
            return mod

        def new(var: GlobalVar) -> GlobalVar:
            return renamed.get(var.name_hint, var)

        functions = {}
        for var, function in mod.functions_items():
            function = tvm_ffi.structural_map(function, (GlobalVar, new))
            if var.name_hint in renamed:
                function = function.without_attr("global_symbol")
            functions[new(var)] = function
        return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _renamed(mod: tvm.IRModule) -> dict[str, GlobalVar]:
    """Old name -> the variable that takes its place."""
    taken = {var.name_hint for var in mod.get_global_vars()}
    renamed: dict[str, GlobalVar] = {}
    for var, function in mod.functions_items():
        if isinstance(function, tirx.PrimFunc) and not _IDENTIFIER.fullmatch(var.name_hint):
            plain = _NOT_IN_NAMES.sub("_", f"kernel_{var.name_hint}")
            name = next(n for n in (f"{plain}{k or ''}" for k in count()) if n not in taken)
            taken.add(name)
            renamed[var.name_hint] = GlobalVar(name)
            relax.expr._update_type(renamed[var.name_hint], var.ty)
    return renamed
