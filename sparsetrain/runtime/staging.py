# SPDX-License-Identifier: Apache-2.0
"""Arrays on their way to the device while it computes.

A ring of slots, each with pinned host memory and as much device memory. Arrays are written into the
pinned memory and cross on a stream of their own. A slot is taken by whoever prepares (`send`, which
waits for a free one), read by whoever computes (`use`), and given back (`release`) after the
launches that read it: copies into it wait, on the device, for those launches. So nothing is
overwritten that is still read, however long the ring is.

Cost: one copy on the host, into pinned memory; without pinned memory CUDA's driver would make it.
Blocks grow to the largest batch seen.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tvm

from sparsetrain.runtime.streams import CopyStream
from sparsetrain.runtime.tensors import NDArray, empty, view

SLOTS = 3
_PINNED = 3  # memory of the host that a device may read, in DLPack


class Block(NamedTuple):
    """Bytes of pinned host memory, and as many of device memory."""

    host: NDArray
    device: NDArray

    @property
    def size(self) -> int:
        """Bytes of each."""
        return int(self.host.shape[0])


class Slot:
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
            block = self._blocks[name] = Block(
                empty(room, "uint8", f"{name!r} in pinned memory", pinned),
                empty(room, "uint8", repr(name), tvm.cuda()),
            )
        return block


class Staged:
    """Arrays that were sent, as tensors on the device by name; valid until released."""

    def __init__(self, slot: Slot, tensors: dict[str, NDArray]) -> None:
        self.slot, self.tensors = slot, tensors


class Stage:
    """The ring.

    Parameters
    ----------
    slots : int
        Batches at once: one that is computed on, one on its way, one that is being prepared.
    """

    def __init__(self, slots: int = SLOTS) -> None:
        self._stream = CopyStream()
        self._free: queue.SimpleQueue[Slot | None] = queue.SimpleQueue()
        for _ in range(slots):
            self._free.put(Slot())

    def send(self, arrays: Mapping[str, np.ndarray]) -> Staged | None:
        """Begin to copy arrays; waits for a slot, not for the copy.

        Parameters
        ----------
        arrays : mapping of str to array
            Checked already; of the dtypes that kernels want.

        Returns
        -------
        Staged or None
            None once the ring is closed.

        Raises
        ------
        ResourceError
            If there is no memory for a slot.
        """
        slot = self._free.get()
        if slot is None:
            self._free.put(None)  # for whoever else waits
            return None
        try:
            return self._send(slot, arrays)
        except BaseException:
            self._free.put(slot)
            raise

    def _send(self, slot: Slot, arrays: Mapping[str, np.ndarray]) -> Staged:
        tensors = {}
        for name, array in arrays.items():
            host, device = slot.block(name, array.nbytes)
            np.from_dlpack(host)[: array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
            tensors[name] = view(device, array.shape, str(array.dtype))
            if array.nbytes:
                self._stream.copy_(device, host, array.nbytes)
        return Staged(slot, tensors)

    def use(self, staged: Staged) -> dict[str, NDArray]:
        """The tensors, for what is launched from now on."""
        self._stream.compute_waits()
        return staged.tensors

    def release(self, staged: Staged) -> None:
        """Give the slot back; the last launch that reads it was made, and its loss was read."""
        self._stream.copies_wait()
        self._free.put(staged.slot)

    def close(self) -> None:
        """Send nothing more; wake whoever waits for a slot."""
        self._free.put(None)

    def finish(self) -> None:
        """Wait for copies on their way, before the memory that they read goes."""
        self._stream.finish()
