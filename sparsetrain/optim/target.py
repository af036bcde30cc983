# SPDX-License-Identifier: Apache-2.0
"""A parameter and its slots, viewed as matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sparsetrain.kernels.table_formats import seen_as
from sparsetrain.optim.kernel_spec import KernelSpec
from sparsetrain.optim.state import rows_of
from sparsetrain.runtime import NDArray


class Target(NamedTuple):
    """A parameter and its slots, which kernels write."""

    param: NDArray
    slots: Mapping[str, NDArray]

    def views(self, spec: KernelSpec, rows: int, columns: int) -> list[NDArray]:
        """Return weight and slots as (rows, columns), or (rows,) where a slot is per row."""
        shapes = {"element": (rows, columns), "row": (rows,)}
        slots = spec.formula.slots
        weight = self.param._create_view((rows, columns), seen_as(self.param.dtype))
        return [weight, *(self.slots[s.name]._create_view(shapes[s.per]) for s in slots)]


def matrix_shape(param: NDArray) -> tuple[int, int]:
    """Return rows and columns of a parameter; a vector has rows of one element."""
    shape = tuple(map(int, param.shape))
    return rows_of(shape), shape[-1] if len(shape) > 1 else 1
