# SPDX-License-Identifier: Apache-2.0
"""CUDA kernel for the dot interaction of any width (formula: `models.interaction.operator`).

`registers` has a faster kernel for common widths, and `backward` the kernel of the reverse pass.
Here a thread computes a square of `SIDE` x `SIDE` pairs in registers, so each loaded value is used
in `SIDE` products. Pairs are collected in shared memory, so that a sample's results are written
contiguously. Sums run from the first column to the last. Cost: inputs are read and results written
once, 1 GB for 65,536 samples with F = 26, D = 128.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.backends.cuda.interaction import registers
from sparsetrain.backends.cuda.interaction.backward import backward_kernel as backward_kernel
from sparsetrain.backends.cuda.interaction.blocking import (
    SIDE,
    Block,
    Inputs,
    blocks_of_samples,
    forward_blocking,
)
from sparsetrain.backends.cuda.sparse.parts import THREADS, barrier, shared
from sparsetrain.kernels.builder import buffer, kernel
from sparsetrain.kernels.loops import Number
from sparsetrain.models.interaction.result_layout import pair_column

_ITEMSIZE = {"float32": 4, "float64": 8}


def forward_kernel(features: int, width: int, dtype: str) -> PrimFunc:
    """Return ``kernel(dense (B, D), embeddings (B, F, D), out (B, D + F (F + 1) / 2))``."""
    if registers.fits(features, width, dtype):
        return registers.forward_kernel(features, width)
    cut = forward_blocking(features + 1, width, _ITEMSIZE[dtype])
    tiles = -(-(features + 1) // SIDE)
    squares = tiles * (tiles + 1) // 2
    pairs = features * (features + 1) // 2
    with kernel("interaction") as built:
        inputs = Inputs(features, width, dtype)
        out = buffer("out", (inputs.batch, width + pairs), dtype)
        with blocks_of_samples(inputs, cut) as block:
            rows = _PitchedRows(block)
            stage = _touched((cut.samples, pairs if cut.staged else 1), dtype)
            with T.serial(0, -(-cut.samples * squares // THREADS)) as turn:
                item = T.Bind(turn * THREADS + block.thread)
                member = T.Bind(tirx.floordiv(item, squares))
                square = _Square(T.Bind(tirx.floormod(item, squares)), tiles, dtype)
                square.multiply(rows, member, item < cut.samples * squares)
                barrier()
                inside = block.sample(member) < inputs.batch
                with T.If(tirx.And(item < cut.samples * squares, inside)), T.Then():
                    square.store(block, member, stage if cut.staged else None, out)
            barrier()
            _write_results(block, stage if cut.staged else None, out)
    return built.get()


def _touched(shape: tuple[int, ...], dtype: str) -> Any:
    """Allocate a shared array and write one element, because TVM refuses an unused array."""
    array = T.alloc_buffer(shape, dtype, scope="shared")
    T.buffer_store(array, tirx.const(0, dtype), [0] * len(shape))
    return array


class _PitchedRows:
    """A range of columns of the block's vectors, in shared memory.

    An odd row pitch spreads the rows over the memory banks. The array has one axis, because TVM
    would remove the padding between the rows of a 2-D array.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        self._pitch = block.cut.columns | 1
        count = block.cut.samples * block.inputs.vectors * self._pitch
        self._array = shared(count, block.inputs.dtype)

    def at(self, member: Any, vector: Any, column: Any) -> Any:
        """Return one number of a sample's vector; `column` is within the range."""
        return self._array[self._place(member, vector, column)]

    def load(self, stretch: Any) -> None:
        """Load range `stretch` of the columns."""

        def store(member: Any, vector: Any, column: Any, loaded: Any) -> None:
            with T.unroll(0, self.block.lanes) as lane:
                place = self._place(member, vector, column + lane)
                T.buffer_store(self._array, loaded[lane], [place])

        barrier()
        self.block.load(stretch, store)
        barrier()

    def _place(self, member: Any, vector: Any, column: Any) -> Any:
        return (member * self.block.inputs.vectors + vector) * self._pitch + column


class _Square:
    """The `SIDE` x `SIDE` pairs of vectors that a thread computes."""

    def __init__(self, number: Any, tiles: int, dtype: str) -> None:
        """Set square `number` to zero; squares are numbered row by row in a triangle."""
        self.gram, self.dtype = T.alloc_local((SIDE, SIDE), dtype), dtype
        row = Number()
        for below in range(1, tiles):
            with T.If(number >= below * (below + 1) // 2), T.Then():
                row.set(tirx.const(below, "int32"))
        self.upper = row.now * SIDE
        self.lower = T.Bind(number - tirx.floordiv(row.now * (row.now + 1), 2)) * SIDE
        with self._each_pair() as (r, c):
            T.buffer_store(self.gram, tirx.const(0, dtype), [r, c])

    def multiply(self, rows: _PitchedRows, member: Any, works: Any) -> None:
        """Sum the products over all columns, a range at a time; all threads must call this."""
        x, columns = rows.block.inputs, rows.block.cut.columns
        left, right = (T.alloc_local((SIDE,), self.dtype) for _ in range(2))
        with T.serial(0, x.width // columns) as stretch:
            rows.load(stretch)
            with T.If(works), T.Then(), T.serial(0, columns) as d:
                with T.unroll(0, SIDE) as r:
                    for side, first in ((left, self.upper), (right, self.lower)):
                        vector = tirx.min(first + r, x.features)
                        T.buffer_store(side, rows.at(member, vector, d), [r])
                with self._each_pair() as (r, c):
                    total = self.gram[r, c] + left[r] * right[c]
                    T.buffer_store(self.gram, total, [r, c])

    def store(self, block: Block, member: Any, stage: Any, out: Any) -> None:
        """Store the pairs below the diagonal to `stage`, or to `out` if `stage` is None."""
        x = block.inputs
        with self._each_pair() as (r, c):
            i, j = self.upper + r, self.lower + c
            with T.If(tirx.And(i < x.vectors, j < i)), T.Then():
                if stage is None:
                    place = [block.sample(member), pair_column(x.width, i, j)]
                    T.buffer_store(out, self.gram[r, c], place)
                else:
                    T.buffer_store(stage, self.gram[r, c], [member, pair_column(0, i, j)])

    @contextmanager
    def _each_pair(self) -> Iterator[tuple[Any, Any]]:
        with T.unroll(0, SIDE) as r, T.unroll(0, SIDE) as c:
            yield r, c


def _write_results(block: Block, stage: Any, out: Any) -> None:
    """Write the dense vectors, and after them the pairs in `stage`, if given."""
    x, across = block.inputs, int(out.shape[1])
    with block.each(block.cut.samples * across) as place:
        member = tirx.floordiv(place, across)
        column = T.Bind(tirx.floormod(place, across))
        sample = block.sample(member)
        with T.If(sample < x.batch), T.Then(), T.If(column < x.width):
            with T.Then():
                T.buffer_store(out, x.dense[sample, column], [sample, column])
            if stage is not None:
                with T.Else():
                    T.buffer_store(out, stage[member, column - x.width], [sample, column])
