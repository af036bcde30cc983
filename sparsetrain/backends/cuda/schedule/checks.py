# SPDX-License-Identifier: Apache-2.0
"""Checks of CUDA kernels: names must be C++ identifiers, and loops must be bound to threads.

The source of a CUDA kernel contains its name, and `emit_te` names a kernel after its Python
function, which may be ``<lambda>``. TVM compiles code outside of thread bindings for the host,
where it would write to device memory and crash the process. So a kernel that no rule has
parallelized is refused with an error that names it. Cost: a check of each kernel at compile time.
"""

from __future__ import annotations

import re
from itertools import count

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import GlobalVar
from tvm_ffi import WalkResult

from sparsetrain.errors import ConfigError

_NOT_IN_NAMES = re.compile(r"\W", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@tvm.transform.module_pass(opt_level=0, name="NameForC")
class NameForC:
    """Pass that renames kernels with names that are not C++ identifiers."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Rename kernels with invalid names."""
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
    """Return a map from the old names of these kernels to new global variables."""
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


_LAUNCHES = ("thread_extent", "virtual_thread")


@tvm.transform.module_pass(opt_level=0, name="RequireThreads")
class RequireThreads:
    """Pass that refuses kernels that TVM would run on the host."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Return the module unchanged.

        Raises
        ------
        ConfigError
            If a kernel writes memory outside of device threads; the message names it.
        """
        for name, function in mod.functions_items():
            if isinstance(function, tirx.PrimFunc) and writes_on_the_host(function):
                raise ConfigError(
                    f"kernel {name.name_hint!r} has no threads, so CUDA would run it on the host: "
                    "bind its loops to blockIdx.x and threadIdx.x, or write it in blocks with "
                    "extents of int64, which are scheduled"
                )
        return mod


def writes_on_the_host(kernel: tirx.PrimFunc) -> bool:
    """Whether a kernel stores anything outside of loops that are bound to threads."""
    stores: list[tirx.BufferStore] = []

    def loop(statement: tirx.For) -> WalkResult | None:
        return WalkResult.SKIP if statement.kind == tirx.ForKind.THREAD_BINDING else None

    def attribute(statement: tirx.AttrStmt) -> WalkResult | None:
        return WalkResult.SKIP if statement.attr_key in _LAUNCHES else None

    looks = [(tirx.For, loop), (tirx.AttrStmt, attribute), (tirx.BufferStore, stores.append)]
    tvm_ffi.structural_walk(kernel.body, looks, order="pre")
    return bool(stores)
