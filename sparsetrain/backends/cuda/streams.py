# SPDX-License-Identifier: Apache-2.0
"""CUDA stream for copies of batches, parallel to the default stream that computes.

Kernels and all remaining copies run on CUDA's default stream. CUDA does not order the two streams;
`compute_waits` and `copies_wait` do, on the device, without stopping the host.

TVM creates streams and lets them wait for each other, but its copies take no stream from Python.
That one call goes to CUDA's runtime, the library that TVM itself has loaded.
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
    """Stream of copies, and its order with the computation; any thread may call."""

    def __init__(self) -> None:
        self._device = tvm.cuda()
        self._stream = self._device.create_raw_stream()
        self._wait = tvm.get_global_func("runtime.Device_StreamSyncFromTo")

    def copy_(self, target: NDArray, source: NDArray, size: int) -> None:
        """Begin to copy `size` bytes from pinned host memory to the device; returns at once."""
        code = _library().cudaMemcpyAsync(
            ctypes.c_void_p(target.data_ptr()),
            ctypes.c_void_p(source.data_ptr()),
            ctypes.c_size_t(size),
            _TO_DEVICE,
            ctypes.c_void_p(int(self._stream)),
        )
        if code:
            raise ResourceError(f"CUDA refused to copy a batch of {size} bytes: error {code}")

    def compute_waits(self) -> None:
        """Let later launches wait for the copies so far."""
        self._wait(self._device, self._stream, _DEFAULT)

    def copies_wait(self) -> None:
        """Let later copies wait for the launches so far."""
        self._wait(self._device, _DEFAULT, self._stream)

    def finish(self) -> None:
        """Stop the host until all copies are done."""
        self._device.sync(self._stream)


@cache
def _library() -> Any:
    """CUDA's runtime, which TVM has loaded already."""
    for name in _RUNTIMES:
        with suppress(OSError):
            return ctypes.CDLL(name)
    raise ResourceError(
        f"CUDA: cannot load any of {', '.join(_RUNTIMES)} to copy batches: add the folder of "
        "TVM's CUDA runtime to LD_LIBRARY_PATH"
    )
