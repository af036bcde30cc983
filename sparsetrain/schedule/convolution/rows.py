# SPDX-License-Identifier: Apache-2.0
"""A block's rows: what some examples have at each position of the grid, zero in the padding."""

from __future__ import annotations

from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..row_product.side import load, wide
from .shape import Layout


class Block(NamedTuple):
    """Examples `first` to ``first + count``."""

    first: Any
    count: Any


class Rows(NamedTuple):
    """Memory of a task, for rows of `stride` elements.

    Parameters
    ----------
    memory : Buffer
        (rows * stride,).
    stride : int
        From a row to the next.
    length : int
        Positions of an example; the examples of a block follow each other in a row.
    """

    memory: Any
    stride: int
    length: int

    def fill(self, source: Any, layout: Layout, table: Any, block: Block, channels: Any) -> None:
        """Take channels, a pair of the first one and how many, from a block of the source.

        `table` has the place of the source for each phase and position, below 0 for none.
        """
        phases, (first, count) = int(table.shape[0]) // self.length, channels
        with T.serial(wide(0), wide(count)) as channel, T.serial(wide(0), wide(phases)) as phase:
            row = (channel * phases + phase) * self.stride
            at = (first + channel) * layout.channel_step
            with T.serial(wide(0), block.count) as e, T.serial(wide(0), wide(self.length)) as n:
                place = _wide(table[phase * self.length + n])
                there = [block.first + e, at + tirx.max(place, wide(0)) * layout.place_step]
                value = _or_zero(place, load(source, *there))
                T.buffer_store(self.memory, value, [row + e * self.length + n])
            behind = block.count * self.length
            with T.serial(wide(0), self.stride - behind) as n:
                zero = tirx.const(0, str(self.memory.dtype))
                T.buffer_store(self.memory, zero, [row + behind + n])

    def give(self, out: Any, layout: Layout, table: Any, block: Block, channels: Any) -> None:
        """Write channels of a block of the result.

        `table` has for each place where it lies in the channel's first row, below 0 for a zero.
        """
        first, count = channels
        with T.serial(wide(0), block.count) as e, T.serial(wide(0), wide(count)) as channel:
            at = (first + channel) * layout.channel_step
            with T.serial(wide(0), wide(layout.places)) as n:
                place = _wide(table[n])
                there = channel * self.stride + e * self.length + tirx.max(place, wide(0))
                value = _or_zero(place, load(self.memory, there))
                T.buffer_store(out, value, [block.first + e, at + n * layout.place_step])


def _wide(number: Any) -> Any:
    return tirx.Cast("int64", number)


def _or_zero(place: Any, value: Any) -> Any:
    return tirx.Select(place >= wide(0), value, tirx.const(0, str(value.ty.dtype)))
