# SPDX-License-Identifier: Apache-2.0
"""Temporary tensors of a step: from the host's allocator, or from TVM's pool on a device."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from sparsetrain.backends.cuda import device as gpu
from sparsetrain.errors import ResourceError
from sparsetrain.runtime.compiling import build_relax
from sparsetrain.runtime.tensors import NDArray, as_shape, copy_, empty, on_gpu
from sparsetrain.system.locks import with_builder_lock


def scratch_tensor(shape: tuple[int, ...], dtype: str, like: NDArray) -> NDArray:
    """Allocate uninitialised memory on the device of `like`, for as long as a step needs it.

    On a GPU it comes from the virtual machine's pool and returns there.
    """
    return _allocate(shape, dtype) if on_gpu(like) else empty(shape, dtype)


def to_gpu(tensors: list[NDArray]) -> list[NDArray]:
    """Copy tensors to the device, into its pool; those that lie there are returned."""
    return [tensor if on_gpu(tensor) else _copy_to_gpu(tensor) for tensor in tensors]


def _copy_to_gpu(tensor: NDArray) -> NDArray:
    copy = _allocate(tuple(map(int, tensor.shape)), str(tensor.dtype))
    copy_(copy, tensor)
    return copy


def _allocate(shape: tuple[int, ...], dtype: str) -> NDArray:
    try:
        return _allocator(len(shape), dtype)(as_shape(shape))
    except RuntimeError as error:  # TVM gives CUDA's word as an InternalError
        size = prod(shape) * np.dtype(dtype).itemsize
        raise ResourceError(
            f"no memory on {tvm.cuda()} for a batch: shape {shape} {dtype} needs "
            f"{size / 2**30:.2f} GiB; use smaller batches"
        ) from error


@cache
@with_builder_lock
def _allocator(rank: int, dtype: str) -> Any:
    """Function from a shape to a pooled tensor."""
    sizes = [tvm.tirx.Var(f"n{axis}", "int64") for axis in range(rank)]
    builder = relax.BlockBuilder()
    shape = relax.Var("shape", relax.ShapeType(sizes))
    with builder.function("allocate", [shape]):
        tensor = relax.op.builtin.alloc_tensor(
            relax.ShapeExpr(sizes), dtype, runtime_device_index=0, storage_scope="global"
        )
        builder.emit_func_output(builder.emit(tensor))
    return build_relax(builder.get(), gpu.target())["allocate"]


Sizes = tuple[tuple[int, ...], ...]

_MAX_SIZES = 16  # a training run has two batch sizes, or one for each step with bags
_seen_sizes: set[Sizes] = set()


def limit_pool(tensors: Iterable[NDArray]) -> None:
    """Note the shapes of a program's next arguments; empty the pool after too many of them."""
    sizes = tuple(tuple(tensor.shape) for tensor in tensors)
    if sizes not in _seen_sizes:
        if len(_seen_sizes) >= _MAX_SIZES:
            tvm.get_global_func("vm.builtin.memory_manager.clear")()
            _seen_sizes.clear()
        _seen_sizes.add(sizes)
