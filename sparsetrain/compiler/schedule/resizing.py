# SPDX-License-Identifier: Apache-2.0
"""Pass that keeps kernels whose result has another size from fusing behind a product.

TVM takes a kernel for elementwise if it reads the element of its own index. One that pads an array
at its end does too, but a kernel fused of a product and the padding would write what the product
computes, and leave the rest of the result as it was in memory.
"""

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.sym import Analyzer

_BROADCAST, _INJECTIVE = 1, 2  # OpPatternKind, which Python does not name; elementwise is 0


@tvm.transform.module_pass(opt_level=0, name="MarkResizing")
class MarkResizing:
    """Mark elementwise kernels injective that read an axis of another extent than they run over.

    Padding and slices do; an axis of one element that is broadcast is read at 0.
    """

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Set `op_pattern` of such kernels."""
        functions = {
            name: function.with_attr("op_pattern", _INJECTIVE) if _resizes(function) else function
            for name, function in mod.functions_items()
        }
        return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _resizes(function: tvm.ir.BaseFunc) -> bool:
    if not isinstance(function, tirx.PrimFunc):
        return False
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
