# SPDX-License-Identifier: Apache-2.0
"""Epilogues of products: elementwise code applied to the sums while they are in registers.

If an epilogue keeps only the first rows and columns of a product, the kernel computes only these.
If an epilogue writes more elements than the product has, as padding does, no thread would own the
additional elements; such a product is left to the schedule rules.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.script.ir_builder import tirx as T
from tvm.sym import Analyzer

from sparsetrain.backends.cuda.schedule.tiles import Store
from sparsetrain.compiler.schedule.operands import inline_all_but_last
from sparsetrain.compiler.schedule.product import Extent, Product


class Kept(NamedTuple):
    """The function that stores a product's sums, and how many rows and columns it keeps."""

    store: Store
    rows: Extent
    columns: Extent


class Epilogue:
    """An elementwise block that computes its result from the sum at the same row and column."""

    def __init__(self, block: s_tir.SBlock, sums: Any) -> None:
        self._axes = [axis.var for axis in block.iter_vars]
        self._sums, self._store = sums, block.body
        self.fits = self._at_its_own_place()

    def __call__(self, row: Any, column: Any, value: Any) -> None:
        """Store the result that the epilogue computes from one sum."""
        T.buffer_store(self._store.buffer, self._value(row, column, value), [row, column])

    def _at_its_own_place(self) -> bool:
        """Whether the block stores at (row, column), and reads only the sum at (row, column)."""
        places = [list(self._store.indices)]

        def record(load: TensorLoad) -> TensorLoad:
            if load.source.same_as(self._sums):
                places.append(list(load.indices))
            return load

        tvm_ffi.structural_map(self._store.value, (TensorLoad, record))
        return len(self._axes) == 2 and all(
            len(place) == 2 and all(i.same_as(a) for i, a in zip(place, self._axes, strict=True))
            for place in places
        )

    def _value(self, row: Any, column: Any, value: Any) -> Any:
        def load(node: TensorLoad) -> Any:
            return value if node.source.same_as(self._sums) else node

        here = moved(self._store.value, self._axes, [row, column])
        return tvm_ffi.structural_map(here, (TensorLoad, load))


def moved(expression: Any, axes: list[tirx.Var], places: list[Any]) -> Any:
    """Return a block's `expression` with its axes replaced by `places`."""

    def at(var: tirx.Var) -> Any:
        pairs = zip(axes, places, strict=True)
        return next((place for axis, place in pairs if axis.same_as(var)), var)

    return tvm_ffi.structural_map(expression, (tirx.Var, at))


def stored(sch: s_tir.Schedule, product: Product, others: list[SBlockInfo]) -> Kept | None:
    """Fuse the other blocks into the epilogue of `product`; return None if this is impossible."""
    out = sch.get(product.info.block_rv).writes[0].source
    final = inline_all_but_last(sch, others)
    if final is None:

        def as_it_is(row: Any, column: Any, value: Any) -> None:
            T.buffer_store(out, value, [row, column])

        return Kept(as_it_is, product.rows, product.columns)
    epilogue, extents = Epilogue(sch.get(final), out), others[-1].dom()
    if not epilogue.fits or not all(map(_within, extents, (product.rows, product.columns))):
        return None
    return Kept(epilogue, *extents)


def _within(kept: Extent, computed: Extent) -> bool:
    """Whether the kept extent provably does not exceed the computed extent."""
    if isinstance(kept, int) and isinstance(computed, int):
        return kept <= computed
    return bool(Analyzer().can_prove_equal(kept, computed))
