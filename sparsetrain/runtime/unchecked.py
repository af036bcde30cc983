# SPDX-License-Identifier: Apache-2.0
"""Kernels whose arguments are proved to fit do not check them again.

The checks are asserts that TVM puts in front of a kernel while it lowers it.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

UNCHECKED = "sparsetrain.unchecked"  # attribute of a kernel; it has no asserts of its own


@tvm.tirx.transform.prim_func_pass(opt_level=0)
def drop_checks(function: tirx.PrimFunc, _module: Any, _context: Any) -> tirx.PrimFunc:
    """The function without asserts, if it is marked."""
    if not (function.attrs and function.attrs.get(UNCHECKED)):
        return function
    return tirx.transform.SkipAssert()(tvm.IRModule({"main": function}))["main"]
