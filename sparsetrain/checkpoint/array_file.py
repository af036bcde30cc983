# SPDX-License-Identifier: Apache-2.0
"""One array as one `.npy` file: C order, little-endian, header padded to 64 bytes.

Any NumPy reads these files. We read them without interpreting their header: the manifest says what
dtype and shape it must state, and it must state them byte for byte as we write them. The data
starts on a multiple of 64 bytes, so a mapped file has the alignment that compiled kernels need.
NumPy has no name for bfloat16: a file of it states, and holds, the bits as uint16.
Memory is a few blocks of 4 MiB, for writing as for checking.
"""

import zlib
from math import prod
from typing import IO

import ml_dtypes
import numpy as np

from sparsetrain.checkpoint.crc import joined
from sparsetrain.checkpoint.ranges import Bytes, Map, read_ranges, write_ranges

# By the names NumPy gives them; nothing that could hold an object or a pointer.
DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    + ("float16", "float32", "float64")
}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES[BFLOAT16.name] = BFLOAT16
_BITS = DTYPES["uint16"]


def header_of(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the header of format 1.0 for an array of `dtype`, a key of `DTYPES`."""
    stated = {"descr": _in_file(DTYPES[dtype]).str, "fortran_order": False, "shape": shape}
    text = repr(stated).encode("latin1")
    padding = -(len(text) + 11) % 64
    length = (len(text) + padding + 1).to_bytes(2, "little")
    return b"\x93NUMPY\x01\x00" + length + text + b" " * padding + b"\n"


def file_size(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of the file that holds such an array."""
    return len(header_of(dtype, shape)) + prod(shape) * DTYPES[dtype].itemsize


def write_array(file: IO[bytes], array: np.ndarray, each: Map = map) -> int:
    """Write `array`, of any layout and byte order, and return the file's CRC-32.

    Parts are written at the same time if `each` is the `map` of a pool.
    """
    name = array.dtype.name
    header = np.frombuffer(header_of(name, array.shape), np.uint8)
    array = array.view(_BITS) if array.dtype == BFLOAT16 else array
    # In one run, a slice is a view; else it is copied, and threads need an iterator each.
    run = array.reshape(-1) if array.flags.c_contiguous else None

    def fill(start: int, out: np.ndarray) -> None:
        head = header[start : start + out.size]
        out[: head.size] = head
        first = (start + head.size - header.size) // array.itemsize
        body = out[head.size :].view(_in_file(DTYPES[name]))
        body[...] = (array.flat if run is None else run)[first : first + body.size]

    return write_ranges(file, header.size + array.nbytes, fill, each)


def read_array(file: IO[bytes], dtype: str, out: np.ndarray, each: Map = map) -> int:
    """Fill `out` from a file whose size must be right already, and return the file's CRC-32.

    Parameters
    ----------
    file : binary file
    dtype : str
        What the manifest states; `out` has it, in any byte order.
    out : ndarray
        Of the shape that the manifest states; unless it lies in one run, read by way of a copy.
    each : callable
        The builtin `map`, or that of a pool.

    Raises
    ------
    ValueError
        If the header is not that of `dtype` and `out`.
    """
    if not (out.flags.c_contiguous and out.dtype == DTYPES[dtype]):
        whole = np.empty(out.shape, DTYPES[dtype])
        crc = read_array(file, dtype, whole, each)
        out[...] = whole
        return crc
    data = out.reshape(-1).view(np.uint8)
    return _read(file, dtype, out.shape, lambda start, stop: data[start:stop], each, keep=False)


def check_array(file: IO[bytes], dtype: str, shape: tuple[int, ...], each: Map = map) -> int:
    """Read a file and return its CRC-32; see `read_array`, which keeps what it reads."""
    return _read(file, dtype, shape, _spare, each, keep=False)


def map_array(file: IO[bytes], dtype: str, shape: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """Return the array as a read-only map of the file, and the file's CRC-32."""
    crc = _read(file, dtype, shape, _spare, map, keep=True)
    if not prod(shape):
        return np.empty(shape, DTYPES[dtype]), crc  # nothing cannot be mapped
    offset = len(header_of(dtype, shape))
    return np.memmap(file, DTYPES[dtype], "r", offset, shape), crc


def _spare(start: int, stop: int) -> np.ndarray:
    """Memory for bytes that nobody keeps."""
    return np.empty(stop - start, np.uint8)


def _in_file(dtype: np.dtype) -> np.dtype:
    """What a file of some dtype says that it holds."""
    return _BITS if dtype == BFLOAT16 else dtype


def _read(
    file: IO[bytes], dtype: str, shape: tuple[int, ...], data: Bytes, each: Map, *, keep: bool
) -> int:
    """Read a whole file, the data into `data`, which counts from behind the header."""
    expected = header_of(dtype, shape)
    first, size = len(expected), file_size(dtype, shape)
    if file.read(first) != expected:
        raise ValueError(f"the header is not that of {dtype} {shape}")

    def memory(start: int, stop: int) -> np.ndarray:
        return data(start - first, stop - first)

    crc = read_ranges(file, first, size, memory, each, keep=keep)
    return joined([(zlib.crc32(expected), first), (crc, size - first)])
