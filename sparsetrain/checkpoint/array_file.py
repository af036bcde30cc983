# SPDX-License-Identifier: Apache-2.0
"""One array as one `.npy` file: C order, little-endian, header padded to 64 bytes.

Any version of NumPy can read these files. We read them without parsing the header: it must equal,
byte for byte, the header that we would write for the dtype and shape in the manifest. The data
starts on a multiple of 64 bytes, so a mapped file has the alignment that compiled kernels need.
NumPy has no bfloat16, so such an array is stored as its bits in uint16. Threads read and write the
files of a large folder, and all of this work releases the GIL. Writing and checking each use a
block of 4 MiB.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import prod
from typing import IO, Any

import ml_dtypes
import numpy as np

# NumPy's name -> dtype; there is no dtype that could hold an object or a pointer.
DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    + ("float16", "float32", "float64")
}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES[BFLOAT16.name] = BFLOAT16
_BITS = DTYPES["uint16"]
_BLOCK = 4 << 20  # bytes


def header_of(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the `.npy` 1.0 header of an array with `dtype`, a key of `DTYPES`."""
    stated = {"descr": _in_file(DTYPES[dtype]).str, "fortran_order": False, "shape": shape}
    text = repr(stated).encode("latin1")
    padding = -(len(text) + 11) % 64
    length = (len(text) + padding + 1).to_bytes(2, "little")
    return b"\x93NUMPY\x01\x00" + length + text + b" " * padding + b"\n"


def file_size(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the size in bytes of the file that holds such an array."""
    return len(header_of(dtype, shape)) + prod(shape) * DTYPES[dtype].itemsize


def write_array(file: IO[bytes], array: np.ndarray) -> int:
    """Write `array`, of any layout and byte order, and return the file's CRC-32."""
    # Slices of a contiguous array are views; slices of `flat` are copies.
    run = array.reshape(-1) if array.flags.c_contiguous else array.flat
    step = _BLOCK // array.itemsize
    blocks = (run[start : start + step] for start in range(0, array.size, step))
    return write_blocks(file, array.dtype.name, array.shape, blocks)


def write_blocks(
    file: IO[bytes], dtype: str, shape: tuple[int, ...], blocks: Iterable[np.ndarray]
) -> int:
    """Write an array that is passed as consecutive `blocks`; return the file's CRC-32."""
    header, stored = header_of(dtype, shape), _in_file(DTYPES[dtype])
    file.write(header)
    crc = zlib.crc32(header)
    for block in blocks:
        bits = block.view(_BITS) if block.dtype == BFLOAT16 else block
        data = np.ascontiguousarray(bits, stored).reshape(-1).view(np.uint8).data
        file.write(data)
        crc = zlib.crc32(data, crc)
    return crc


def read_array(file: IO[bytes], dtype: str, out: np.ndarray) -> int:
    """Fill `out` from a file of the right size, and return the file's CRC-32.

    Parameters
    ----------
    file : binary file
    dtype : str
        Dtype in the manifest; `out` has the same dtype, in any byte order.
    out : ndarray
        Array of the manifest's shape; unless it is contiguous and little-endian, a buffer is used.

    Raises
    ------
    ValueError
        If the header does not match `dtype` and `out`, or the file is too short.
    """
    if not (out.flags.c_contiguous and out.dtype == DTYPES[dtype]):
        return _read(file, dtype, out.shape, _filling(np.atleast_1d(out), DTYPES[dtype]))
    data = out.reshape(-1).view(np.uint8)
    blocks = (data[start : start + _BLOCK] for start in range(0, data.size, _BLOCK))
    return _read(file, dtype, out.shape, blocks)


def _filling(out: np.ndarray, dtype: np.dtype) -> Iterator[np.ndarray]:
    """Yield blocks to read into; after a block is filled, copy it to its rows of `out`."""
    step = max(1, _BLOCK * len(out) // max(1, out.nbytes))
    spare = np.empty((min(step, len(out)), *out.shape[1:]), dtype)
    for start in range(0, len(out), step):
        block = spare[: len(out) - start]
        yield block.reshape(-1).view(np.uint8)
        out[start : start + step] = block


def check_array(
    file: IO[bytes],
    dtype: str,
    shape: tuple[int, ...],
    look: Callable[[np.ndarray], object] | None = None,
) -> int:
    """Read a file without keeping the array, and return its CRC-32.

    If given, `look` is called with the array's numbers, a block at a time.
    """
    size, spare = prod(shape) * DTYPES[dtype].itemsize, np.empty(_BLOCK, np.uint8)
    blocks = (spare[: size - start] for start in range(0, size, _BLOCK))
    return _read(file, dtype, shape, blocks, look)


def _in_file(dtype: np.dtype) -> np.dtype:
    """Return the dtype that a file's header states for an array of `dtype`."""
    return _BITS if dtype == BFLOAT16 else dtype


def _read(
    file: IO[bytes],
    dtype: str,
    shape: tuple[int, ...],
    blocks: Iterator[np.ndarray],
    look: Callable[[np.ndarray], object] | None = None,
) -> int:
    """Read a whole file, with its data into `blocks`; return its CRC-32."""
    expected = header_of(dtype, shape)
    if file.read(len(expected)) != expected:
        raise ValueError(f"the header does not match {dtype} {shape}")
    crc = zlib.crc32(expected)
    for block in blocks:
        if file.readinto(block.data) != block.size:  # type: ignore[attr-defined]
            raise ValueError("the file was cut off while it was read")
        crc = zlib.crc32(block.data, crc)
        if look is not None:
            look(block.view(DTYPES[dtype]))
    return crc


_WORKERS = 6
_SHARE = 128 << 20  # at least this many bytes per worker, to keep buffers small


@contextmanager
def in_parallel(size: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """Yield a `map` for work on `size` bytes in total, with threads if the work is large.

    Results come in order. The first error is raised, and calls that have not begun are dropped.
    """
    workers = min(_WORKERS, size // _SHARE)
    if workers < 2:
        yield map
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="sparsetrain-files") as pool:
        try:
            yield pool.map
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
