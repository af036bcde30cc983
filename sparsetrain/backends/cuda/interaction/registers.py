# SPDX-License-Identifier: Apache-2.0
"""CUDA kernel for the dot interaction of samples that fit into the registers of a few threads.

A thread holds four columns of every vector, read once by coalesced loads that are all in flight
together. It multiplies its columns of both vectors of every pair. Recursive halving then adds the
partial sums of a sample's threads: at each step a thread keeps half of its pairs and passes on the
rest, until it has one pair, which it writes. So per thread, a pair costs four products, one
shuffle, one addition and two selects, without shared memory. Sums have a fixed order: first the
four columns of a thread, then the threads by halves.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.backends.cuda.interaction.blocking import Inputs
from sparsetrain.backends.cuda.sparse.parts import blocks_of_threads
from sparsetrain.kernels.builder import buffer, kernel
from sparsetrain.kernels.loops import store_vector

LANES = 4  # columns per thread
MEMBERS = (4, 8, 16, 32)  # threads per sample, for widths from 16 to 128
MAX_VECTORS = 28
THREADS = 128
BLOCKS = 3  # resident on a multiprocessor

# Each halving has its own loop of constant length: nvcc keeps an array in registers only if it can
# unroll all loops over it.
_SUM_APART = """
__forceinline__ __device__ float sparsetrain_sum_apart_{members}(float* sums) {{{halvings}
  return sums[0];
}}
"""
_HALVING = """
#pragma unroll
  for (int k = 0; k < {half}; ++k) {{
    bool upper = threadIdx.x & {half};
    float kept = upper ? sums[k + {half}] : sums[k], given = upper ? sums[k] : sums[k + {half}];
    sums[k] = kept + __shfl_xor_sync(0xffffffffu, given, {half});
  }}"""


def fits(features: int, width: int, dtype: str) -> bool:
    """Whether this kernel supports this number of features, width and dtype."""
    return dtype == "float32" and width in {LANES * m for m in MEMBERS} and features < MAX_VECTORS


def forward_kernel(features: int, width: int) -> PrimFunc:
    """Return ``kernel(dense (B, D), embeddings (B, F, D), out (B, D + F (F + 1) / 2))``."""
    members = width // LANES
    pairs = [(i, j) for i in range(1, features + 1) for j in range(i)]
    with kernel("interaction") as built:
        inputs = Inputs(features, width, "float32")
        out = buffer("out", (inputs.batch, width + len(pairs)), "float32")
        samples = THREADS // members
        with (
            blocks_of_threads(tirx.ceildiv(inputs.batch, samples), THREADS, "int32") as (
                block,
                thread,
            ),
            T.attr(block, "tirx.launch_bounds_min_blocks_per_sm", BLOCKS),
            T.If(inputs.batch > 0),
            T.Then(),
        ):
            member = T.Bind(tirx.floormod(thread, members))
            sample = T.Bind(block * samples + tirx.floordiv(thread, members))
            # Threads without a sample compute the last sample again: shuffles need all threads.
            known = T.Bind(tirx.min(sample, inputs.batch - 1))
            vectors = _read(inputs, known, T.Bind(member * LANES))
            sums = T.alloc_local((members,), "float32")
            with T.If(sample < inputs.batch), T.Then(), T.unroll(0, LANES) as turn:
                column = T.Bind(turn * members + member)
                T.buffer_store(out, inputs.dense[sample, column], [sample, column])
            for first in range(0, len(pairs), members):
                these = pairs[first : first + members]
                for k in range(members):
                    total = _product(vectors, *these[k]) if k < len(these) else _ZERO
                    T.buffer_store(sums, total, [k])
                whole = T.Bind(_sum_apart(members, tirx.address_of(sums[0])))
                mine = tirx.And(sample < inputs.batch, member < len(these))
                with T.If(mine), T.Then():
                    T.buffer_store(out, whole, [sample, width + first + member])
    return built.get()


_ZERO = tirx.const(0, "float32")


def _read(inputs: Inputs, sample: Any, column: Any) -> Any:
    """Load a thread's columns of all vectors of a sample."""
    vectors = T.alloc_local((inputs.vectors * LANES,), inputs.dtype)
    store_vector(vectors, [0], LANES, lambda lane: inputs.dense[sample, column + lane])
    with T.unroll(0, inputs.features) as feature:
        store_vector(
            vectors,
            [(feature + 1) * LANES],
            LANES,
            lambda lane: inputs.embeddings[sample, feature, column + lane],
        )
    return vectors


def _product(vectors: Any, i: int, j: int) -> Any:
    """Return the part of a pair's dot product that comes from a thread's columns."""
    total = vectors[i * LANES] * vectors[j * LANES]
    for lane in range(1, LANES):
        total = total + vectors[i * LANES + lane] * vectors[j * LANES + lane]
    return total


def _sum_apart(members: int, sums: Any) -> Any:
    """Add each of `members` numbers over `members` threads; thread k gets the total of number k."""
    halves = [members >> step for step in range(1, members.bit_length())]
    halvings = "".join(_HALVING.format(half=half) for half in halves)
    text = _SUM_APART.format(members=members, halvings=halvings)
    name = f"sparsetrain_sum_apart_{members}"
    return cuda_func_call(name, sums, source_code=text, return_type="float32")
