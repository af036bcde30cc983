# SPDX-License-Identifier: Apache-2.0
"""One array as one `.npy` file: C order, little-endian, header padded to 64 bytes.

Any NumPy reads these files. We read them without interpreting their header: the manifest says what
dtype and shape it must state, and it must state them byte for byte as we write them. The data
starts on a multiple of 64 bytes, so a mapped file has the alignment that compiled kernels need.
Memory is one block of 16 MiB, for writing as for checking.
"""

import zlib
from collections.abc import Iterator
from math import prod
from typing import IO

import numpy as np

# By the names NumPy gives them; nothing that could hold an object or a pointer.
DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    + ("float16", "float32", "float64")
}
_BLOCK = 16 << 20


def header_of(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the header of format 1.0 for an array of `dtype`, a key of `DTYPES`."""
    stated = {"descr": DTYPES[dtype].str, "fortran_order": False, "shape": shape}
    text = repr(stated).encode("latin1")
    padding = -(len(text) + 11) % 64
    length = (len(text) + padding + 1).to_bytes(2, "little")
    return b"\x93NUMPY\x01\x00" + length + text + b" " * padding + b"\n"


def file_size(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of the file that holds such an array."""
    return len(header_of(dtype, shape)) + prod(shape) * DTYPES[dtype].itemsize


def write_array(file: IO[bytes], array: np.ndarray) -> int:
    """Write `array`, of any layout and byte order, and return the file's CRC-32."""
    crc = 0
    for block in _file_blocks(array):
        file.write(block)
        crc = zlib.crc32(block, crc)
    return crc


def read_array(file: IO[bytes], dtype: str, out: np.ndarray) -> int:
    """Fill `out` from a file whose size must be right already, and return the file's CRC-32.

    Parameters
    ----------
    file : binary file
    dtype : str
        What the manifest states; `out` has it, in any byte order.
    out : ndarray
        Of the shape that the manifest states; what lies in one run is read without a copy.

    Raises
    ------
    ValueError
        If the header is not that of `dtype` and `out`.
    """
    crc = _check_header(file, dtype, out.shape)
    if out.flags.c_contiguous and out.dtype == DTYPES[dtype]:
        return _read_into(file, out, crc)
    rows, plain = np.atleast_1d(out), np.dtype(DTYPES[dtype])
    step = _rows_of_a_block(rows)
    for start in range(0, len(rows) if rows.size else 0, step):
        block = np.empty(rows[start : start + step].shape, plain)
        crc = _read_into(file, block, crc)
        rows[start : start + step] = block
    return crc


def _read_into(file: IO[bytes], out: np.ndarray, crc: int) -> int:
    data = out.reshape(-1).view(np.uint8).data
    for start in range(0, data.nbytes, _BLOCK):
        block = data[start : start + _BLOCK]
        if file.readinto(block) != len(block):  # type: ignore[attr-defined]
            raise ValueError("the file was cut off while it was read")
        crc = zlib.crc32(block, crc)
    return crc


def map_array(file: IO[bytes], dtype: str, shape: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """Return the array as a read-only map of the file, and the file's CRC-32."""
    crc = _check_header(file, dtype, shape)
    while block := file.read(_BLOCK):
        crc = zlib.crc32(block, crc)
    if not prod(shape):
        return np.empty(shape, DTYPES[dtype]), crc  # nothing cannot be mapped
    offset = len(header_of(dtype, shape))
    return np.memmap(file, DTYPES[dtype], "r", offset, shape), crc


def _check_header(file: IO[bytes], dtype: str, shape: tuple[int, ...]) -> int:
    expected = header_of(dtype, shape)
    if file.read(len(expected)) != expected:
        raise ValueError(f"the header is not that of {dtype} {shape}")
    return zlib.crc32(expected)


def _file_blocks(array: np.ndarray) -> Iterator[bytes | memoryview]:
    name = array.dtype.name
    yield header_of(name, array.shape)
    rows = np.atleast_1d(array)
    step = _rows_of_a_block(rows)
    for start in range(0, len(rows) if rows.size else 0, step):
        block = np.ascontiguousarray(rows[start : start + step], DTYPES[name])
        yield block.reshape(-1).view(np.uint8).data


def _rows_of_a_block(rows: np.ndarray) -> int:
    return max(1, _BLOCK * len(rows) // max(1, rows.nbytes))
