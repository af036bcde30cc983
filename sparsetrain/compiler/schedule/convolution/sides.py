# SPDX-License-Identifier: Apache-2.0
"""A convolution of known extents, but for the batch: its sides, its weight and its grids."""

from __future__ import annotations

from math import prod
from typing import Any

from sparsetrain.compiler.schedule.convolution.grid import Grid, reading, spreading
from sparsetrain.compiler.schedule.convolution.shape import Layout
from sparsetrain.ops.windows import Convolution


class Sides:
    """Both sides of a convolution and its weight.

    Parameters
    ----------
    of : Convolution
        Its windows and layouts; the batch leads.
    small, large, weight : list of int
        Their shapes; of the batch nothing is read.
    dtype : str
        Of everything.
    """

    def __init__(self, of: Convolution, small: Any, large: Any, weight: Any, dtype: str) -> None:
        self.of, self.dtype = of, dtype
        self.small, self.large = self._layout(small), self._layout(large)
        self.weight = [int(n) for n in weight]
        self.window = [self.weight[axis] for axis in of.taps]
        self._places = self._extents(small), self._extents(large)

    def _layout(self, shape: Any) -> Layout:
        channels, places = int(shape[self.of.channel]), prod(self._extents(shape))
        steps = (places, 1) if self.of.channel == 1 else (1, channels)
        return Layout(channels, places, *steps)

    def _extents(self, shape: Any) -> list[int]:
        return [int(shape[axis]) for axis in self.of.axes]

    def reading(self) -> Grid:
        """On which the small side reads the large one."""
        return reading(self.of.windows, self._places, self.window)

    def spreading(self) -> Grid:
        """On which the large side reads the small one."""
        return spreading(self.of.windows, self._places, self.window)

    def of_group(self, side: Layout) -> int:
        """Channels of a group of a side."""
        return side.channels // self.of.groups
