# SPDX-License-Identifier: Apache-2.0
"""CUDA stream for copies of batches, which runs in parallel with the default stream.

Kernels and all other copies run on CUDA's default stream. CUDA does not order the two streams;
`compute_waits` and `copies_wait` do so on the device, without blocking the host. TVM's copy
functions accept no stream from Python, so `copy_` calls CUDA's runtime library, which TVM has
loaded.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from typing import Any

import tvm

from sparsetrain.errors import ResourceError
from sparsetrain.runtime.tensors import NDArray

_TO_DEVICE = 1  # cudaMemcpyHostToDevice
_DEFAULT = 0  # the stream on which TVM computes
_RUNTIMES = ("libcudart.so.13", "libcudart.so.12")


class CopyStream:
    """The stream for copies, ordered with the computing stream; any thread may call its methods."""

    def __init__(self) -> None:
        self._device = tvm.cuda()
        self._stream = self._device.create_raw_stream()
        self._wait = tvm.get_global_func("runtime.Device_StreamSyncFromTo")

    def copy_(self, target: NDArray, source: NDArray, size: int) -> None:
        """Start copying `size` bytes from pinned host memory to the device; return at once."""
        code = _library().cudaMemcpyAsync(
            ctypes.c_void_p(target.data_ptr()),
            ctypes.c_void_p(source.data_ptr()),
            ctypes.c_size_t(size),
            _TO_DEVICE,
            ctypes.c_void_p(int(self._stream)),
        )
        if code:
            raise ResourceError(f"CUDA failed to copy a batch of {size} bytes: error {code}")

    def compute_waits(self) -> None:
        """Make kernels launched later wait for all copies so far."""
        self._wait(self._device, self._stream, _DEFAULT)

    def copies_wait(self) -> None:
        """Make later copies wait for all kernels launched so far."""
        self._wait(self._device, _DEFAULT, self._stream)

    def finish(self) -> None:
        """Block the host until all copies are done."""
        self._device.sync(self._stream)


@cache
def _library() -> Any:
    """Return CUDA's runtime library, which TVM has already loaded."""
    for name in _RUNTIMES:
        with suppress(OSError):
            return ctypes.CDLL(name)
    raise ResourceError(
        f"CUDA: cannot load any of {', '.join(_RUNTIMES)} to copy batches: add the folder of "
        "TVM's CUDA runtime to LD_LIBRARY_PATH"
    )
