# SPDX-License-Identifier: Apache-2.0
"""The elementwise work after a product, applied to a sum while it is in a register."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.script.ir_builder import tirx as T

from ..epilogue import inline_all_but_last
from .tiles import Store


class Epilogue:
    """What a block makes of the sum at its own place, and where it puts that."""

    def __init__(self, block: s_tir.SBlock, sums: Any) -> None:
        self._axes = [axis.var for axis in block.iter_vars]
        self._sums, self._store = sums, block.body
        self.fits = self._at_its_own_place()

    def __call__(self, row: Any, column: Any, value: Any) -> None:
        """Store what becomes of one sum."""
        T.buffer_store(self._store.buffer, self._value(row, column, value), [row, column])

    def _at_its_own_place(self) -> bool:
        """Whether the block stores at (row, column), and reads the sums there and nowhere else."""
        places = [list(self._store.indices)]

        def note(load: TensorLoad) -> TensorLoad:
            if load.source.same_as(self._sums):
                places.append(list(load.indices))
            return load

        tvm_ffi.structural_map(self._store.value, (TensorLoad, note))
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
    """What a block computes from `expression` where its axes have other values."""

    def at(var: tirx.Var) -> Any:
        pairs = zip(axes, places, strict=True)
        return next((place for axis, place in pairs if axis.same_as(var)), var)

    return tvm_ffi.structural_map(expression, (tirx.Var, at))


def stored(
    sch: s_tir.Schedule, product: s_tir.schedule.SBlockRV, others: list[SBlockInfo]
) -> Store | None:
    """What becomes of the sums of `product` in the blocks around it; None if it is too much."""
    out = sch.get(product).writes[0].source
    final = inline_all_but_last(sch, others)
    if final is None:
        return lambda row, column, value: T.buffer_store(out, value, [row, column])
    epilogue = Epilogue(sch.get(final), out)
    return epilogue if epilogue.fits else None
