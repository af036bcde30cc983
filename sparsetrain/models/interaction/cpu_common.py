# SPDX-License-Identifier: Apache-2.0
"""Common parts of the interaction's CPU kernels: loops, arrays, calls of helpers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.builder import buffer
from sparsetrain.kernels.llvm import LANES as LANES
from sparsetrain.kernels.llvm import PRAGMA
from sparsetrain.models.interaction.result_layout import output_width

SAMPLES = 16  # of a task: their arrays are allocated once


def forward_arguments(features: int, width: int) -> tuple[Any, Any, Any]:
    """Dense (B, D), embeddings (B, F, D), result (B, D + F (F + 1) / 2); all float32."""
    batch = T.int64()
    return (
        buffer("dense", (batch, width), "float32"),
        buffer("embeddings", (batch, features, width), "float32"),
        buffer("out", (batch, output_width(features, width)), "float32"),
    )


def backward_arguments(features: int, width: int) -> tuple[Any, Any, Any, Any, Any]:
    """The operands, the result's cotangent, and those of dense and embeddings."""
    batch = T.int64()
    return (
        buffer("dense", (batch, width), "float32"),
        buffer("embeddings", (batch, features, width), "float32"),
        buffer("cotangent", (batch, output_width(features, width)), "float32"),
        buffer("dense_cotangent", (batch, width), "float32"),
        buffer("embeddings_cotangent", (batch, features, width), "float32"),
    )


@contextmanager
def samples_of_tasks(batch: Any, helpers: str) -> Iterator[Any]:
    """Parallel loop over tasks; yields the loop over a task's samples, for after allocations."""
    tasks = tirx.ceildiv(batch, SAMPLES)
    with T.attr(0, PRAGMA, helpers), T.parallel(0, tasks) as task:

        @contextmanager
        def samples() -> Iterator[Any]:
            count = tirx.min(batch - task * SAMPLES, tirx.const(SAMPLES, "int64"))
            with T.serial(0, count) as sample:
                yield T.Bind(task * SAMPLES + sample)

        yield samples


def call_(name: str, *arguments: Any) -> None:
    """Call a helper; Python integers are passed as int32."""
    T.evaluate(tirx.call_extern("int32", f"sparsetrain_{name}", *map(_number, arguments)))


def _number(value: Any) -> Any:
    return tirx.const(value, "int32") if isinstance(value, int) else value


def address(array: Any, *indices: Any) -> Any:
    """Address of an element."""
    return T.address_of(tirx.BufferLoad(array, list(indices)))


def long(number: Any) -> Any:
    """Convert a Python integer to an int64 constant."""
    return tirx.const(int(number), "int64")


def lanes(v: Any) -> Any:
    """Indices of the `v`th vector of `LANES` elements."""
    return run(v * LANES, LANES)


def run(first: Any, count: int) -> Any:
    """`count` consecutive indices."""
    stride = 1 if isinstance(first, int) else tirx.const(1, first.ty.dtype)
    return tirx.Ramp(first, stride, count)


def round_up(number: int, to: int) -> int:
    """The first multiple of `to` that is not below `number`."""
    return -(-number // to) * to


def local(shape: tuple[int, ...], dtype: str) -> Any:
    """Allocate an array of a task or a sample."""
    return T.alloc_buffer(shape, dtype, scope="local")


def cleared(shape: tuple[int, ...], dtype: str) -> Any:
    """Allocate an array of zeros, all written, since TVM shrinks arrays to what is used."""
    array = local(shape, dtype)
    rows = shape[0] if len(shape) > 1 else 1
    with T.serial(0, rows) as row, T.serial(0, shape[-1] // LANES) as v:
        zeros = tirx.Broadcast(tirx.const(0, dtype), LANES)
        T.buffer_store(array, zeros, [*([row] if len(shape) > 1 else []), lanes(v)])
    return array
