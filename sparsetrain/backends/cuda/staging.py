# SPDX-License-Identifier: Apache-2.0
"""Ring of staging buffers, which copies arrays to the GPU while it computes.

Each slot of the ring has pinned host memory and as much device memory. Arrays are written into the
pinned memory and copied to the device on a separate stream. The thread that prepares batches calls
`take`, which waits for a free slot, and then `send`. The training thread calls `use`, and `release`
after it has launched the kernels that read the slot. On the device, later copies into the slot wait
for these kernels, so no memory is overwritten while it is read.

Cost: one copy on the host, into pinned memory, which CUDA's driver would make anyway. Arrays that
are computed in a slot (`StagingSlot.room`) are not copied on the host.
"""

from __future__ import annotations

import ctypes
import queue
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
import tvm

from sparsetrain.backends.cuda.streams import CopyStream
from sparsetrain.runtime.tensors import NDArray, empty, view_as

SLOTS = 3  # for the batches being computed, transferred and prepared
_PINNED = 3  # DLPack's number for pinned host memory


class Block(NamedTuple):
    """Pinned host memory, its view for CPU kernels, and device memory of the same size."""

    host: NDArray
    writable: NDArray
    device: NDArray

    @property
    def size(self) -> int:
        """Size in bytes of the host memory, and of the device memory."""
        return int(self.host.shape[0])


class StagingSlot:
    """Memory for one batch: a block for each array, as large as the largest array so far."""

    def __init__(self) -> None:
        self._blocks: dict[str, Block] = {}

    def block(self, name: str, size: int) -> Block:
        """Return the block for an array of `size` bytes; its previous content is lost."""
        block = self._blocks.get(name)
        if block is None or block.size < size:
            room = (max(1, size + size // 4),)
            pinned = type(tvm.cuda())(_PINNED, 0)
            host = empty(room, "uint8", f"{name!r} in pinned memory", pinned)
            device = empty(room, "uint8", repr(name), tvm.cuda())
            block = self._blocks[name] = Block(host, _as_cpu_tensor(host), device)
        return block

    def room(self, name: str, shape: tuple[int, ...], dtype: str) -> NDArray:
        """Return pinned memory as a CPU tensor, in which to compute an array that will be sent."""
        size = prod(shape) * np.dtype(dtype).itemsize
        return view_as(self.block(name, size).writable, shape, dtype)


def _as_cpu_tensor(pinned: NDArray) -> NDArray:
    """View pinned memory as a CPU tensor, although DLPack refuses this; keep `pinned` alive."""
    memory: Any = (ctypes.c_uint8 * int(pinned.shape[0])).from_address(pinned.data_ptr())
    memory.owner = pinned
    return tvm.runtime.from_dlpack(np.ctypeslib.as_array(memory))


class StagedBatch(NamedTuple):
    """The device tensors of the arrays sent for a batch; valid until the slot is released."""

    slot: StagingSlot
    tensors: dict[str, NDArray]


class StagingRing:
    """The ring of `slots` slots, with the stream that copies arrays into them."""

    def __init__(self, slots: int = SLOTS) -> None:
        self._stream = CopyStream()
        self._free: queue.SimpleQueue[StagingSlot | None] = queue.SimpleQueue()
        for _ in range(slots):
            self._free.put(StagingSlot())

    def take(self) -> StagingSlot | None:
        """Wait for a free slot; return None once the ring is closed."""
        slot = self._free.get()
        if slot is None:
            self._free.put(None)  # wakes the next waiting thread
        return slot

    def drop(self, slot: StagingSlot) -> None:
        """Return an unused slot to the ring."""
        self._free.put(slot)

    def send(self, slot: StagingSlot, arrays: Mapping[str, np.ndarray]) -> StagedBatch:
        """Start copying checked arrays to the device, through a slot from `take`.

        Arrays in the slot's `room` are not copied on the host. Raise `ResourceError` if there is no
        memory for the slot.
        """
        tensors = {}
        for name, array in arrays.items():
            block = slot.block(name, array.nbytes)
            if array.ctypes.data != block.host.data_ptr():
                there = np.from_dlpack(block.host)[: array.nbytes]
                there.view(array.dtype).reshape(array.shape)[...] = array
            tensors[name] = view_as(block.device, array.shape, str(array.dtype))
            if array.nbytes:
                self._stream.copy_(block.device, block.host, array.nbytes)
        return StagedBatch(slot, tensors)

    def use(self, staged: StagedBatch) -> dict[str, NDArray]:
        """Return the device tensors; kernels launched from now on wait for their copies."""
        self._stream.compute_waits()
        return staged.tensors

    def release(self, staged: StagedBatch) -> None:
        """Release the slot; call this after launching the last kernel that reads it."""
        self._stream.copies_wait()
        self._free.put(staged.slot)

    def close(self) -> None:
        """Close the ring, and wake threads that wait for a slot."""
        self._free.put(None)

    def finish(self) -> None:
        """Wait for copies in progress; call this before freeing the ring's memory."""
        self._stream.finish()
