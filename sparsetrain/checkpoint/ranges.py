# SPDX-License-Identifier: Apache-2.0
"""Parallel reading, writing and checksums of byte ranges, which overlaps the disk with sums.

Large files go past the page cache where the system can: the cache keeps what it holds, no memory
has to be found for a second copy of the tables, and the processor does little but copy and sum a
block while it is in its cache. A file that lies in the page cache already is read from there.
Memory is a block of 4 MiB for each worker.
"""

import contextlib
import errno
import os
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np

from sparsetrain.checkpoint.crc import joined
from sparsetrain.system.memory import aligned_empty

Map = Callable[..., Iterator[Any]]  # as the builtin `map`
# Gives the memory for bytes `start` to `stop`, (stop - start,) uint8.
Bytes = Callable[[int, int], np.ndarray]

_RANGE = 32 << 20
_BLOCK = 4 << 20  # divides a range
_SECTOR = 4096  # a multiple of that of every disk
_LARGE = 16 << 20  # what is smaller is quick either way
_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux


def write_ranges(file: IO[bytes], size: int, fill: Callable[..., None], each: Map) -> int:
    """Write a file of `size` bytes and return its CRC-32.

    Parameters
    ----------
    file : binary file
        Empty; what is written is not on the disk before it is synced.
    size : int
    fill : callable
        ``fill(start, out)`` puts the bytes from `start` on into `out`, (n,) uint8; called by
        several threads at a time.
    each : callable
        The builtin `map`, or that of a pool.
    """

    def write(start: int, stop: int) -> tuple[int, int]:
        block, crc = aligned_empty(min(_BLOCK, stop - start)), 0
        for at in range(start, stop, _BLOCK):
            part = block[: stop - at]
            fill(at, part)
            crc = zlib.crc32(part.data, crc)
            _put(file.fileno(), direct, part, at)
        return crc, stop - start

    with _past_the_cache(file, os.O_WRONLY, size) as direct:
        return joined(each(write, *_ranges(0, size)))


def read_ranges(
    file: IO[bytes], start: int, stop: int, memory: Bytes, each: Map, *, keep: bool = False
) -> int:
    """Read bytes `start` to `stop` of a file into `memory` and return their CRC-32.

    With `keep` they are in the page cache afterwards.

    Raises
    ------
    ValueError
        If the file ends before.
    """

    def read(start: int, stop: int) -> tuple[int, int]:
        if direct is not None:
            with _unless_invalid():
                return _read_direct(direct, start, stop, memory), stop - start
        return _read_cached(file.fileno(), start, stop, memory), stop - start

    size = 0 if keep or _is_cached(file, stop) else stop - start
    with _past_the_cache(file, os.O_RDONLY, size) as direct:
        return joined(each(read, *_ranges(start, stop)))


def _ranges(start: int, stop: int) -> tuple[list[int], list[int]]:
    """Starts and ends; all but the first start and the last end are whole ranges."""
    inner = [*range((start // _RANGE + 1) * _RANGE, stop, _RANGE)] if start < stop else []
    return ([start, *inner], [*inner, stop]) if start < stop else ([], [])


@contextlib.contextmanager
def _past_the_cache(file: IO[bytes], access: int, size: int) -> Iterator[int | None]:
    """Open the same file once more, for whole sectors from aligned memory; None if it cannot be."""
    descriptor = None
    if _DIRECT and size >= _LARGE:
        with contextlib.suppress(OSError):  # not every file system has it
            descriptor = os.open(f"/proc/self/fd/{file.fileno()}", access | _DIRECT)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextlib.contextmanager
def _unless_invalid() -> Iterator[None]:
    """Go on behind the block if a file system that opens a file so wants other sizes after all."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def _put(cached: int, direct: int | None, part: np.ndarray, at: int) -> None:
    if direct is not None and part.size % _SECTOR == 0:
        with _unless_invalid():
            return _write(direct, part, at)
    _write(cached, part, at)


def _write(descriptor: int, part: np.ndarray, at: int) -> None:
    done = 0
    while done < part.size:
        done += os.pwrite(descriptor, part[done:].data, at + done)


def _read_direct(descriptor: int, start: int, stop: int, memory: Bytes) -> int:
    block, crc = aligned_empty(_BLOCK), 0
    for at in range(start // _SECTOR * _SECTOR, stop, _BLOCK):
        first, end = max(start - at, 0), min(stop - at, _BLOCK)
        if os.preadv(descriptor, [block.data], at) < end:
            raise OSError(errno.EINVAL, "fewer bytes than there are")
        part = block[first:end]
        crc = zlib.crc32(part.data, crc)
        memory(at + first, at + end)[...] = part
    return crc


def _read_cached(descriptor: int, start: int, stop: int, memory: Bytes) -> int:
    crc = 0
    for at in range(start, stop, _BLOCK):
        part = memory(at, min(at + _BLOCK, stop))
        done = 0
        while done < part.size:
            got = os.preadv(descriptor, [part[done:].data], at + done)
            if not got:
                raise ValueError("the file was cut off while it was read")
            done += got
        crc = zlib.crc32(part.data, crc)
    return crc


def _is_cached(file: IO[bytes], size: int) -> bool:
    """Whether the end of a file of `size` bytes can be had without the disk."""
    try:
        return bool(os.preadv(file.fileno(), [bytearray(1)], size - 1, os.RWF_NOWAIT))
    except (AttributeError, OSError):  # another system; not in the cache
        return False
