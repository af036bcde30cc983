# SPDX-License-Identifier: Apache-2.0
"""Tensors: made, copied, viewed, moved.

Invariant: user memory reaches a kernel through `as_tensor` only. Generated code assumes 64-byte
alignment and C order and checks neither, so the gate copies; a copy of a batch costs microseconds.
"""

from __future__ import annotations

import copyreg
import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from math import prod
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi

from sparsetrain.errors import DataError, ResourceError
from sparsetrain.runtime import gpu
from sparsetrain.runtime.host import host_target
from sparsetrain.system.memory import LARGE, aligned_empty

NDArray: TypeAlias = tvm.runtime.Tensor
HOST = tvm.cpu()
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)  # NumPy's protocols do not know it: it travels as uint16


def on_gpu(tensor: NDArray) -> bool:
    """Whether a tensor lies in the memory of a CUDA device."""
    return bool(tensor.__dlpack_device__()[0] == gpu.DEVICE_TYPE)


def target_of(tensor: NDArray) -> tvm.target.Target:
    """What to compile a kernel for that works on a tensor."""
    return gpu.target() if on_gpu(tensor) else host_target()


def as_tensor(array: Any, dtype: str | None = None) -> NDArray:
    """Copy anything NumPy understands into aligned, contiguous memory of TVM's.

    A `tvm.runtime.Tensor` of the right dtype is returned as it is.

    Parameters
    ----------
    array : array_like
        Any shape, strides, alignment, byte order; may be read-only.
    dtype : str, optional
        Wanted dtype; by default the array's own, in native byte order.

    Raises
    ------
    DataError
        If a conversion would lose integers or the dtype is no number.
    """
    if isinstance(array, tvm.runtime.Tensor):
        if dtype is None or str(array.dtype) == dtype:
            return array
        array = as_numpy(array)
    source = np.asarray(array)
    wanted = np.dtype(dtype) if dtype else source.dtype.newbyteorder("=")
    if source.dtype.kind not in "biuf" and source.dtype != BFLOAT16:
        raise DataError(f"an array of dtype {source.dtype} is no array of numbers")
    if wanted.kind in "iu" and not _fits(source, wanted):
        raise DataError(f"values of dtype {source.dtype} do not fit {wanted} without loss")
    tensor = empty(source.shape, wanted.name)
    as_numpy(tensor, writable=True)[...] = source
    return tensor


def is_aligned(tensor: NDArray) -> bool:
    """Whether a tensor is laid out as kernels take for granted: C order, aligned, no offset."""
    offset = ctypes.c_uint64.from_address(tensor.__chandle__() + _BYTE_OFFSET).value
    return bool(tensor.is_contiguous() and not offset and tensor.data_ptr() % 64 == 0)


_BYTE_OFFSET = 24 + 40  # TVM's head of an object, then the fields of a DLTensor before that one


def _fits(source: np.ndarray, wanted: np.dtype) -> bool:
    if source.dtype == wanted or source.size == 0:
        return True
    if source.dtype.kind == "f":
        return False
    limits = np.iinfo(wanted)
    return bool(source.min() >= limits.min and source.max() <= limits.max)


def as_numpy(tensor: NDArray, *, writable: bool = False) -> np.ndarray:
    """View a tensor in host memory as a NumPy array; one on a device is copied.

    Writing into a copy would be lost, so only tensors in host memory can be had `writable`; see
    `copy_`.
    """
    if on_gpu(tensor):
        assert not writable, "a tensor on a device has no writable view"
        return _read(tensor)
    try:
        view_as = np.from_dlpack(tensor)
    except (BufferError, RuntimeError):  # not asked first: a step calls this many times
        if tensor.dtype != "bfloat16":
            raise
        view_as = np.from_dlpack(tensor._create_view(tensor.shape, "uint16")).view(BFLOAT16)
    if not writable:
        view_as.flags.writeable = False
    return view_as


def _read(tensor: NDArray) -> np.ndarray:
    """A copy of a tensor on a device, which is waited for.

    What `tvm.runtime.Tensor.numpy` does, without finding out each time what the dtype is; a step
    reads three tensors of a few numbers.
    """
    array = np.empty(tensor.shape, _dtype_of(tensor.dtype))
    _copy_to_bytes(tensor, ctypes.c_void_p(array.__array_interface__["data"][0]), array.nbytes)
    return array


