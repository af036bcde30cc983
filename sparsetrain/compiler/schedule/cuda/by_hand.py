# SPDX-License-Identifier: Apache-2.0
"""Table of functions that are replaced by hand-written kernels, before the schedule rules.

Each entry looks at a function and returns a kernel that does its work, or None. The first kernel
wins.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.error import InternalError
from tvm.s_tir.schedule.schedule import ScheduleError

from sparsetrain.compiler.schedule.cuda.column_sums import column_sums
from sparsetrain.compiler.schedule.cuda.elementwise import elementwise
from sparsetrain.compiler.schedule.cuda.float_product import in_float_tiles
from sparsetrain.compiler.schedule.cuda.half_product import on_tensor_cores
from sparsetrain.compiler.schedule.cuda.tiles import marked
from sparsetrain.compiler.schedule.rule import has_blocks, has_wide_extents
from sparsetrain.kernels.relax_op import compiles_for

_WRITERS = (on_tensor_cores, in_float_tiles, column_sums, elementwise)


@tvm.transform.module_pass(opt_level=0, name="WriteByHand")
class WriteByHand:
    """Replace the bodies of functions for which a CUDA kernel is written by hand."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Leave a module for another target, and functions that no writer knows, as they are."""
        if not compiles_for("cuda"):
            return mod
        for name, function in mod.functions_items():
            kernel = _written(function) if isinstance(function, tirx.PrimFunc) else None
            if kernel is not None:
                mod[name] = marked(kernel)
        return mod


def _written(function: tirx.PrimFunc) -> tirx.PrimFunc | None:
    if not has_blocks(function) or not has_wide_extents(function):
        return None
    return next(filter(None, (_tried(writer, function) for writer in _WRITERS)), None)


def _tried(writer, function: tirx.PrimFunc) -> tirx.PrimFunc | None:
    try:
        return writer(function)
    except (ScheduleError, InternalError):  # a primitive refuses what it cannot prove safe
        return None
