# SPDX-License-Identifier: Apache-2.0
"""Matcher for matrix products in a loop nest, with operands in any layout.

A block is a product if it sums `C[..., i, j] += A * B` from zero over one axis `k`, where A is
indexed by i and k, and B by k and j, in any order. Batch axes may come before and between these,
like the heads h in `C[b, i, h, j] += A[b, i, h, k] * B[b, k, h, j]`, but not last. The forms NN,
NT, TN and TT say which operands are transposed (T).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm_ffi import structural_equal

# An extent: a number if it is static, or a symbolic expression.
Extent: TypeAlias = int | tirx.Expr


@dataclass(frozen=True)
class Operand:
    """One factor: its position among the block's reads, and which dimensions its axes index."""

    read: int
    outer: int  # dimension indexed by i in the left operand, or by j in the right operand
    contracted: int  # dimension indexed by k

    @property
    def contracted_is_contiguous(self) -> bool:
        """Whether `k` is contiguous in memory."""
        return self.contracted > self.outer


@dataclass(frozen=True)
class Product:
    """A matched product: the block, its operands and the extents of its axes.

    `batch_axes` counts the other dimensions, including dimensions of length 1, for which the block
    has no axis. `row_axis` is the position of i among the block's axes; the last two are j and k.
    """

    info: SBlockInfo
    left: Operand
    right: Operand
    batch_axes: int
    row_axis: int
    rows: Extent
    columns: Extent
    contracted: Extent


def _itself(factor: tirx.Expr) -> tirx.Expr:
    return factor


def find_product(
    sch: s_tir.Schedule, blocks: list[SBlockInfo], load: Callable[[tirx.Expr], tirx.Expr] = _itself
) -> Product | None:
    """Return the first product among `blocks`, or None; `load` extracts the load from a factor."""
    return next(filter(None, (_match(sch, info, load) for info in blocks)), None)


def _match(
    sch: s_tir.Schedule, info: SBlockInfo, load: Callable[[tirx.Expr], tirx.Expr]
) -> Product | None:
    """Return the product that the block of `info` computes, or None."""
    kinds = info.dom_kind()
    if len(kinds) < 3 or kinds != "S" * (len(kinds) - 1) + "R":
        return None
    block = sch.get(info.block_rv)
    factors = _factors(block, load)
    if factors is None or not is_zero(block.init):
        return None
    j, k = range(len(kinds))[-2:]
    axes = [axis.var for axis in block.iter_vars]
    if [n for n in _positions(block.body.indices, axes) if n != _FIXED] != list(range(k)):
        return None
    i = _row_axis([_positions(factor.indices, axes) for factor in factors], j)
    operands = [_operand(block, factor, axes, i, j, k) for factor in factors]
    left = next((o for o in operands if o and o[0] == i), None)
    right = next((o for o in operands if o and o[0] == j), None)
    if left is None or right is None:
        return None
    extents = info.dom()
    dimensions = max(len(place) for place in (block.body.indices, *(f.indices for f in factors)))
    sizes = extents[i], extents[j], extents[k]
    return Product(info, left[1], right[1], dimensions - 2, i, *sizes)


def _row_axis(factors: list[list[int | None]], column: int) -> int:
    """Return the row axis: the last axis that only the factor without the column axis has."""
    with_columns, without = sorted(factors, key=lambda factor: column not in factor)
    alone = [a for a in without if a is not None and a != _FIXED and a not in with_columns]
    return max(alone, default=column - 1)


def _factors(
    block: s_tir.SBlock, load: Callable[[tirx.Expr], tirx.Expr]
) -> list[TensorLoad] | None:
    """Return the two loads of `C[...] = C[...] + a * b`, or None."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Add):
        return None
    total, term = store.value.a, store.value.b
    if not isinstance(total, TensorLoad) or not total.source.same_as(store.buffer):
        return None
    if not isinstance(term, tirx.Mul):
        return None
    loads = [load(term.a), load(term.b)]
    return loads if all(isinstance(found, TensorLoad) for found in loads) else None


def is_zero(init: tirx.Stmt | None) -> bool:
    """Whether a block initializes its sums to 0."""
    return (
        isinstance(init, tirx.BufferStore)
        and isinstance(init.value, tirx.FloatImm)
        and init.value.value == 0
    )


_FIXED = -1  # in place of an axis: the constant index 0 into a dimension of length 1


def _positions(indices: list, axes: list) -> list[int | None]:
    """Return the position of each index among the axes; `_FIXED` for 0, None if it is no axis."""
    return [
        _FIXED
        if isinstance(index, tirx.IntImm) and int(index) == 0
        else next((n for n, axis in enumerate(axes) if index.same_as(axis)), None)
        for index in indices
    ]


def _operand(
    block: s_tir.SBlock, load: TensorLoad, axes: list, i: int, j: int, k: int
) -> tuple[int, Operand] | None:
    """Return the outer axis of `load` (i: left operand, j: right operand) and its layout."""
    found = _positions(load.indices, axes)
    outer = [axis for axis in (i, j) if axis in found]
    moving = [axis for axis in found if axis != _FIXED]
    if None in found or k not in found or len(outer) != 1 or len(set(moving)) != len(moving):
        return None
    if found[-1] not in (outer[0], k):
        return None
    read = next((n for n, region in enumerate(block.reads) if _same_place(region, load)), None)
    if read is None:  # a matrix times itself: TVM merges both regions into one read
        return None
    return outer[0], Operand(read, found.index(outer[0]), found.index(k))


def _same_place(region, load: TensorLoad) -> bool:
    return region.source.same_as(load.source) and all(
        structural_equal(r.min, index) for r, index in zip(region.region, load.indices, strict=True)
    )
