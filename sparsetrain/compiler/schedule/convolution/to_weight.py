# SPDX-License-Identifier: Apache-2.0
"""The weight's sum of a convolution: what `sum_weight` is made for, is given, and gives."""

from __future__ import annotations

from functools import reduce
from math import prod
from typing import Any

import numpy as np
from tvm import DataType, te, tirx
from tvm.target import Target

from sparsetrain.compiler.schedule.convolution.grid import NOWHERE, run_of
from sparsetrain.compiler.schedule.convolution.shape import examples_of, stride_of, tile_of
from sparsetrain.compiler.schedule.convolution.sides import Sides
from sparsetrain.compiler.schedule.convolution.weight_sum import WeightSum

# Of the batch; tasks to aim for; memory of all parts.
_MOST_PARTS, _FEWEST_TASKS, _PARTS_BYTES = 16, 8, 1 << 22


class ToWeight:
    """The sum of a convolution over examples and places.

    Parameters
    ----------
    sides : Sides
        The convolution.
    target : Target
        A CPU.
    """

    def __init__(self, sides: Sides, target: Target) -> None:
        self._sides, self._grid = sides, sides.reading()
        self._terms = self._grid.taps[0].terms
        positions = self._grid.out[:, 1]
        self._small = np.full(self._grid.length, NOWHERE)
        self._small[positions] = np.arange(len(positions))
        groups, dtype, length = sides.of.groups, sides.dtype, self._grid.length
        rows, channels = (sides.of_group(side) for side in (sides.small, sides.large))
        parts = max(1, min(_MOST_PARTS, _PARTS_BYTES // (prod(sides.weight) * _bytes(dtype))))
        ranges = _ranges(rows, parts * groups)
        tile = tile_of(rows // ranges, dtype, target)
        phases = len(self._grid.source)
        examples = examples_of(rows // ranges + channels * phases, length, dtype)
        farthest = max(offset for _, offset in self._terms)
        self.kernel = WeightSum(
            parts,
            groups,
            ranges,
            examples,
            length,
            int(self._grid.out[:, 1].max()) + 1,
            (
                stride_of(examples * length + tile.lanes, dtype),
                stride_of(examples * length + tile.lanes + farthest, dtype),
            ),
            phases,
            -(-channels * len(self._terms) // tile.vectors) * tile.vectors,
            tile,
            sides.small,
            sides.large,
            (run_of(self._small), run_of(self._grid.source)),
            dtype,
        )

    def tables(self) -> list[np.ndarray]:
        """The kernel's: places of the small and of the large side, where terms begin."""
        runs = self.kernel.runs
        return [self._small[:: runs[0]], self._grid.source.ravel()[:: runs[1]], self._begins()]

    def _begins(self) -> np.ndarray:
        """Of whole tiles; what is more than there is counts for nothing."""
        phase, offset = np.array(self._terms).T
        channels = np.arange(self._sides.of_group(self._sides.large))[:, None]
        begins = (channels * self.kernel.phases + phase) * self.kernel.strides[1] + offset
        return np.resize(begins.ravel(), self.kernel.terms)

    def total(self, sums: te.Tensor) -> te.Tensor:
        """The weight's gradient: all parts added up."""
        of, rows = self._sides.of, self.kernel.rows
        part = te.reduce_axis((0, self.kernel.parts), "part")

        def element(*index: Any) -> Any:
            small, taps = index[of.small], [index[axis] for axis in of.taps]
            pairs = zip(taps, self._sides.window, strict=True)
            tap = reduce(lambda number, one: number * one[1] + one[0], pairs, 0)
            term = index[of.large] * len(self._terms) + tap
            row = tirx.floordiv(small, rows), tirx.floormod(small, rows)
            return te.sum(sums(part, *row, term), axis=part)

        return te.compute(self._sides.weight, element, "convolution_to_weight")


def _ranges(rows: int, tasks: int) -> int:
    """Into how many equal ranges rows are cut, for tasks enough where there are few."""
    fitting = (n for n in range(1, rows + 1) if rows % n == 0 and n * tasks >= _FEWEST_TASKS)
    return next(fitting, rows)


def _bytes(dtype: str) -> int:
    return DataType(dtype).itemsize
