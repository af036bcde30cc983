# SPDX-License-Identifier: Apache-2.0
"""The kernel of both sums of a convolution that give a side: products of shifted rows.

- **Tasks** are blocks of a few examples, for each group of channels.
- **Rows**: a task copies its block of the source onto a grid with the padding in it (`rows.py`).
- **Products**: a tile of rows of the result, some vectors of positions wide, is summed over all
  channels and taps: a vector of the source's row at the tap's offset, times a weight for each row.
- The tiles are then copied to where they belong.

Memory: the weight once more, and for each thread a block of the source and of the result: of all
channels of a group 1,024 positions or what takes 128 KB, at least 256 positions and an example.
Windows are never written down. Each element is summed over channels and taps in order, whatever
the number of threads.
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


class Product(NamedTuple):
    """`rows` of the result, summed over `terms` rows of the source and offsets, by tiles."""

    rows: int
    terms: int
    tile: Tile

    @property
    def tiles(self) -> int:
        """Tiles below each other; the last one may begin within the one before."""
        return -(-self.rows // self.tile.height)


class Correlation(NamedTuple):
    """What a kernel is made for.

    Parameters
    ----------
    groups : int
        Of channels.
    examples : int
        In a block.
    length, span : int
        Positions of an example, and up to the last one that is wanted.
    stride : int
        From a row to the next.
    phases : int
        Of the source.
    products : tuple of Product
        Of a group, whose rows follow each other.
    source, out : Layout
        Of both sides.
    runs : pair of int
        Neighbours that are copied together, of the source and of the result.
    dtype : str
        Of everything.
    """

    groups: int
    examples: int
    length: int
    span: int
    stride: int
    phases: int
    products: tuple[Product, ...]
    source: Layout
    out: Layout
    runs: tuple[int, int]
    dtype: str


def correlate(what: Correlation) -> tirx.PrimFunc:
    """``kernel(source, places, positions, *weights, *begins, out)``.

    The first two tables are those of `Rows`; `begins` of a product (terms,) say where in the rows
    each of them begins, weights (groups, tiles, terms, height) by what they are multiplied.
    """
    with kernel("convolution") as built:
        (examples,) = extents(1)
        source = buffer("source", (examples, what.source.size), what.dtype)
        tables = [
            Places(buffer(name, (count // run,), "int32"), run)
            for name, count, run in zip(
                ("places", "positions"),
                (what.phases * what.length, what.out.places),
                what.runs,
                strict=True,
            )
        ]
        weights = [
            buffer(f"weight{n}", (what.groups, p.tiles, p.terms, p.tile.height), what.dtype)
            for n, p in enumerate(what.products)
        ]
        terms = [
            buffer(f"terms{n}", (product.terms,), "int32")
            for n, product in enumerate(what.products)
        ]
        out = buffer("out", (examples, what.out.size), what.dtype)
        blocks = tirx.ceildiv(examples, what.examples)
        with T.parallel(wide(0), blocks * what.groups) as task:
            numbers = Numbers()
            group = numbers.hold(tirx.floormod(task, what.groups))
            first = numbers.hold(tirx.floordiv(task, what.groups) * what.examples)
            count = numbers.hold(tirx.min(examples - first, wide(what.examples)))
            block = Block(first, count)
            rows = _rows(what, what.source.channels // what.groups * what.phases)
            sums = _rows(what, sum(product.rows for product in what.products))
            ours = _channels(what.source, what.groups, group)
            rows.fill(source, what.source, tables[0], block, ours)
            behind = numbers.hold((count - 1) * what.length + what.span)
            above = 0
            for product, weight, begins in zip(what.products, weights, terms, strict=True):
                part = _Part(product, weight, begins, above)
                _multiply(part, rows, sums, group, behind)
                above += product.rows
            sums.give(out, what.out, tables[1], block, _channels(what.out, what.groups, group))
    return built.get()


def _rows(what: Correlation, count: int) -> Rows:
    memory = T.alloc_buffer((count * what.stride,), what.dtype)
    return Rows(memory, what.stride, what.length)


def _channels(layout: Layout, groups: int, group: Any) -> tuple[Any, int]:
    of_group = layout.channels // groups
    return group * of_group, of_group


class _Part(NamedTuple):
    """A product, its arguments, and how many rows of the result are above its own."""

    product: Product
    weight: Any
    begins: Any
    above: int


def _multiply(part: _Part, rows: Rows, sums: Rows, group: Any, behind: Any) -> None:
    product, tile = part.product, part.product.tile
    panels = tirx.ceildiv(behind, tile.width)
    with T.serial(wide(0), panels) as panel, T.serial(wide(0), wide(product.tiles)) as number:
        own = T.alloc_buffer((tile.height * tile.width,), str(rows.memory.dtype))
        with unrolled(tile.height * tile.vectors) as n:
            vector = ramp(n * tile.lanes, tile.lanes)
            T.buffer_store(own, zeros(str(own.dtype), tile.lanes), [vector])
        with T.serial(wide(0), wide(product.terms)) as term:
            _add_term(part, rows, own, (group, number, term), panel * tile.width)
        row = part.above + tirx.min(number * tile.height, wide(product.rows - tile.height))
        with unrolled(tile.height) as r, unrolled(tile.vectors) as v:
            value = load(own, ramp((r * tile.vectors + v) * tile.lanes, tile.lanes))
            at = (row + r) * sums.stride + panel * tile.width + v * tile.lanes
            T.buffer_store(sums.memory, value, [ramp(at, tile.lanes)])


def _add_term(part: _Part, rows: Rows, own: Any, at: tuple[Any, Any, Any], position: Any) -> None:
    """Add a term of a tile, both by number, to its sums."""
    tile, lanes = part.product.tile, part.product.tile.lanes
    values = T.alloc_buffer((tile.width,), str(own.dtype))
    begin = tirx.Cast("int64", part.begins[at[2]]) + position
    with unrolled(tile.vectors) as v:
        value = load(rows.memory, ramp(begin + v * lanes, lanes))
        T.buffer_store(values, value, [ramp(v * lanes, lanes)])
    with unrolled(tile.height) as r:
        weight = T.Bind(load(part.weight, *at, r))
        with unrolled(tile.vectors) as v:
            vector = ramp((r * tile.vectors + v) * lanes, lanes)
            term = tirx.Broadcast(weight, lanes) * load(values, ramp(v * lanes, lanes))
            T.buffer_store(own, load(own, vector) + term, [vector])
