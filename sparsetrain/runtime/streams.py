# SPDX-License-Identifier: Apache-2.0
"""A stream of copies beside the one that computes.

Kernels run on CUDA's default stream, and so do all other copies of this package: whoever reads a
result waits for what made it. Copies of batches to come run on a stream of their own, which CUDA
does not order with the default one; `compute_waits` and `copies_wait` do, on the device, without
stopping the host.

TVM makes streams (not blocking the default one) and lets one wait for another by an event, but its
copies cannot be given a stream from Python. That one call goes to CUDA's runtime, the library
that TVM itself has loaded.
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
    """The stream, and what orders it with the computation; any thread may call."""

    def __init__(self) -> None:
        self._device = tvm.cuda()
        self._stream = self._device.create_raw_stream()
        self._wait = tvm.get_global_func("runtime.Device_StreamSyncFromTo")

    def copy_(self, target: NDArray, source: NDArray, size: int) -> None:
        """Begin to copy `size` bytes from pinned host memory to the device; returns at once.

        Raises
        ------
        ResourceError
            If CUDA refuses.
        """
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
        """What is launched from now on starts when the copies so far are done."""
        self._wait(self._device, self._stream, _DEFAULT)

    def copies_wait(self) -> None:
        """Copies from now on start when what was launched so far is done."""
        self._wait(self._device, _DEFAULT, self._stream)

    def finish(self) -> None:
        """Stop the host until all copies are done."""
        self._device.sync(self._stream)


@cache
def _library() -> Any:
    """CUDA's runtime, which TVM has loaded already: the same one is found by its name."""
    for name in _RUNTIMES:
        with suppress(OSError):
            return ctypes.CDLL(name)
    raise ResourceError(
        f"CUDA: none of {', '.join(_RUNTIMES)} is found to copy batches with: add the folder of "
        "TVM's CUDA runtime to LD_LIBRARY_PATH"
    )
