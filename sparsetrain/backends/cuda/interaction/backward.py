# SPDX-License-Identifier: Apache-2.0
"""CUDA kernel for the reverse pass of the dot interaction (formula: `models.interaction.operator`).

The cotangents of a sample's vectors are a matrix product: the symmetric matrix of its pairs'
cotangents, times its vectors. The matrix is in shared memory. A thread computes a few columns of
all results. So it reads only these columns of each vector from global memory, a few vectors ahead,
and adds each vector to the sums of all results, which are in registers. Sums run from the first
vector to the last. Cost: inputs are read and results written once, 1.95 GB for 65,536 samples with
F = 26 and D = 128.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.backends.cuda.interaction.blocking import SHARED, Inputs
from sparsetrain.backends.cuda.sparse.parts import barrier, blocks_of_threads, vector_lanes
from sparsetrain.kernels.builder import buffer, kernel
from sparsetrain.kernels.loops import store_vector
from sparsetrain.models.interaction.result_layout import output_width, pair_column

MAX_ROWS = 28  # most result vectors that a thread has in registers, a few columns of each
AHEAD = 3  # number of vectors being loaded while a vector is used
TEAM = 32  # fewest threads per sample, unless there are fewer columns
THREADS = 128  # of a block, at most
BLOCKS = 3  # resident on a multiprocessor
QUAD = 4  # number of factors read at once


class Cut(NamedTuple):
    """How the work is divided among threads."""

    lanes: int  # columns per thread in each pass
    members: int  # threads per sample
    turns: int  # passes of these threads over the columns
    samples: int  # samples per block
    rows: int  # result vectors that a thread sums at a time
    pitch: int  # row pitch of the matrix in shared memory
    staged: bool  # whether the matrix is in shared memory


def select_cut(vectors: int, width: int, dtype: str) -> Cut:
    """Choose enough threads for a sample's columns, and as many samples as shared memory holds."""
    itemsize = {"float32": 4, "float64": 8}[dtype]
    widest = vector_lanes(width, dtype)
    lanes = next(n for n in (widest, widest // 2, 1) if n == 1 or n and width // n >= TEAM)
    members = min(width // lanes, THREADS)
    tiles = -(-vectors // MAX_ROWS)
    rows = -(-vectors // tiles // QUAD) * QUAD
    pitch = tiles * rows
    staged = vectors * pitch * itemsize <= SHARED
    samples = max(1, THREADS // members)
    if staged:
        samples = min(samples, SHARED // (vectors * pitch * itemsize))
    return Cut(lanes, members, -(-width // lanes // members), samples, rows, pitch, staged)


def backward_kernel(features: int, width: int, dtype: str) -> PrimFunc:
    """Return the kernel that computes the cotangents of dense (B, D) and embeddings (B, F, D).

    Its last input is the cotangent of the interaction, (B, D + F (F + 1) / 2).
    """
    cut = select_cut(features + 1, width, dtype)
    with kernel("interaction_backward") as built:
        inputs = Inputs(features, width, dtype)
        across = output_width(features, width)
        cotangent = buffer("cotangent", (inputs.batch, across), dtype)
        outs = (
            buffer("dense_cotangent", (inputs.batch, width), dtype),
            buffer("embeddings_cotangent", (inputs.batch, features, width), dtype),
        )
        blocks = tirx.ceildiv(inputs.batch, cut.samples)
        with (
            blocks_of_threads(blocks, cut.samples * cut.members, "int32") as (block, thread),
            # Without this, the compiler unrolls loops until one block's loads fill all registers.
            T.attr(block, "tirx.launch_bounds_min_blocks_per_sm", BLOCKS),
        ):
            place = T.Bind(tirx.floordiv(thread, cut.members))
            member = T.Bind(tirx.floormod(thread, cut.members))
            sample = T.Bind(block * cut.samples + place)
            factors = _Factors(inputs, cut, cotangent, (place, sample))
            if cut.staged:
                with T.If(sample < inputs.batch), T.Then():
                    factors.stage(member)
                barrier()
            with T.If(sample < inputs.batch), T.Then(), T.serial(0, cut.turns) as turn:
                column = T.Bind((turn * cut.members + member) * cut.lanes)
                with T.If(column < width), T.Then(), T.serial(0, cut.pitch // cut.rows) as tile:
                    sums = _Sums(inputs, cut, sample, column, T.Bind(tile * cut.rows))
                    sums.add_all(factors)
                    sums.write(cotangent, *outs)
    return built.get()


class _Factors:
    """The symmetric matrix of the cotangents of a sample's pairs; its diagonal is zero."""

    def __init__(self, inputs: Inputs, cut: Cut, cotangent: Any, where: tuple[Any, Any]) -> None:
        self.inputs, self.cut, self.cotangent = inputs, cut, cotangent
        place, self.sample = where
        size = inputs.vectors * cut.pitch if cut.staged else 0
        self._first = place * size
        self._zero = tirx.const(0, inputs.dtype)
        if cut.staged:
            self._matrix = T.alloc_buffer((cut.samples * size,), inputs.dtype, scope="shared")

    def stage(self, member: Any) -> None:
        """Write the matrix to shared memory row by row, with all threads of the sample."""
        vectors, members = self.inputs.vectors, self.cut.members
        for turn in range(-(-vectors // members)):
            column = T.Bind(turn * members + member)
            with T.If(column < vectors), T.Then():
                T.buffer_store(self._matrix, self._zero, [self._place(column, column)])
        with _rows(vectors) as row:
            for turn in range(-(-vectors // members)):
                column = T.Bind(turn * members + member)
                with T.If(column < row), T.Then():
                    value = T.Bind(self._read(row, column))
                    T.buffer_store(self._matrix, value, [self._place(row, column)])
                    T.buffer_store(self._matrix, value, [self._place(column, row)])

    def _place(self, row: Any, column: Any) -> Any:
        return self._first + row * self.cut.pitch + column

    def _read(self, row: Any, column: Any) -> Any:
        return self.cotangent[self.sample, pair_column(self.inputs.width, row, column)]

    def load(self, into: Any, row: Any, column: Any) -> None:
        """Load `QUAD` factors of a row, from a column on; past the last they are undefined."""
        if self.cut.staged:
            first = self._place(row, column)
            store_vector(into, [0], QUAD, lambda lane: self._matrix[first + lane])
            return
        for lane in range(QUAD):
            other = tirx.min(column + lane, self.inputs.features)
            larger = T.Bind(tirx.max(tirx.max(row, other), 1))
            read = self._read(larger, tirx.min(row, other))
            T.buffer_store(into, tirx.if_then_else(row == other, self._zero, read), [lane])


def _element(array: Any, first: int, lane: Any) -> Any:
    return array[first + lane]


def _rows(vectors: int) -> Any:
    """Loop over the rows of a triangle; unroll if all its loads can be in flight at once."""
    return T.unroll(1, vectors) if vectors <= MAX_ROWS else T.serial(1, vectors)


class _Sums:
    """Sums in registers: a few columns of `rows` result vectors of a sample."""

    def __init__(self, inputs: Inputs, cut: Cut, sample: Any, column: Any, first: Any) -> None:
        self.inputs, self.cut, self.sample = inputs, cut, sample
        self.column, self.first = column, first
        self._total = T.alloc_local((cut.rows * cut.lanes,), inputs.dtype)
        self._ahead = T.alloc_local((AHEAD * cut.lanes,), inputs.dtype)
        self._vector = T.alloc_local((cut.lanes,), inputs.dtype)
        self._factors = T.alloc_local((QUAD,), inputs.dtype)

    def add_all(self, factors: _Factors) -> None:
        """Compute ``total[r] = sum over j of factors[j, first + r] vector[j]``."""
        lanes, vectors = self.cut.lanes, self.inputs.vectors
        with T.unroll(0, self.cut.rows) as r:
            zero = tirx.const(0, self.inputs.dtype)
            store_vector(self._total, [r * lanes], lanes, lambda lane: zero)
        dense, column = self.inputs.dense, self.column
        store_vector(self._ahead, [0], lanes, lambda lane: dense[self.sample, column + lane])
        for k in range(1, AHEAD):
            self._fetch(k, k)
        with T.serial(0, -(-vectors // AHEAD)) as turn:
            for k in range(AHEAD):
                j = T.Bind(turn * AHEAD + k)
                with T.If(j < vectors), T.Then():
                    came = partial(_element, self._ahead, k * lanes)
                    store_vector(self._vector, [0], lanes, came)
                    self._fetch(k, j + AHEAD)
                    self._add(factors, j)

    def _fetch(self, place: int, vector: Any) -> None:
        """Start loading a vector's columns; past the end, load the last vector again."""
        lanes, column = self.cut.lanes, self.column
        row = T.Bind(tirx.min(vector, self.inputs.features) - 1)
        embeddings = self.inputs.embeddings
        store_vector(
            self._ahead,
            [place * lanes],
            lanes,
            lambda lane: embeddings[self.sample, row, column + lane],
        )

    def _add(self, factors: _Factors, j: Any) -> None:
        lanes = self.cut.lanes
        for quad in range(self.cut.rows // QUAD):
            factors.load(self._factors, j, self.first + quad * QUAD)
            for r in range(QUAD):
                place = (quad * QUAD + r) * lanes

                def added(lane: Any, r: int = r, place: int = place) -> Any:
                    product = self._factors[r] * self._vector[lane]
                    return self._total[place + lane] + product

                store_vector(self._total, [place], lanes, added)

    def write(self, cotangent: Any, dense: Any, embeddings: Any) -> None:
        """Write the sums; to the dense vector, add the cotangent of its copy in the result."""
        lanes, column, sample = self.cut.lanes, self.column, self.sample
        with T.unroll(0, self.cut.rows) as r:
            vector = T.Bind(self.first + r)
            with T.If(vector == 0):
                with T.Then():
                    store_vector(
                        dense,
                        [sample, column],
                        lanes,
                        lambda lane: (
                            self._total[r * lanes + lane] + cotangent[sample, column + lane]
                        ),
                    )
                with T.Else(), T.If(vector < self.inputs.vectors), T.Then():
                    place = [sample, tirx.max(vector - 1, 0), column]
                    store_vector(
                        embeddings, place, lanes, lambda lane: self._total[r * lanes + lane]
                    )
