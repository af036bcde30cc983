# SPDX-License-Identifier: Apache-2.0
"""Memory for as long as a step: of the host's allocator, or of the pool on a device."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from sparsetrain.errors import ResourceError
from sparsetrain.runtime import gpu
from sparsetrain.runtime.compiling import build_relax
from sparsetrain.runtime.tensors import NDArray, as_shape, copy_, empty, on_gpu
from sparsetrain.system.locks import with_builder_lock


def scratch_tensor(shape: tuple[int, ...], dtype: str, beside: NDArray) -> NDArray:
    """Uninitialised memory where `beside` lies, for as long as a step needs it.

    On a device it comes from the virtual machine's pool and goes back there.
    """
    return _pooled(shape, dtype) if on_gpu(beside) else empty(shape, dtype)


def to_target(tensors: list[NDArray], target: tvm.target.Target) -> list[NDArray]:
    """Tensors where programs for a target want them; what is not there goes into the pool."""
    if not gpu.is_cuda(target):
        return tensors
    return [tensor if on_gpu(tensor) else _sent(tensor) for tensor in tensors]


def _sent(tensor: NDArray) -> NDArray:
    there = _pooled(tuple(map(int, tensor.shape)), str(tensor.dtype))
    copy_(there, tensor)
    return there


def _pooled(shape: tuple[int, ...], dtype: str) -> NDArray:
    try:
        return _pool(len(shape), dtype)(as_shape(shape))
    except RuntimeError as error:  # TVM gives CUDA's word as an InternalError
        size = prod(shape) * np.dtype(dtype).itemsize
        raise ResourceError(
            f"no memory on {tvm.cuda()} for a batch: shape {shape} {dtype} needs "
            f"{size / 2**30:.2f} GiB; use smaller batches"
        ) from error


@cache
@with_builder_lock
def _pool(rank: int, dtype: str) -> Any:
    """A function that allocates tensors of the shape it is given."""
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

_POOLED_SIZES = 16  # batch sizes, say: of a training run there are two, of bags one each step
_seen_sizes: set[Sizes] = set()


def limit_pool(tensors: Iterable[NDArray]) -> Sizes:
    """Tell what a program is about to run on; too many different shapes empty the pool."""
    sizes = tuple(tuple(tensor.shape) for tensor in tensors)
    if sizes not in _seen_sizes:
        if len(_seen_sizes) >= _POOLED_SIZES:
            tvm.get_global_func("vm.builtin.memory_manager.clear")()
            _seen_sizes.clear()
        _seen_sizes.add(sizes)
    return sizes
