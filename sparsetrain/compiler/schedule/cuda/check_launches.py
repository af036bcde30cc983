# SPDX-License-Identifier: Apache-2.0
"""Check that every kernel of a CUDA program is spread over threads of the device.

TVM compiles code outside any thread binding for the host, where it would write device memory and
end the process. A kernel of a user's own without blocks, or one that no rule could spread, is
refused by name. Cost: a look at each kernel at compile time, none in a step.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm_ffi import WalkResult

from sparsetrain.errors import ConfigError
from sparsetrain.kernels.relax_op import compiles_for

_LAUNCHES = ("thread_extent", "virtual_thread")


@tvm.transform.module_pass(opt_level=0, name="RequireThreads")
class RequireThreads:
    """Refuse kernels that would run on the host of a CUDA device."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """The module as it is.

        Raises
        ------
        ConfigError
            If a kernel writes something that no thread of the device writes.
        """
        if not compiles_for("cuda"):
            return mod
        for name, function in mod.functions_items():
            if isinstance(function, tirx.PrimFunc) and writes_on_the_host(function):
                raise ConfigError(
                    f"kernel {name.name_hint!r} has no threads, so CUDA would run it on the host: "
                    "bind its loops to blockIdx.x and threadIdx.x, or write it in blocks with "
                    "extents of int64, which are scheduled"
                )
        return mod


def writes_on_the_host(kernel: tirx.PrimFunc) -> bool:
    """Whether a kernel stores anything outside of the loops that are bound to threads."""
    stores: list[tirx.BufferStore] = []

    def loop(statement: tirx.For) -> WalkResult | None:
        return WalkResult.SKIP if statement.kind == tirx.ForKind.THREAD_BINDING else None

    def attribute(statement: tirx.AttrStmt) -> WalkResult | None:
        return WalkResult.SKIP if statement.attr_key in _LAUNCHES else None

    looks = [(tirx.For, loop), (tirx.AttrStmt, attribute), (tirx.BufferStore, stores.append)]
    tvm_ffi.structural_walk(kernel.body, looks, order="pre")
    return bool(stores)
