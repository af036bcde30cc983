# SPDX-License-Identifier: Apache-2.0
"""Half-precision products: their loops, their matcher, and the steps that all schedules share.

The loops round operands to half precision, widen them to float32, and multiply. The bits of a
rounded number are held as `uint16`, because TVM 0.27 converts every bfloat16 intermediate to
float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tvm
from tvm import s_tir, te, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.schedule import SBlockRV

from sparsetrain.compiler.schedule.operands import (
    inline_all_but_last,
    padding_block,
    read_in_place,
    single_consumer,
)
from sparsetrain.compiler.schedule.product import Operand, Product, find_product


def half_product(
    a: te.Tensor, b: te.Tensor, transpose_a: bool, transpose_b: bool, half: str = "bfloat16"
) -> te.Tensor:
    """Compute ``a b`` with float32 sums; factors are rounded to `half` and may be transposed.

    Parameters
    ----------
    a, b : te.Tensor
        Matrices, float32 or `half`.
    transpose_a, transpose_b : bool
        Whether the factor is the transpose of the given matrix.
    half : {"bfloat16", "float16"}
        Dtype of the factors.
    """
    left, right = _bits(a, "half_left", half), _bits(b, "half_right", half)
    widened = HALVES[half].widened
    k = te.reduce_axis((0, a.shape[0] if transpose_a else a.shape[1]), name="k")
    shape = (a.shape[1] if transpose_a else a.shape[0], b.shape[0] if transpose_b else b.shape[1])

    def term(i: tirx.Var, j: tirx.Var) -> tvm.ir.Expr:
        x = left[k, i] if transpose_a else left[i, k]
        y = right[j, k] if transpose_b else right[k, j]
        return te.sum(widened(x) * widened(y), axis=k)

    return te.compute(shape, term, name="half_matmul")


def _bits(x: te.Tensor, name: str, half: str) -> te.Tensor:
    bits = HALVES[half].rounded if str(x.dtype) == "float32" else _bits_of_half
    return te.compute(x.shape, lambda *index: bits(x(*index)), name=name)


def _bits_of_half(x: tvm.ir.Expr) -> tvm.ir.Expr:
    return tirx.reinterpret("uint16", x)


def _rounded_to_bfloat16(x: tvm.ir.Expr) -> tvm.ir.Expr:
    """Return the bits of the bfloat16 nearest to a float32 number, ties to even."""
    bits = tirx.reinterpret("uint32", x)
    odd = (bits >> _u32(16)) & _u32(1)
    rounded = (bits + odd + _u32(0x7FFF)) >> _u32(16)
    # Rounding could overflow a NaN's bits into a zero, so every NaN becomes the quiet NaN.
    is_nan = (bits & _u32(0x7FFFFFFF)) > _u32(0x7F800000)
    return tirx.Select(is_nan, _u32(0x7FC0), rounded).astype("uint16")


def _widened_bfloat16(bits: tvm.ir.Expr) -> tvm.ir.Expr:
    return tirx.reinterpret("float32", bits.astype("uint32") << _u32(16))


def _load_of_bfloat16(widened: tirx.Expr) -> tirx.Expr:
    try:
        return widened.args[0].a.value
    except (AttributeError, IndexError):
        return widened


def _rounded_to_float16(x: tvm.ir.Expr) -> tvm.ir.Expr:
    return tirx.reinterpret("uint16", x.astype("float16"))


def _widened_float16(bits: tvm.ir.Expr) -> tvm.ir.Expr:
    return tirx.reinterpret("float16", bits).astype("float32")


def _load_of_float16(widened: tirx.Expr) -> tirx.Expr:
    try:
        return widened.value.args[0]
    except (AttributeError, IndexError):
        return widened


def _u32(value: int) -> tirx.IntImm:
    return tirx.const(value, "uint32")


class Half(NamedTuple):
    """How kernels convert a half-precision dtype.

    Parameters
    ----------
    rounded : callable
        Float32 number -> bits of the nearest half.
    widened : callable
        Bits -> float32 number.
    load : callable
        Result of `widened` -> the load inside it; returns any other expression unchanged.
    """

    rounded: Callable[[tvm.ir.Expr], tvm.ir.Expr]
    widened: Callable[[tvm.ir.Expr], tvm.ir.Expr]
    load: Callable[[tirx.Expr], tirx.Expr]


HALVES = {
    "bfloat16": Half(_rounded_to_bfloat16, _widened_bfloat16, _load_of_bfloat16),
    "float16": Half(_rounded_to_float16, _widened_float16, _load_of_float16),
}


class HalfProduct(NamedTuple):
    """A product, the blocks that compute the bits of its operands, and all other blocks."""

    product: Product
    stages: list[SBlockRV]
    others: list[SBlockInfo]


def match_half_product(
    sch: s_tir.Schedule, blocks: list[SBlockInfo], half: str = "bfloat16"
) -> HalfProduct | None:
    """Find the product of two matrices rounded to `half` (a key of `HALVES`), or return None."""
    product = find_product(sch, blocks, HALVES[half].load)
    if product is None or product.batch_axes:
        return None
    stages = _stages(sch, blocks, product)
    others = [i for i in blocks if i is not product.info and i not in stages]
    if len(stages) != 2 or not all(info.is_injective() for info in others):
        return None
    return HalfProduct(product, [stage.block_rv for stage in stages], others)


def _stages(sch: s_tir.Schedule, blocks: list[SBlockInfo], product: Product) -> list[SBlockInfo]:
    """Return the blocks that compute the bits of the left and the right operand."""
    reads = sch.get(product.info.block_rv).reads
    writers = [
        next((i for i in blocks if sch.get(i.block_rv).writes[0].source.same_as(source)), None)
        for source in (reads[o.read].source for o in (product.left, product.right))
    ]
    return [writer for writer in writers if writer is not None]


class Prepared(NamedTuple):
    """Blocks that pack the operands and store the result; `left` is None if read in place."""

    left: SBlockRV | None
    right: SBlockRV
    epilogue: SBlockRV


def prepare(
    sch: s_tir.Schedule, found: HalfProduct, tile: Sequence[int], in_place: bool
) -> Prepared:
    """Pad the product, and merge all other blocks into the blocks that pack and store.

    Parameters
    ----------
    sch : Schedule
        The schedule, which is modified.
    found : HalfProduct
        The product and the other blocks.
    tile : sequence of 3 int
        Rows, columns and the length of the sums are padded to multiples of these numbers.
    in_place : bool
        Whether the left operand in memory already has the layout of the product.
    """
    product, (left_stage, right_stage), others = found
    block = product.info.block_rv
    final = inline_all_but_last(sch, others)
    if in_place:
        sch.compute_inline(left_stage)
    sch.pad_einsum(block, [*tile])
    epilogue = single_consumer(sch, block, final)
    right = _packing_block(sch, block, product.right, right_stage)
    if in_place:
        read_in_place(sch, block, product.left)
        return Prepared(None, right, epilogue)
    return Prepared(_packing_block(sch, block, product.left, left_stage), right, epilogue)


def _packing_block(
    sch: s_tir.Schedule, block: SBlockRV, operand: Operand, stage: SBlockRV
) -> SBlockRV:
    """Return the block that pads the operand or, if nothing pads it, the block that rounds it."""
    padding = padding_block(sch, block, operand)
    if padding is None or sch.get(padding).same_as(sch.get(stage)):
        return stage
    sch.compute_inline(stage)
    return padding
