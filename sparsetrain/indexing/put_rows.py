# SPDX-License-Identifier: Apache-2.0
"""Rows written by place: one operator, to which all that write by ids come down.

Forward Form
    ``out = data``; then, for n from 0 on, ``out[places[n]]`` becomes what it was together with
    ``updates[n]``; a place of -1 is left out
Cost
    One copy of the data, one pass over the places for each of few ranges of rows. No duplicates are
    looked for: each row has one writer, which goes through the places in order.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from sparsetrain.indexing import cpu_kernel, cuda_kernel
from sparsetrain.relax_op import call_kernel, define_op, for_target


def _legalize(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    data = call.args[0]
    kernels = for_target(llvm=cpu_kernel, cuda=cuda_kernel)
    kernel = kernels.put_rows_kernel(
        int(data.ty.shape[1]), str(data.ty.dtype), str(call.attrs["reduction"])
    )
    return call_kernel(builder, kernel, "put_rows", list(call.args), call.ty)


# data (R, W), places (K,) int64, updates (K, W); reduction: a key of `COMBINE` -> (R, W)
put_rows = define_op(
    "put_rows", ("data", "places", "updates"), lambda call: call.args[0].ty, _legalize
)
