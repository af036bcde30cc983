# SPDX-License-Identifier: Apache-2.0
"""Products contracted over the batch, in pieces: weight gradients on a CUDA device.

The gradient of a layer's weight is a small matrix, each of whose elements is a sum over the batch.
One block for each tile of it would leave most of the device idle: a layer of 64 x 16 is one tile.
So the batch is cut into pieces of fixed length, their products are taken side by side, and added
in order. The cut depends on the layer's shape alone, and with it the order of every sum.

Cost: the partial products are written and read once, a few per cent of what the product reads.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.target import Target

from .sum_of_pieces import sum_kernel

_TILE = (32, 64)  # what TVM's rule gives to one block
# At most so many tiles -> terms in a piece. More tiles than the last fill a large device by
# themselves: it has 132 multiprocessors, and each holds several blocks.
_PIECES = {64: 512, 264: 2048}


def terms_of_piece(rows: Any, columns: Any, inner: Any) -> int | None:
    """How many terms a piece adds; None where a product is better left whole."""
    target = Target.current(allow_none=True)
    known = all(isinstance(extent, tirx.IntImm) for extent in (rows, columns))
    if target is None or target.kind.name != "cuda" or not known or isinstance(inner, tirx.IntImm):
        return None
    if 1 in (int(rows), int(columns)):  # a sum of columns, for which there is a better rule
        return None
    tiles = -(-int(rows) // _TILE[0]) * -(-int(columns) // _TILE[1])
    return next((terms for most, terms in _PIECES.items() if tiles <= most), None)


def long_product(
    builder: relax.BlockBuilder, a: relax.Expr, b: relax.Expr, terms: int
) -> relax.Expr:
    """The product of the transpose of `a` (K, M) with `b` (K, N), in pieces of `terms`."""
    parts = builder.emit(
        builder.call_te(_pieces, a, b, terms, primfunc_name_hint="matmul_tn_pieces")
    )
    _, rows, columns = parts.ty.shape
    dtype = str(parts.ty.dtype)
    kernel = builder.add_func(sum_kernel(int(rows), int(columns), dtype), "sum_of_pieces")
    return relax.call_tir(kernel, [parts], relax.TensorType((rows, columns), dtype))


def _pieces(a: te.Tensor, b: te.Tensor, terms: int) -> te.Tensor:
    pieces = tirx.ceildiv(a.shape[0], tirx.const(terms, "int64"))

    def cut(x: te.Tensor) -> te.Tensor:
        def element(piece: tirx.Var, term: tirx.Var, column: tirx.Var) -> tvm.ir.Expr:
            place = piece * terms + term
            zero = tirx.const(0, x.dtype)
            return tirx.if_then_else(place < x.shape[0], x[place, column], zero)

        return te.compute((pieces, terms, x.shape[1]), element, name="cut")

    left, right = cut(a), cut(b)
    k = te.reduce_axis((0, terms), name="k")
    return te.compute(
        (pieces, a.shape[1], b.shape[1]),
        lambda piece, i, j: te.sum(left[piece, k, i] * right[piece, k, j], axis=k),
        name="matmul",
    )
