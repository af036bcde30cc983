# SPDX-License-Identifier: Apache-2.0
"""Rows written by place, to which all operators that write by ids come down.

Forward Form
    ``out = data``, or 0; then, for n from 0 on, ``out[b, places[b, n]]`` becomes what it was
    together with ``updates[b, n]``; a place of -1 is left out
Cost
    One copy of the data, one pass over the places of each part of the batch for each of few ranges
    of rows. No duplicates are looked for: each row has one writer, which takes places in order.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from sparsetrain.kernels.relax_op import call_kernel, define_op, for_target
from sparsetrain.ops.indexing import cpu_kernel, cuda_kernel


def _call(
    builder: relax.BlockBuilder, call: Any, arguments: list[relax.Expr], *variant: Any
) -> relax.Expr:
    kernels = for_target(llvm=cpu_kernel, cuda=cuda_kernel)
    kernel = kernels.put_rows_kernel(int(call.ty.shape[2]), str(call.ty.dtype), *variant)
    return call_kernel(builder, kernel, "put_rows", arguments, call.ty)


def _put_rows(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    return _call(builder, call, list(call.args), str(call.attrs["reduction"]))


def _add_rows(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    return _call(builder, call, list(call.args[1:]), "add", True)


def _sums_type(call: Any) -> relax.Type:
    shape, _, updates = call.args
    return relax.TensorType(shape, updates.ty.dtype)


# data (B, R, W), places (1 or B, K) int64, updates (B, K, W); reduction: a key of `COMBINE`
# -> (B, R, W)
put_rows = define_op(
    "put_rows", ("data", "places", "updates"), lambda call: call.args[0].ty, _put_rows
)
# What `put_rows` adds to zeros of a shape, which nobody writes before.
add_rows = define_op("add_rows", ("shape", "places", "updates"), _sums_type, _add_rows)
