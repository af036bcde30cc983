# SPDX-License-Identifier: Apache-2.0
"""Pass that protects hand-written kernels from fusion and scheduling.

They come with the module, or from operators that are legalized into them. Fusion would undo the
schedule of a kernel marked `tirx.is_scheduled`, and fails on kernels without blocks or with 32-bit
extents.
"""

import tvm
from tvm import tirx

from sparsetrain.compiler.schedule.rule import has_blocks, has_wide_extents


@tvm.transform.module_pass(opt_level=0, name="KeepHandWrittenKernels")
class KeepHandWrittenKernels:
    """Make hand-written kernels opaque to fusion."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Set `op_pattern` of such kernels to opaque."""
        opaque = 8  # OpPatternKind.kOpaque, which Python does not name.
        functions = {
            name: function.with_attr("op_pattern", opaque) if _is_kept(function) else function
            for name, function in mod.functions_items()
        }
        return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _is_kept(function: tvm.ir.BaseFunc) -> bool:
    return isinstance(function, tirx.PrimFunc) and not (
        has_blocks(function)
        and has_wide_extents(function)
        and not function.attrs.get("tirx.is_scheduled")
    )
