# SPDX-License-Identifier: Apache-2.0
"""One side of a convolution from the other: what `correlate` is made for, and is given."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.target import Target

from sparsetrain.compiler.schedule.convolution.correlation import Correlation, Product
from sparsetrain.compiler.schedule.convolution.grid import NOWHERE, Taps, run_of
from sparsetrain.compiler.schedule.convolution.shape import examples_of, stride_of, tile_of
from sparsetrain.compiler.schedule.convolution.sides import Sides


class ToSide:
    """The sum to the small side, which reads, or to the large one.

    Parameters
    ----------
    sides : Sides
        The convolution.
    target : Target
        A CPU.
    to_small : bool
        Which side.
    """

    def __init__(self, sides: Sides, target: Target, *, to_small: bool) -> None:
        self._sides, self._to_small = sides, to_small
        self._grid = grid = sides.reading() if to_small else sides.spreading()
        source, out = sides.large, sides.small
        if not to_small:
            source, out = out, source
        self._channels, self._rows = sides.of_group(source), sides.of_group(out)
        products = tuple(self._product(taps, target) for taps in grid.taps)
        rows = self._channels * len(grid.source) + sum(product.rows for product in products)
        examples = examples_of(rows, grid.length, sides.dtype)
        farthest = max(offset for taps in grid.taps for _, offset in taps.terms)
        width = max(product.tile.width for product in products)
        stride = stride_of(examples * grid.length + farthest + width, sides.dtype)
        self._positions = self._positions_by(stride)
        self.kernel = Correlation(
            sides.of.groups,
            examples,
            grid.length,
            int(grid.out[:, 1].max()) + 1,
            stride,
            len(grid.source),
            products,
            source,
            out,
            (run_of(grid.source), run_of(self._positions)),
            sides.dtype,
        )

    def _product(self, taps: Taps, target: Target) -> Product:
        rows = len(taps.phases) * self._rows
        tile = tile_of(rows, self._sides.dtype, target)
        return Product(rows, self._channels * len(taps.terms), tile)

    @property
    def taps(self) -> list[np.ndarray]:
        """For each product, by which tap a phase sees a term."""
        return [taps.numbers for taps in self._grid.taps]

    def tables(self) -> list[np.ndarray]:
        """The kernel's: places of the source, positions of the result, where terms begin."""
        runs = self.kernel.runs
        return [self._grid.source.ravel()[:: runs[0]], self._positions[:: runs[1]], *self._begins()]

    def _positions_by(self, stride: int) -> np.ndarray:
        row_of = np.full(self._grid.counts[2], NOWHERE)
        phases = [phase for taps in self._grid.taps for phase in taps.phases]
        row_of[phases] = np.arange(len(phases)) * self._rows
        rows, positions = row_of[self._grid.out[:, 0]], self._grid.out[:, 1]
        return np.where(rows < 0, NOWHERE, rows * stride + positions)

    def _begins(self) -> list[np.ndarray]:
        phases, stride = self.kernel.phases, self.kernel.stride
        channels = np.arange(self._channels)[:, None] * phases
        return [
            ((channels + phase) * stride + offset).ravel()
            for phase, offset in (np.array(taps.terms).T for taps in self._grid.taps)
        ]

    def packed(self, weight: te.Tensor, numbers: te.Tensor, which: int) -> te.Tensor:
        """The weight as a product, by number, reads it; `numbers` are its taps."""
        product = self.kernel.products[which]
        of, terms, tile = self._sides.of, int(numbers.shape[1]), product.tile

        def element(group: Any, number: Any, term: Any, r: Any) -> Any:
            row = tirx.min(number * tile.height, product.rows - tile.height) + r
            phase, own = tirx.floordiv(row, self._rows), tirx.floormod(row, self._rows)
            read = tirx.floordiv(term, terms)
            small, large = (own, read) if self._to_small else (read, own)
            small = small + group * self._sides.of_group(self._sides.small)
            tap = tirx.Cast("int64", numbers[phase, tirx.floormod(term, terms)])
            return weight(*of.tap(small, large, _window_of(tap, self._sides.window)))

        shape = (of.groups, product.tiles, product.terms, tile.height)
        return te.compute(shape, element, "convolution_weight")


def _window_of(tap: Any, extents: list[int]) -> list[Any]:
    """The place in a window of a tap's number."""
    found: list[Any] = []
    for extent in reversed(extents):
        found.insert(0, tirx.floormod(tap, extent))
        tap = tirx.floordiv(tap, extent)
    return found
