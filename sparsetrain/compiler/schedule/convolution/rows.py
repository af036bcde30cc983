# SPDX-License-Identifier: Apache-2.0
"""A block's rows: what some examples have at each position of the grid, zero in the padding."""

from __future__ import annotations

from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.compiler.schedule.convolution.shape import Layout
from sparsetrain.compiler.schedule.row_product.side import load, wide


class Block(NamedTuple):
    """Examples `first` to ``first + count``."""

    first: Any
    count: Any


class Places(NamedTuple):
    """Where lines of `run` neighbours begin, below 0 for zeros, in place of a place for each."""

    begins: Any
    run: int


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

    def fill(
        self, source: Any, layout: Layout, places: Places, block: Block, channels: Any
    ) -> None:
        """Take channels, a pair of the first one and how many, from a block of the source.

        `places` are those of the source, for each phase and position.
        """
        begins, run = places
        lines, (first, count) = self.length // run, channels
        phases = int(begins.shape[0]) // lines
        with T.serial(wide(0), wide(count)) as channel, T.serial(wide(0), wide(phases)) as phase:
            row = (channel * phases + phase) * self.stride
            at = (first + channel) * layout.channel_step
            with T.serial(wide(0), block.count) as e, T.serial(wide(0), wide(lines)) as line:
                begin = T.Bind(_wide(begins[phase * lines + line]))
                with T.serial(wide(0), wide(run)) as n:
                    place = at + (tirx.max(begin, wide(0)) + n) * layout.place_step
                    value = _or_zero(begin, load(source, block.first + e, place))
                    T.buffer_store(self.memory, value, [row + e * self.length + line * run + n])
            behind = block.count * self.length
            with T.serial(wide(0), self.stride - behind) as n:
                zero = tirx.const(0, str(self.memory.dtype))
                T.buffer_store(self.memory, zero, [row + behind + n])

    def give(self, out: Any, layout: Layout, places: Places, block: Block, channels: Any) -> None:
        """Write channels of a block of the result.

        `places` are those from a channel's first row on, for each place of the result.
        """
        (begins, run), (first, count) = places, channels
        with T.serial(wide(0), block.count) as e, T.serial(wide(0), wide(count)) as channel:
            at = (first + channel) * layout.channel_step
            row = channel * self.stride + e * self.length
            with T.serial(wide(0), wide(layout.places // run)) as line:
                begin = T.Bind(_wide(begins[line]))
                with T.serial(wide(0), wide(run)) as n:
                    value = _or_zero(begin, load(self.memory, row + tirx.max(begin, wide(0)) + n))
                    place = at + (line * run + n) * layout.place_step
                    T.buffer_store(out, value, [block.first + e, place])


def _wide(number: Any) -> Any:
    return tirx.Cast("int64", number)


def _or_zero(place: Any, value: Any) -> Any:
    return tirx.Select(place >= wide(0), value, tirx.const(0, str(value.ty.dtype)))
