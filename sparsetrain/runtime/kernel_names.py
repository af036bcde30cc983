# SPDX-License-Identifier: Apache-2.0
"""Kernel names with a digest of the kernel's code, equal in all programs.

Relax numbers the kernels of each program: a layer may be ``fused_matmul_nt_add3`` in training and
``fused_matmul_nt_add1`` in evaluation. Programs that share a kernel's object file must call it by
the same name. Equal kernels of a program become one.

Cost: 1 ms for the 60 kernels of SASRec.
"""

from __future__ import annotations

import re

import tvm
import tvm_ffi
from tvm import tirx

_NUMBER = re.compile(r"\d+(?=_|$)")  # at the end of a word
_DIGEST = re.compile(r"_[0-9a-f]{16}$")


def name_by_content(module: tvm.IRModule) -> tvm.IRModule:
    """Give each kernel, and every call of it, a name with a digest of its code.

    All Relax passes must have run: they need the types of the called functions.
    """
    named: dict[str, tvm.ir.GlobalVar] = {}
    new: dict[tvm.ir.GlobalVar, tvm.ir.GlobalVar] = {}
    kernels: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
    for var, kernel in module.functions.items():
        if isinstance(kernel, tirx.PrimFunc):
            name = _name(var, kernel)
            new[var] = named.setdefault(name, tvm.ir.GlobalVar(name))
            kernels[new[var]] = kernel.with_attr("global_symbol", name)
    others = {
        var: tvm_ffi.structural_map(function, (tvm.ir.GlobalVar, lambda v: new.get(v, v)))
        for var, function in module.functions.items()
        if var not in new
    }
    return tvm.IRModule(kernels | others, attrs=module.attrs)


def _name(var: tvm.ir.GlobalVar, kernel: tirx.PrimFunc) -> str:
    content = tvm_ffi.structural_hash(kernel.without_attr("global_symbol")) % 2**64
    return f"{_NUMBER.sub('', var.name_hint)}_{content:016x}"


def plain_name(name: str) -> str:
    """Return a kernel's name without the digest."""
    return _DIGEST.sub("", name)
