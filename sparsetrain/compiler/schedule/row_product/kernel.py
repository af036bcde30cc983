# SPDX-License-Identifier: Apache-2.0
"""Kernel of a product summed over rows, ``left.T @ right``, such as a weight's gradient.

- **Tasks** are blocks of the result. Their number depends on the number of threads, but the sums do
  not: each sum runs over all rows in order.
- **Chunks** are ranges of rows. The columns that a block reads of both operands stay in the near
  caches, packed in panels, while all tiles of the block add the chunk to their sums.
- **Packing** is done by the first tile that reads a panel, a few rows at a time (`operand.py`).
- **Prefetching:** every tile prefetches its share of the next chunk (`chunk_prefetch.py`).

- **Sizes** are arguments where a result has several tiles, so products of many sizes share a
  kernel, which takes 0.16 s to compile.

Cost: the left operand is read once per column of blocks, the right operand once per row of blocks.
A packing pass over the whole operand took a tenth of the time of a product over 2048 rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.compiler.schedule.row_product.chunk_prefetch import prefetcher, stretches
from sparsetrain.compiler.schedule.row_product.operand import Chunk, Numbers, Part, Side, load, wide
from sparsetrain.compiler.schedule.row_product.tile import Block, compute_tile
from sparsetrain.compiler.schedule.row_product.tiling import Shape
from sparsetrain.kernels.builder import buffer, extents, kernel


def row_product(
    shape: Shape, dtype: str, *, flipped: bool = False, sums: tuple[bool, bool] = (False, False)
) -> tirx.PrimFunc:
    """Return the kernel of ``out = left.T @ right`` for left (K, rows) and right (K, columns).

    Parameters
    ----------
    shape : Shape
        The result's size and tiles.
    dtype : str
        Dtype of all arrays.
    flipped : bool
        Whether `out` is the transpose, (columns, rows).
    sums : pair of bool
        Whether to write the column sums of `left`, (rows,), and of `right`, (columns,).

    Returns
    -------
    PrimFunc
        ``kernel(left, right, *sums, out)``, where `sums` are the requested column sums.
    """
    with kernel("matmul_tn") as built:
        length, *free = extents(1 + (shape.rows, shape.columns).count(None))
        size = shape.rows or free.pop(0), shape.columns or free.pop(0)
        sources = [
            buffer(name, (length, extent), dtype)
            for name, extent in zip(("left", "right"), size, strict=True)
        ]
        totals = [
            buffer(name, (extent,), dtype) if wanted else None
            for name, extent, wanted in zip(("of_left", "of_right"), size, sums, strict=True)
        ]
        out = buffer("out", size[::-1] if flipped else size, dtype)
        tiles, panels = shape.tiles(*size)
        down, across = cut(shape, tiles, panels)
        with T.parallel(wide(0), down * across) as task:
            whole = _Whole(shape, sources, totals, out, flipped, tiles, panels, down, across)
            _run_task(whole, task)
    return built.get()


# Times that a number of blocks may double, from few large tasks to many small tasks.
_MOST_DOUBLINGS = 5


class _Whole(NamedTuple):
    """Values shared by all tasks; `tiles` x `panels` are cut into `down` x `across` blocks."""

    shape: Shape
    sources: list[Any]
    totals: list[Any]
    out: Any
    flipped: bool
    tiles: Any
    panels: Any
    down: Any
    across: Any


def cut(shape: Shape, tiles: Any, panels: Any) -> tuple[Any, Any]:
    """Return the numbers of blocks down and across: the fewest that keep 4 of 5 threads busy.

    Sums do not depend on them, and blocks are at most `shape.most`.
    """
    numbers = Numbers()
    threads = numbers.hold(tirx.Cast("int64", tirx.call_packed("runtime.NumThreads")))
    blocks = T.alloc_buffer((2,), "int64")
    down, across = (load(blocks, wide(n)) for n in range(2))
    most = zip((tiles, panels), shape.most, strict=True)
    for n, fewest in enumerate(tirx.ceildiv(total, of) for total, of in most):
        T.buffer_store(blocks, fewest, [wide(n)])
    with T.serial(wide(0), wide(_MOST_DOUBLINGS)):
        tasks = down * across
        with T.If(5 * tasks < tirx.ceildiv(tasks, threads) * threads * 4), T.Then():
            is_wide = panels * shape.width * down >= tiles * shape.height * across
            splits_panels = tirx.all(across < panels, tirx.any(is_wide, down == tiles))
            with T.If(splits_panels):
                with T.Then():
                    T.buffer_store(blocks, tirx.min(2 * across, panels), [wide(1)])
                with T.Else():
                    T.buffer_store(blocks, tirx.min(2 * down, tiles), [wide(0)])
    return down, across


def _run_task(whole: _Whole, task: Any) -> None:
    shape, numbers = whole.shape, Numbers()
    tiles, panels = _parts(whole, task, numbers)
    most = shape.most
    left_sums, right_sums = whole.totals
    block = Block(
        shape,
        Side(
            whole.sources[0], (most[0], shape.chunk, shape.window), shape.columns is None, left_sums
        ),
        Side(whole.sources[1], (most[1], shape.chunk, shape.width), shape.rows is None, right_sums),
        T.alloc_buffer((most[0] * most[1] * shape.height * shape.width,), str(whole.out.dtype)),
        whole.out,
        whole.flipped,
        whole.panels,
        tiles.first,
        panels.first,
        tirx.floormod(task, whole.across) == 0,
        tirx.floordiv(task, whole.across) == 0,
        numbers,
    )
    length = whole.sources[0].shape[0]
    # If the operands have no rows, there is still one chunk, which writes zeros.
    with T.serial(wide(0), tirx.max(tirx.ceildiv(length, shape.chunk), wide(1))) as number:
        start = numbers.hold(number * shape.chunk)
        count = numbers.hold(tirx.min(wide(shape.chunk), length - start))
        chunk = Chunk(start, count, number == 0, start + count == length)
        # After its last chunk, a thread continues with the first chunk of the next task.
        next_task = numbers.hold(task + tirx.Select(chunk.is_last, wide(1), wide(0)))
        ahead = stretches(shape, whole.sources, chunk, _parts(whole, next_task, numbers), numbers)
        with T.serial(wide(0), panels.count) as panel, T.serial(wide(0), tiles.count) as tile:
            prefetch = prefetcher(
                shape, ahead, panel * tiles.count + tile, tiles.count * panels.count, numbers
            )
            compute_tile(block, chunk, tile, panel, prefetch)


def _parts(whole: _Whole, task: Any, numbers: Numbers) -> tuple[Part, Part]:
    """Return a task's range of tiles and its range of panels."""

    def part(number: Any, of: Any, total: Any) -> Part:
        first = numbers.hold(tirx.floordiv(number * total, of))
        return Part(first, numbers.hold(tirx.floordiv((number + 1) * total, of) - first))

    return (
        part(tirx.floordiv(task, whole.across), whole.down, whole.tiles),
        part(tirx.floormod(task, whole.across), whole.across, whole.panels),
    )