@cache
def _dtype_of(dtype: str) -> np.dtype:
    return np.dtype(dtype)  # ml_dtypes, once imported, has told NumPy "bfloat16"


_copy_to_bytes = tvm.get_global_func("runtime.TVMTensorCopyToBytes")


def _as_copied(tensor: NDArray) -> tuple[Any, ...]:
    """What is pickled and deeply copied in place of a tensor; what it becomes lies on the host."""
    return as_tensor, (as_numpy(tensor),)


# TVM's own way gives a tensor without memory, and whoever reads it ends the process.
copyreg.pickle(tvm.runtime.Tensor, _as_copied)


def empty(
    shape: tuple[int, ...],
    dtype: str,
    what: str = "an array",
    device: tvm.runtime.Device | None = None,
) -> NDArray:
    """Allocate uninitialised memory; out of memory names `what` and the bytes."""
    kind, of_one = _known(dtype)
    size = prod(map(int, shape)) * of_one
    try:
        if device is None and size >= LARGE:
            return _from_bytes(aligned_empty(size), dtype)._create_view(as_shape(shape))
        return _allocate(as_shape(shape), kind, HOST if device is None else device, None)
    except Exception as error:  # TVM reports std::bad_alloc, or CUDA's word, as an InternalError
        where = "" if device is None else f" on {device}"
        raise ResourceError(
            f"no memory{where} for {what}: shape {shape} {dtype} needs {size / 2**30:.2f} GiB"
        ) from error


# What `tvm.runtime.empty` calls when it has found out what it was given, which takes longer.
_allocate = tvm.get_global_func("runtime.TVMTensorAllocWithScope")


@cache
def _known(dtype: str) -> tuple[Any, int]:
    """TVM's form of a dtype, and the bytes of an element."""
    return tvm_ffi.dtype(dtype), np.dtype(dtype).itemsize


def _from_bytes(memory: np.ndarray, dtype: str) -> NDArray:
    """Aligned bytes as a vector of some dtype."""
    if dtype == "bfloat16":
        numbers = tvm.runtime.from_dlpack(memory.view(np.uint16))
        return numbers._create_view(numbers.shape, dtype)
    return tvm.runtime.from_dlpack(memory.view(dtype))


# Few are kept: what outlives the large blocks around it keeps the heap from joining them.
@lru_cache(maxsize=16)
def as_shape(shape: tuple[int, ...]) -> tvm_ffi.Shape:
    """TVM's form of a shape; to make one takes longer than to allocate."""
    return tvm_ffi.Shape(tuple(map(int, shape)))


def reshape_view(tensor: NDArray, shape: tuple[int, ...]) -> NDArray:
    """The elements of a contiguous tensor in another shape; the memory is shared."""
    return tensor._create_view(as_shape(shape), tensor.dtype)


def zeros(shape: tuple[int, ...], dtype: str, what: str = "an array") -> NDArray:
    """Allocate memory filled with zeros, without a second copy of it."""
    tensor = empty(shape, dtype, what)
    as_numpy(tensor, writable=True)[...] = 0
    return tensor


def to_device(tensor: NDArray, device: tvm.runtime.Device, what: str = "an array") -> NDArray:
    """The tensor on a device: itself if it is there, else a copy; `what` as in `empty`."""
    if tensor.device == device:
        return tensor
    there = empty(tuple(map(int, tensor.shape)), str(tensor.dtype), what, device)
    return tensor.copyto(there)


def copy_(target: NDArray, source: NDArray) -> None:
    """Write the elements of `source` into `target`, wherever either lies."""
    source.copyto(target)


@contextmanager
def editable_numpy(tensor: NDArray) -> Iterator[np.ndarray]:
    """The elements to read and write, wherever they lie; on a device, when the block is over."""
    host = to_device(tensor, tvm.cpu())
    yield as_numpy(host, writable=True)
    if host is not tensor:
        copy_(tensor, host)


def leading_rows(tensor: NDArray, rows: int) -> NDArray:
    """View the first `rows` rows of a contiguous tensor; the memory is shared."""
    return reshape_view(tensor, (rows, *tensor.shape[1:]))


def view_as(block: NDArray, shape: tuple[int, ...], dtype: str) -> NDArray:
    """The first bytes of a block as a tensor; the memory is shared."""
    return block._create_view(as_shape(shape), dtype)
