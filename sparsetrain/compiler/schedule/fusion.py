# SPDX-License-Identifier: Apache-2.0
"""Passes that prevent fusion where TVM would generate a wrong kernel.

Hand-written kernels are in the module from the start, or replace operators in `LegalizeOps`. Fusion
would discard the schedule of a kernel marked `tirx.is_scheduled`, and it fails on kernels without
blocks or with 32-bit extents.

TVM treats a kernel as elementwise if it reads the same index that it writes. A kernel that pads the
end of an array does this too. But a product fused with the padding would write only the product's
elements and leave the rest of the result uninitialized.
"""

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from sparsetrain.compiler.schedule.rule import has_blocks, has_wide_extents

# OpPatternKind, which TVM's Python API does not expose; elementwise is 0.
_BROADCAST, _INJECTIVE, _OPAQUE = 1, 2, 8


def keep_hand_written_kernels() -> tvm.transform.Pass:
    """Mark hand-written kernels as opaque, so that TVM does not fuse them."""
    return _marking("KeepHandWrittenKernels", _OPAQUE, _is_hand_written)


def mark_resizing() -> tvm.transform.Pass:
    """Mark elementwise kernels as injective if an axis differs in extent between input and output.

    This finds padding and slices, but not broadcasts, which read the axis at index 0.
    """
    return _marking("MarkResizing", _INJECTIVE, _resizes)


def _marking(
    name: str, pattern: int, is_meant: Callable[[tirx.PrimFunc], bool]
) -> tvm.transform.Pass:
    def run(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        functions = {
            var: function.with_attr("op_pattern", pattern)
            if isinstance(function, tirx.PrimFunc) and is_meant(function)
            else function
            for var, function in mod.functions_items()
        }
        return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

    return tvm.transform.module_pass(run, opt_level=0, name=name)


def _is_hand_written(function: tirx.PrimFunc) -> bool:
    scheduled = function.attrs and function.attrs.get("tirx.is_scheduled")
    return bool(scheduled) or not (has_blocks(function) and has_wide_extents(function))


def _resizes(function: tirx.PrimFunc) -> bool:
    if function.attrs is None or int(function.attrs.get("op_pattern", _INJECTIVE)) > _BROADCAST:
        return False
    blocks: list[Any] = []
    loads: list[Any] = []
    tvm_ffi.structural_walk(function.body, (s_tir.SBlock, blocks.append))
    tvm_ffi.structural_walk(function.body, (tvm.ir.TensorLoad, loads.append))
    axes = {axis.var: axis.dom.extent for block in blocks for axis in block.iter_vars}
    equal = Analyzer().can_prove_equal
    return any(
        isinstance(index, tirx.Var) and index in axes and not equal(axes[index], extent)
        for load in loads
        for index, extent in zip(load.indices, load.source.ty.shape, strict=True)
    )
