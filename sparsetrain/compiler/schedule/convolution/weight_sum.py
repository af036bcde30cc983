# SPDX-License-Identifier: Apache-2.0
"""The kernel of the sum of a convolution that gives the weight: products over positions.

Row `m` of the small side, times the large side's row and offset of each term, summed over all
positions of all examples. Both are copied to a grid, block by block, with zeros where the small
side has no place (`rows.py`). A tile's sums are vectors, whose numbers are added up last. So an
infinite x makes NaN of more of its channel's gradients than those that see it.

- **Tasks** are parts of the batch, for each group of channels and range of rows; how many depends
  on the shape alone, so the bits are those of every number of threads.

Memory: for each thread a block of both sides, as large as in `correlation.py`; and the sums of all
parts, 4 MB together or those of one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.compiler.schedule.convolution.rows import Block, Places, Rows
from sparsetrain.compiler.schedule.convolution.shape import Layout, Tile
from sparsetrain.compiler.schedule.row_product.side import (
    Numbers,
    load,
    ramp,
    unrolled,
    wide,
    zeros,
)
from sparsetrain.kernels.builder import buffer, extents, kernel


class WeightSum(NamedTuple):
    """What a kernel is made for.

    Parameters
    ----------
    parts : int
        Of the batch, summed apart.
    groups : int
        Of channels.
    ranges : int
        Of a group's rows; they divide them.
    examples : int
        In a block.
    length, span : int
        Positions of an example, and up to the last that is one of the small side.
    strides : pair of int
        From a row to the next, of the small and the large side.
    phases : int
        Of the large side.
    terms : int
        Columns of the result, whole tiles of them.
    tile : Tile
        Rows, and columns in place of vectors.
    small, large : Layout
        Of both sides.
    runs : pair of int
        Neighbours that are copied together, of the small and of the large side.
    dtype : str
        Of everything.
    """

    parts: int
    groups: int
    ranges: int
    examples: int
    length: int
    span: int
    strides: tuple[int, int]
    phases: int
    terms: int
    tile: Tile
    small: Layout
    large: Layout
    runs: tuple[int, int]
    dtype: str

    @property
    def rows(self) -> int:
        """Of a task."""
        return self.small.channels // (self.groups * self.ranges)

    @property
    def tiles(self) -> tuple[int, int]:
        """Below each other, of which the last may have rows that count for nothing, and beside."""
        return -(-self.rows // self.tile.height), self.terms // self.tile.vectors

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the result: parts, ranges of rows of all groups, rows and terms."""
        rows = self.tiles[0] * self.tile.height
        return self.parts, self.groups * self.ranges, rows, self.terms


