# SPDX-License-Identifier: Apache-2.0
"""Arrays on their way to the device while it computes.

A ring of slots, each with pinned host memory and as much device memory. Arrays are written into the
pinned memory and cross on a stream of their own. A slot is taken (`take` waits for a free one) and
sent by whoever prepares, read by whoever computes (`use`), and given back (`release`) after the
launches that read it: copies into it wait, on the device, for those launches. So nothing is
overwritten that is still read, however long the ring is.

Cost: one copy on the host, into pinned memory, which CUDA's driver would make without it; none of
what is computed into a slot's memory (`Slot.room`). Blocks grow to the largest batch seen.
"""

from __future__ import annotations

import ctypes
import queue
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
import tvm

from sparsetrain.runtime.streams import CopyStream
from sparsetrain.runtime.tensors import NDArray, empty, view_as

SLOTS = 3
_PINNED = 3  # memory of the host that a device may read, in DLPack


class Block(NamedTuple):
    """Bytes of pinned host memory, the same as kernels of the host take them, and of the device."""

    host: NDArray
    writable: NDArray
    device: NDArray

    @property
    def size(self) -> int:
        """Bytes of each."""
        return int(self.host.shape[0])


class StagingSlot:
    """Room for one batch: a pair of blocks for each array, which grow to the largest seen.

    A block for each, because kernels want tensors that begin where their memory does.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, Block] = {}

    def block(self, name: str, size: int) -> Block:
        """The blocks of an array of `size` bytes; what they held is lost."""
        block = self._blocks.get(name)
        if block is None or block.size < size:
            room = (max(1, size + size // 4),)
            pinned = type(tvm.cuda())(_PINNED, 0)
            host = empty(room, "uint8", f"{name!r} in pinned memory", pinned)
            device = empty(room, "uint8", repr(name), tvm.cuda())
            block = self._blocks[name] = Block(host, _of_the_host(host), device)
        return block

    def room(self, name: str, shape: tuple[int, ...], dtype: str) -> NDArray:
        """Pinned memory for an array that will be sent, as a tensor of the host."""
        size = prod(shape) * np.dtype(dtype).itemsize
        return view_as(self.block(name, size).writable, shape, dtype)


def _of_the_host(pinned: NDArray) -> NDArray:
    """The same bytes under the host's name, which DLPack would not give pinned memory.

    They are the pinned tensor's: whoever holds this holds that.
    """
    memory: Any = (ctypes.c_uint8 * int(pinned.shape[0])).from_address(pinned.data_ptr())
    memory.owner = pinned
    return tvm.runtime.from_dlpack(np.ctypeslib.as_array(memory))


class StagedBatch:
    """Arrays that were sent, as tensors on the device by name; valid until released."""

    def __init__(self, slot: StagingSlot, tensors: dict[str, NDArray]) -> None:
        self.slot, self.tensors = slot, tensors


class StagingRing:
    """The ring.

    Parameters
    ----------
    slots : int
        Batches at once: one that is computed on, one on its way, one that is being prepared.
    """

    def __init__(self, slots: int = SLOTS) -> None:
        self._stream = CopyStream()
        self._free: queue.SimpleQueue[StagingSlot | None] = queue.SimpleQueue()
        for _ in range(slots):
            self._free.put(StagingSlot())

    def take(self) -> StagingSlot | None:
        """Wait for a free slot; None once the ring is closed."""
        slot = self._free.get()
        if slot is None:
            self._free.put(None)  # for whoever else waits
        return slot

    def drop(self, slot: StagingSlot) -> None:
        """Give back a slot of which nothing was used."""
        self._free.put(slot)

    def send(self, slot: StagingSlot, arrays: Mapping[str, np.ndarray]) -> StagedBatch:
        """Begin to copy arrays; does not wait for the copy.

        Parameters
        ----------
        slot : Slot
            That was taken.
        arrays : mapping of str to array
            Checked already; of the dtypes that kernels want. Those that lie in the slot's `room`
            are not copied on the host.

        Raises
        ------
        ResourceError
            If there is no memory for the slot.
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
        """The tensors, for what is launched from now on."""
        self._stream.compute_waits()
        return staged.tensors

    def release(self, staged: StagedBatch) -> None:
        """Give the slot back; the last launch that reads it was made, and its loss was read."""
        self._stream.copies_wait()
        self._free.put(staged.slot)

    def close(self) -> None:
        """Send nothing more; wake whoever waits for a slot."""
        self._free.put(None)

    def finish(self) -> None:
        """Wait for copies on their way, before the memory that they read goes."""
        self._stream.finish()
