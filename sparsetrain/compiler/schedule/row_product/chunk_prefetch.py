# SPDX-License-Identifier: Apache-2.0
"""Prefetches of the next chunk of both operands, spread evenly over the current chunk.

A task reads only some columns of each row, a pattern that the hardware prefetcher does not detect.
Prefetching all lines at once delays the tiles' own loads; the delay was 5 % of the time of a
training step's products. So every tile prefetches a share of the lines, in several pieces. Cost:
one instruction per line, and space for a chunk in the second-level cache. Invariant: values do not
change; processors ignore prefetches of invalid addresses, such as after the last task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.compiler.schedule.row_product.operand import Chunk, Numbers, Part, unrolled, wide
from sparsetrain.compiler.schedule.row_product.tiling import Shape
from sparsetrain.kernels.builder import Prefetch, line_length

# Number of adjacent cache lines of a row that are prefetched together.
_LINES_TOGETHER = 4
_INTO_SECOND_CACHE = Prefetch(write=False, near=2)


class Stretch(NamedTuple):
    """The part of an operand to prefetch: rows from `start`, `groups` of lines from `column`."""

    source: Any
    start: Any
    column: Any
    groups: Any


def stretches(
    shape: Shape, sources: list[Any], chunk: Chunk, parts: tuple[Part, Part], numbers: Numbers
) -> list[Stretch]:
    """Return what to prefetch during a chunk: the next chunk or, for the last, the first chunk.

    Parameters
    ----------
    shape : Shape
        The product's shape.
    sources : list of Buffer
        The product's operands.
    chunk : Chunk
        The chunk that is being computed.
    parts : pair of Part
        Tiles and panels of the block that computes the next chunk.
    numbers : Numbers
        The task's stored integers (see `operand.Numbers`).
    """
    start = numbers.hold(tirx.Select(chunk.is_last, wide(0), chunk.start + shape.chunk))
    found = []
    for source, part, width in zip(sources, parts, (shape.height, shape.width), strict=True):
        line = line_length(source.dtype)
        shifted = tirx.any(tirx.floormod(source.shape[1], line) != 0, width % line != 0)
        lines = tirx.ceildiv(part.count * width, line) + tirx.Cast("int64", shifted)
        groups = numbers.hold(tirx.ceildiv(lines, _LINES_TOGETHER))
        found.append(Stretch(source, start, part.first * width, groups))
    return found


def prefetcher(
    shape: Shape, ahead: list[Stretch], number: Any, of: Any, numbers: Numbers
) -> Callable[[Any], None]:
    """Return a function that emits one piece of the prefetches in share `number` of `of` shares."""
    left, right = ahead
    all_groups = (left.groups + right.groups) * shape.chunk
    first = numbers.hold(tirx.floordiv(number * all_groups, of))
    share = numbers.hold(tirx.floordiv((number + 1) * all_groups, of) - first)

    def prefetch(piece: Any) -> None:
        begin = first + tirx.floordiv(share * piece, shape.pieces)
        end = first + tirx.floordiv(share * (piece + 1), shape.pieces)
        with T.serial(wide(0), end - begin) as n:
            row, group = (of(begin + n, shape.chunk) for of in (tirx.floormod, tirx.floordiv))
            with T.If(group < left.groups):
                with T.Then():
                    _prefetch(left, row, group)
                with T.Else():
                    _prefetch(right, row, group - left.groups)

    return prefetch


def _prefetch(stretch: Stretch, row: Any, group: Any) -> None:
    line = line_length(stretch.source.dtype)
    with unrolled(_LINES_TOGETHER) as n:
        column = stretch.column + (group * _LINES_TOGETHER + n) * line
        _INTO_SECOND_CACHE.line(stretch.source, [stretch.start + row, column])