def sum_weight(what: WeightSum) -> tirx.PrimFunc:
    """``kernel(small, large, small_places, large_places, begins, out)``.

    Tables are those of `Rows`; `begins` (terms,) says where in the large side's rows each term
    begins. `out` has the `shape` of `what`.
    """
    with kernel("convolution_weight") as built:
        (examples,) = extents(1)
        small = buffer("small", (examples, what.small.size), what.dtype)
        large = buffer("large", (examples, what.large.size), what.dtype)
        tables = [
            Places(buffer(name, (count // run,), "int32"), run)
            for name, count, run in zip(
                ("small_places", "large_places"),
                (what.length, what.phases * what.length),
                what.runs,
                strict=True,
            )
        ]
        begins = buffer("begins", (what.terms,), "int32")
        out = buffer("out", what.shape, what.dtype)
        tasks = what.parts * what.groups * what.ranges
        with T.parallel(wide(0), wide(tasks)) as task:
            numbers = Numbers()
            lot = numbers.hold(tirx.floordiv(task, what.parts))
            group = numbers.hold(tirx.floordiv(lot, what.ranges))
            sums = _Sums(what, out, numbers.hold(tirx.floormod(task, what.parts)), lot)
            sums.clear()
            blocks = tirx.ceildiv(examples, what.examples)
            first = numbers.hold(tirx.floordiv(sums.part * blocks, what.parts))
            behind = numbers.hold(tirx.floordiv((sums.part + 1) * blocks, what.parts))
            left = _rows(what, what.rows, 0)
            of_group = what.large.channels // what.groups
            right = _rows(what, of_group * what.phases, 1)
            with T.serial(wide(0), behind - first) as n:
                start = numbers.hold((first + n) * what.examples)
                count = numbers.hold(tirx.min(examples - start, wide(what.examples)))
                block = Block(start, count)
                left.fill(small, what.small, tables[0], block, (lot * what.rows, what.rows))
                right.fill(large, what.large, tables[1], block, (group * of_group, of_group))
                sums.add(left, right, begins, (count - 1) * what.length + what.span)
    return built.get()


def _rows(what: WeightSum, count: int, side: int) -> Rows:
    memory = T.alloc_buffer((count * what.strides[side],), what.dtype)
    return Rows(memory, what.strides[side], what.length)


class _Sums(NamedTuple):
    """Those of a task: of a part of the batch and a range of rows."""

    what: WeightSum
    out: Any
    part: Any
    range: Any

    def clear(self) -> None:
        """Begin with zeros."""
        *_, rows, terms = self.what.shape
        with T.serial(wide(0), wide(rows)) as r, T.serial(wide(0), wide(terms)) as n:
            zero = tirx.const(0, self.what.dtype)
            T.buffer_store(self.out, zero, [self.part, self.range, r, n])

    def add(self, left: Rows, right: Rows, begins: Any, behind: Any) -> None:
        """Add a block, of which the small side has no places from `behind` on."""
        down, across = self.what.tiles
        steps = tirx.ceildiv(behind, self.what.tile.lanes)
        with T.serial(wide(0), wide(down)) as i, T.serial(wide(0), wide(across)) as j:
            self._add_tile((left, right), begins, (i, j), steps)

    def _add_tile(self, sides: tuple[Rows, Rows], begins: Any, at: tuple, steps: Any) -> None:
        tile, dtype = self.what.tile, self.what.dtype
        own = T.alloc_buffer((tile.height * tile.width,), dtype)
        with unrolled(tile.height * tile.vectors) as n:
            T.buffer_store(own, zeros(dtype, tile.lanes), [ramp(n * tile.lanes, tile.lanes)])
        row, column = at[0] * tile.height, at[1] * tile.vectors
        rows = [
            tirx.min(row + r, wide(self.what.rows - 1)) * sides[0].stride
            for r in range(tile.height)
        ]
        columns = [tirx.Cast("int64", begins[column + c]) for c in range(tile.vectors)]
        with T.serial(wide(0), steps) as step:
            _add_step(sides, (rows, columns), own, tile, step * tile.lanes)
        _fold(own, tile)
        with unrolled(tile.height) as r, unrolled(tile.vectors) as c:
            index = [self.part, self.range, row + r, column + c]
            first = (r * tile.vectors + c) * tile.lanes
            total = load(own, first) + load(own, first + 1)
            T.buffer_store(self.out, load(self.out, *index) + total, index)


def _add_step(
    sides: tuple[Rows, Rows], begins: tuple[list, list], own: Any, tile: Tile, position: Any
) -> None:
    """Add products of a vector of positions."""
    left, right = (
        [T.Bind(load(side.memory, ramp(begin + position, tile.lanes))) for begin in all_begins]
        for side, all_begins in zip(sides, begins, strict=True)
    )
    for n, (a, b) in enumerate((a, b) for a in left for b in right):
        vector = ramp(wide(n * tile.lanes), tile.lanes)
        T.buffer_store(own, load(own, vector) + a * b, [vector])


def _fold(own: Any, tile: Tile) -> None:
    """Add up the numbers of each vector, halves upon halves, until two are left."""
    lanes = tile.lanes // 2
    while lanes > 1:
        with unrolled(tile.height * tile.vectors) as n:
            low, high = (ramp(n * tile.lanes + begin, lanes) for begin in (0, lanes))
            T.buffer_store(own, load(own, low) + load(own, high), [low])
        lanes //= 2
