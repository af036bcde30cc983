# SPDX-License-Identifier: Apache-2.0
"""Blocks of samples in CUDA interaction kernels, and loads of their vectors.

A thread block computes a few samples. All its threads load the samples' vectors into shared memory,
a range of columns at a time, with 16-byte loads if the width allows this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.backends.cuda.sparse.parts import THREADS, blocks_of_threads, vector_lanes
from sparsetrain.kernels.builder import buffer
from sparsetrain.kernels.loops import store_vector

SIDE = 4  # rows and columns of the square of pairs that a thread computes
SHARED = 46 * 1024  # bytes of shared memory; without an opt-in, a block has 48 KiB
MAX_SAMPLES = 32


# (sample within the block, vector, first column, values): stores the values of loaded columns.
Store = Callable[[Any, Any, Any, Any], None]


class Blocking(NamedTuple):
    """How many samples a block computes, and how many columns it holds at a time."""

    samples: int
    columns: int
    staged: bool  # whether shared memory also holds the triangle of pairs


def _divisors(width: int) -> list[int]:
    return [d for d in range(width, 0, -1) if width % d == 0]


def forward_blocking(vectors: int, width: int, itemsize: int) -> Blocking:
    """Choose as many samples as there are threads for, and as many columns as fit in memory."""
    tiles = -(-vectors // SIDE)
    pairs = vectors * (vectors - 1) // 2
    staged = pairs * itemsize <= SHARED // 2
    samples = max(1, min(MAX_SAMPLES, THREADS // (tiles * (tiles + 1) // 2)))
    while samples > 1 and samples * (pairs + vectors * 17) * itemsize > SHARED:
        samples -= 1
    left = SHARED - samples * pairs * itemsize * staged
    columns = next(c for c in _divisors(width) if samples * vectors * (c | 1) * itemsize <= left)
    return Blocking(samples, columns, staged)


class Inputs:
    """The first arguments of all interaction kernels: dense (B, D) and embeddings (B, F, D)."""

    def __init__(self, features: int, width: int, dtype: str) -> None:
        self.batch = T.int64()
        self.dense = buffer("dense", (self.batch, width), dtype)
        self.embeddings = buffer("embeddings", (self.batch, features, width), dtype)
        self.features, self.vectors, self.width = features, features + 1, width
        self.dtype = dtype


class Block:
    """The indices of a thread block and a thread, and the loops over their work."""

    def __init__(self, inputs: Inputs, cut: Blocking, number: Any, thread: Any) -> None:
        self.inputs, self.cut, self.number, self.thread = inputs, cut, number, thread
        self.lanes = vector_lanes(cut.columns, inputs.dtype)
        self.across = cut.columns // self.lanes  # vectors of `lanes` columns in a range of columns

    def sample(self, member: Any) -> Any:
        """Return a sample's number in the batch."""
        return self.number * self.cut.samples + member

    @contextmanager
    def each(self, count: int) -> Iterator[Any]:
        """Emit a loop that distributes the numbers below `count` over the block's threads."""
        with T.serial(0, -(-count // THREADS)) as turn:
            number = T.Bind(turn * THREADS + self.thread)
            with T.If(number < count), T.Then():
                yield number

    def load(self, stretch: Any, store: Store) -> None:
        """Load range `stretch` of the columns, for all vectors of the block's samples.

        ``store(member, vector, column, loaded)`` stores `lanes` columns: `member` is the sample's
        number in the block, and `column` the first column within the range. Samples past the end of
        the batch are not loaded.
        """
        x = self.inputs
        loaded = T.alloc_local((self.lanes,), x.dtype)
        fetch = partial(store_vector, loaded, [0], self.lanes)
        with self.each(self.cut.samples * x.vectors * self.across) as number:
            member = T.Bind(tirx.floordiv(number, x.vectors * self.across))
            vector = T.Bind(tirx.floormod(tirx.floordiv(number, self.across), x.vectors))
            column = T.Bind(tirx.floormod(number, self.across) * self.lanes)
            sample = self.sample(member)
            start = stretch * self.cut.columns + column
            with T.If(sample < x.batch), T.Then():
                with T.If(vector == 0):
                    with T.Then():
                        fetch(lambda lane: x.dense[sample, start + lane])
                    with T.Else():
                        other = tirx.max(vector - 1, 0)
                        fetch(lambda lane: x.embeddings[sample, other, start + lane])
                store(member, vector, column, loaded)


@contextmanager
def blocks_of_samples(inputs: Inputs, cut: Blocking) -> Iterator[Block]:
    """Launch thread blocks of `cut.samples` samples each."""
    count = tirx.ceildiv(inputs.batch, cut.samples)
    # Within a block, 32-bit indices are large enough, and dividing them is faster.
    with blocks_of_threads(count, dtype="int32") as (block, thread):
        yield Block(inputs, cut, block, thread)
