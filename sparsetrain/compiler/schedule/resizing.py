# SPDX-License-Identifier: Apache-2.0
"""Pass that keeps kernels whose result has another size from fusing behind a product.

TVM takes a kernel for elementwise if it reads the element of its own index. One that pads an array
at its end does too, but a kernel fused of a product and the padding would write what the product
computes, and leave the rest of the result as it was in memory.
"""

import tvm
from tvm import tirx
from tvm.sym import Analyzer

_BROADCAST, _INJECTIVE = 1, 2  # OpPatternKind, which Python does not name; elementwise is 0


@tvm.transform.module_pass(opt_level=0, name="MarkResizing")
class MarkResizing:
    """Mark elementwise kernels injective whose result and arguments differ in an extent."""

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
    *arguments, result = [p.ty.shape for p in function.params if hasattr(p.ty, "shape")]
    pairs = (zip(one, result, strict=True) for one in arguments if len(one) == len(result))
    equal = Analyzer().can_prove_equal
    return any(not equal(a, 1) and not equal(a, b) for each in pairs for a, b in each)
