# SPDX-License-Identifier: Apache-2.0
"""Weight gradients in half precision: sums over the batch, cut into pieces.

The gradient of a layer's weight is small, and each of its elements a sum over the batch: one block
for each tile would leave most of a device idle. So blocks compute pieces of the sum side by side,
which are added in order, as in `long_product.py` for float32. How many pieces there are depends on
the layer's shape alone, and with it what they take of memory.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.target import Target

from .half_operand import HalfOperand
from .half_tile import HalfProduct, Store, has_tensor_cores, scheduled, tile_length
from .sum_of_pieces import sum_kernel

_BLOCKS = 264  # two for each multiprocessor of a large device


def half_gradient(
    builder: relax.BlockBuilder, a: relax.Expr, b: relax.Expr, half: str
) -> relax.Expr | None:
    """The product of the transpose of `a` (K, M) with `b` (K, N), K cut into pieces.

    None where the target has no tensor cores or a shape is not known.
    """
    shape = [a.ty.shape[1], b.ty.shape[1]]
    known = all(isinstance(extent, tirx.IntImm) for extent in shape)
    if not known or not has_tensor_cores(Target.current(allow_none=True)):
        return None
    rows, columns = map(int, shape)
    pieces = _pieces(rows, columns)
    parts_of = _gradient_kernel(a.ty, b.ty, half, pieces)
    parts = relax.call_tir(
        builder.add_func(parts_of, "half_matmul_tn_pieces"),
        [a, b],
        relax.TensorType((pieces, rows, columns), "float32"),
    )
    kernel = builder.add_func(sum_kernel(rows, columns, "float32"), "sum_of_pieces")
    return relax.call_tir(
        kernel, [builder.emit(parts)], relax.TensorType((rows, columns), "float32")
    )


def _pieces(rows: int, columns: int) -> int:
    length = tile_length(rows, columns)
    return max(1, _BLOCKS // (-(-rows // length) * -(-columns // length)))


def _gradient_kernel(a: Any, b: Any, half: str, pieces: int) -> tirx.PrimFunc:
    """``parts[p] = a[p].T @ b[p]`` for each piece p of the rows of both."""
    rows, columns = int(a.shape[1]), int(b.shape[1])
    length = tile_length(rows, columns)
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_name("half_matmul_tn_pieces")
        terms = T.int64()
        left = T.match_buffer(T.arg("left", T.handle()), (terms, rows), str(a.dtype))
        right = T.match_buffer(T.arg("right", T.handle()), (terms, columns), str(b.dtype))
        parts = T.match_buffer(T.arg("parts", T.handle()), (pieces, rows, columns), "float32")
        T.evaluate(tirx.const(0, "int32"))
    product = HalfProduct(
        HalfOperand(left, 1, 0, half, length), HalfOperand(right, 1, 0, half, length), pieces
    )

    def store(piece: Any) -> Store:
        return lambda i, j, value: T.buffer_store(parts, value, [piece, i, j])

    return scheduled(builder.get(), product, store)
