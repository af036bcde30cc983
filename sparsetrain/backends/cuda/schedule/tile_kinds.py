# SPDX-License-Identifier: Apache-2.0
"""The two kinds of product tiles, and the kernels built from them.

| kind | operands | devices |
| --- | --- | --- |
| `FloatTile` | float32 | all |
| `HalfTile` | half precision, rounded on the way to shared memory | sm_80 or later |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvm import tirx

from sparsetrain.backends.cuda.schedule.epilogue import Kept
from sparsetrain.backends.cuda.schedule.float_operand import FloatOperand
from sparsetrain.backends.cuda.schedule.float_tile import FloatTile, threads_of
from sparsetrain.backends.cuda.schedule.half_operand import THREADS, HalfOperand
from sparsetrain.backends.cuda.schedule.half_tile import HalfTile
from sparsetrain.backends.cuda.schedule.tiles import (
    Place,
    Store,
    TiledProduct,
    kernel_of,
    tile_length,
    wide,
)
from sparsetrain.compiler.schedule.product import Product


class Kind(NamedTuple):
    """How to compute a tile: its class, side length, number of threads, and dtype `half`."""

    tile: type[FloatTile | HalfTile]
    length: int
    threads: int
    half: str | None

    def operand(self, source: Any, axis: int, inner: int) -> FloatOperand | HalfOperand:
        """Return an operand, given the dimensions of its own axis (`axis`) and of k (`inner`)."""
        if self.half is None:
            return FloatOperand(source, axis, inner, self.length)
        return HalfOperand(source, axis, inner, self.half, self.length)


def kind_of(rows: Any, columns: Any, half: str | None) -> Kind:
    """Return the kind of tile for a product of this shape; float32 if `half` is None."""
    length = tile_length(rows, columns)
    if half is None:
        return Kind(FloatTile, length, threads_of(length), half)
    return Kind(HalfTile, length, THREADS, half)


def tiled_product(
    product: Product, kept: Kept, sources: Sequence[Any], half: str | None = None
) -> tuple[TiledProduct, Kind]:
    """Return the tiled form of a matched product, and the kind of its tiles."""
    kind = kind_of(kept.rows, kept.columns, half)
    left, right = (
        kind.operand(source, operand.outer, operand.contracted)
        for source, operand in zip(sources, (product.left, product.right), strict=True)
    )
    return TiledProduct(left, right, wide(kept.rows), wide(kept.columns)), kind


def scheduled(
    function: tirx.PrimFunc, product: TiledProduct, kind: Kind, store: Callable[[Place], Store]
) -> tirx.PrimFunc:
    """Replace a function's body with a product; `store(place)` stores the sums of a block."""

    def run(place: Place) -> None:
        kind.tile(product, place).run(store(place))

    return kernel_of(function, product, kind.threads, run)
