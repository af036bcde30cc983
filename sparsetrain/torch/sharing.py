# SPDX-License-Identifier: Apache-2.0
"""Memory that PyTorch and TVM share by DLPack, without a copy.

Kernels need contiguous memory that is aligned to 64 bytes, as PyTorch allocates it.
"""

from __future__ import annotations

from typing import Any

import torch
from tvm.runtime import from_dlpack

from sparsetrain import runtime
from sparsetrain.errors import ConfigError

DTYPES = {torch.float32: "float32", torch.float64: "float64"}


def require_shareable(what: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor that kernels cannot write in place.

    Raises
    ------
    ConfigError
        If the tensor is not on the CPU, not float32 or float64, not contiguous or not aligned.
    """
    if tensor.device.type != "cpu":
        raise ConfigError(f"{what} is on {tensor.device}: sparsetrain.torch works only on the CPU")
    if tensor.dtype not in DTYPES:
        raise ConfigError(f"{what} is {tensor.dtype}: it must be torch.float32 or torch.float64")
    if not (tensor.is_contiguous() and tensor.data_ptr() % 64 == 0):
        raise ConfigError(f"{what} is not contiguous, or not aligned to 64 bytes: pass a clone()")


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a copy if kernels cannot read its layout."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 64 == 0 else tensor.clone()


def to_tvm(tensor: torch.Tensor) -> runtime.NDArray:
    """View a tensor as a TVM tensor; copy it if kernels cannot read its layout."""
    return from_dlpack(aligned(tensor.detach()))


def to_torch(tensor: runtime.NDArray) -> torch.Tensor:
    """View a TVM tensor as a PyTorch tensor."""
    return torch.from_dlpack(tensor)


def new_table(layer: str, rows: int, width: int, device: Any, dtype: Any) -> torch.Tensor:
    """Allocate a table (rows, width), on huge pages if it is large.

    Raises
    ------
    ConfigError
        If the device is not the CPU, or the dtype is neither float32 nor float64.
    """
    dtype, device = dtype or torch.get_default_dtype(), torch.device(device or "cpu")
    if dtype not in DTYPES or device.type != "cpu":
        raise ConfigError(
            f"{layer}: tables must be float32 or float64 on the CPU, not {dtype} on {device}"
        )
    return to_torch(runtime.empty((rows, width), DTYPES[dtype], "a table"))
