# SPDX-License-Identifier: Apache-2.0
"""Device memory from TVM's pool, for the duration of a step."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from sparsetrain.backends.cuda import device
from sparsetrain.errors import ResourceError
from sparsetrain.runtime.compiling import build_relax
from sparsetrain.runtime.tensors import NDArray, as_shape, copy_, on_host
from sparsetrain.system.locks import with_builder_lock


def place(tensors: list[NDArray]) -> list[NDArray]:
    """Copy tensors to pooled memory on the device; return those already there unchanged."""
    return [_copied(tensor) if on_host(tensor) else tensor for tensor in tensors]


def _copied(tensor: NDArray) -> NDArray:
    copy = scratch(tuple(map(int, tensor.shape)), str(tensor.dtype))
    copy_(copy, tensor)
    return copy


def scratch(shape: tuple[int, ...], dtype: str) -> NDArray:
    """Return an uninitialized tensor from TVM's pool; when freed, its memory goes back there."""
    try:
        return _allocator(len(shape), dtype)(as_shape(shape))
    except RuntimeError as error:  # TVM reports CUDA's error as an InternalError
        size = prod(shape) * np.dtype(dtype).itemsize
        raise ResourceError(
            f"no memory on {tvm.cuda()} for a batch: shape {shape} {dtype} needs "
            f"{size / 2**30:.2f} GiB; use smaller batches"
        ) from error


@cache
@with_builder_lock
def _allocator(rank: int, dtype: str) -> Any:
    """Return a compiled function that allocates a pooled tensor of a given shape."""
    sizes = [tvm.tirx.Var(f"n{axis}", "int64") for axis in range(rank)]
    builder = relax.BlockBuilder()
    shape = relax.Var("shape", relax.ShapeType(sizes))
    with builder.function("allocate", [shape]):
        tensor = relax.op.builtin.alloc_tensor(
            relax.ShapeExpr(sizes), dtype, runtime_device_index=0, storage_scope="global"
        )
        builder.emit_func_output(builder.emit(tensor))
    return build_relax(builder.get(), device.target())["allocate"]
