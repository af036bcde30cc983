# SPDX-License-Identifier: Apache-2.0
"""TVM tensors: allocation, conversion, views, copies between devices; `Kernel`, called on them.

Invariant: user memory reaches a kernel only through `as_tensor`. Generated code assumes 64-byte
alignment and C order and checks neither, so `as_tensor` copies; for a batch that costs
microseconds.
"""

from __future__ import annotations

import copyreg
import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from math import prod
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi

from sparsetrain.backend import CPU_MEMORY, PINNED_MEMORY, backend_at
from sparsetrain.errors import DataError, ResourceError
from sparsetrain.system.memory import LARGE, aligned_empty

NDArray: TypeAlias = tvm.runtime.Tensor
HOST = tvm.cpu()
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)  # unknown to DLPack in NumPy: exchanged as uint16


def on_host(tensor: NDArray) -> bool:
    """Return whether the CPU can read a tensor's memory."""
    return tensor.__dlpack_device__()[0] in (CPU_MEMORY, PINNED_MEMORY)


def target_of(tensor: NDArray) -> tvm.target.Target:
    """Return the target of kernels for a tensor's device."""
    return backend_at(tensor).target()


def as_tensor(array: Any, dtype: str | None = None) -> NDArray:
    """Copy an array into aligned, contiguous TVM memory.

    A `tvm.runtime.Tensor` of the right dtype is returned unchanged.

    Parameters
    ----------
    array : array_like
        Any shape, strides, alignment, byte order; may be read-only.
    dtype : str, optional
        By default the array's dtype, in native byte order.

    Raises
    ------
    DataError
        If the conversion would change integers, or the dtype is not numeric.
    """
    if isinstance(array, tvm.runtime.Tensor):
        if dtype is None or str(array.dtype) == dtype:
            return array
        array = as_numpy(array)
    source = np.asarray(array)
    wanted = np.dtype(dtype) if dtype else source.dtype.newbyteorder("=")
    if source.dtype.kind not in "biuf" and source.dtype != BFLOAT16:
        raise DataError(f"an array of dtype {source.dtype} is not an array of numbers")
    if wanted.kind in "iu" and not _fits(source, wanted):
        raise DataError(f"values of dtype {source.dtype} do not fit {wanted} without loss")
    tensor = empty(source.shape, _name_of(wanted))
    as_numpy(tensor, writable=True)[...] = source
    return tensor


@cache
def _name_of(dtype: np.dtype) -> str:
    return dtype.name  # cached, since the attribute is slow


def is_aligned(tensor: NDArray) -> bool:
    """Return whether a tensor has the kernels' layout: C order, 64-byte aligned, no offset."""
    offset = ctypes.c_uint64.from_address(tensor.__chandle__() + _BYTE_OFFSET).value
    return bool(tensor.is_contiguous() and not offset and tensor.data_ptr() % 64 == 0)


_BYTE_OFFSET = 24 + 40  # TVM's object header, then the fields of a DLTensor before byte_offset


def _fits(source: np.ndarray, wanted: np.dtype) -> bool:
    if source.dtype == wanted or source.size == 0:
        return True
    if source.dtype.kind == "f":
        return False
    limits = np.iinfo(wanted)
    return bool(source.min() >= limits.min and source.max() <= limits.max)


def as_numpy(tensor: NDArray, *, writable: bool = False) -> np.ndarray:
    """View a tensor in host memory as a NumPy array; copy one on a device.

    Only a view can be `writable`; see `editable_numpy`.
    """
    if not on_host(tensor):
        assert not writable, "a tensor on a device has no writable view"
        return _copy_to_host(tensor)
    try:
        view = np.from_dlpack(tensor)
    except (BufferError, RuntimeError):  # cheaper than a test of the dtype in every call
        if tensor.dtype != "bfloat16":
            raise
        view = np.from_dlpack(tensor._create_view(tensor.shape, "uint16")).view(BFLOAT16)
    if not writable:
        view.flags.writeable = False
    return view


def _copy_to_host(tensor: NDArray) -> np.ndarray:
    """Copy like `tvm.runtime.Tensor.numpy`, with the dtype cached."""
    array = np.empty(tensor.shape, _dtype_of(tensor.dtype))
    _copy_to_bytes(tensor, address_of(array), array.nbytes)
    return array


@cache
def _dtype_of(dtype: str) -> np.dtype:
    return np.dtype(dtype)  # ml_dtypes registers "bfloat16"


_copy_to_bytes = tvm.get_global_func("runtime.TVMTensorCopyToBytes")


def _reduce(tensor: NDArray) -> tuple[Any, ...]:
    """Pickle or copy a tensor by its values; the copy is in host memory."""
    return as_tensor, (as_numpy(tensor),)


# TVM's own pickling returns a tensor without memory, and reading that crashes the process.
copyreg.pickle(tvm.runtime.Tensor, _reduce)


def empty(
    shape: tuple[int, ...],
    dtype: str,
    what: str = "an array",
    device: tvm.runtime.Device | None = None,
) -> NDArray:
    """Allocate an uninitialized tensor, on the CPU by default.

    Raises
    ------
    ResourceError
        If there is no memory; the message names `what` and the bytes.
    """
    tvm_dtype, itemsize = _dtype_and_size(dtype)
    size = prod(map(int, shape)) * itemsize
    try:
        if device is None and size >= LARGE:
            return _from_bytes(aligned_empty(size), dtype)._create_view(as_shape(shape))
        return _allocate(as_shape(shape), tvm_dtype, HOST if device is None else device, None)
    except Exception as error:  # TVM reports std::bad_alloc or CUDA's error as an InternalError
        where = "" if device is None else f" on {device}"
        raise ResourceError(
            f"no memory{where} for {what}: shape {shape} {dtype} needs {size / 2**30:.2f} GiB"
        ) from error


# `tvm.runtime.empty` calls this after converting its arguments, which takes longer.
_allocate = tvm.get_global_func("runtime.TVMTensorAllocWithScope")


@cache
def _dtype_and_size(dtype: str) -> tuple[Any, int]:
    """Return TVM's form of a dtype, and the bytes of an element."""
    return tvm_ffi.dtype(dtype), np.dtype(dtype).itemsize


def _from_bytes(memory: np.ndarray, dtype: str) -> NDArray:
    """View aligned bytes as a vector."""
    if dtype == "bfloat16":
        numbers = tvm.runtime.from_dlpack(memory.view(np.uint16))
        return numbers._create_view(numbers.shape, dtype)
    return tvm.runtime.from_dlpack(memory.view(dtype))


# A small cache: long-lived objects between large blocks fragment the heap.
@lru_cache(maxsize=16)
def as_shape(shape: tuple[int, ...]) -> tvm_ffi.Shape:
    """Return TVM's form of a shape, cached: constructing one is slower than an allocation."""
    return tvm_ffi.Shape(tuple(map(int, shape)))


def reshape_view(tensor: NDArray, shape: tuple[int, ...]) -> NDArray:
    """View a contiguous tensor in a new shape; the memory is shared."""
    return tensor._create_view(as_shape(shape), tensor.dtype)


def zeros(shape: tuple[int, ...], dtype: str, what: str = "an array") -> NDArray:
    """Allocate a tensor of zeros on the CPU; `what` names it in errors."""
    tensor = empty(shape, dtype, what)
    as_numpy(tensor, writable=True)[...] = 0
    return tensor


def to_device(tensor: NDArray, device: tvm.runtime.Device, what: str = "an array") -> NDArray:
    """Return a tensor on a device: itself if already there, else a copy."""
    if tensor.device == device:
        return tensor
    copy = empty(tuple(map(int, tensor.shape)), str(tensor.dtype), what, device)
    return tensor.copyto(copy)


def copy_(target: NDArray, source: NDArray) -> None:
    """Copy the elements of `source` into `target`, on any devices."""
    source.copyto(target)


@contextmanager
def editable_numpy(tensor: NDArray) -> Iterator[np.ndarray]:
    """Yield the elements as a writable array; copy them back to their device after the block."""
    host = to_device(tensor, tvm.cpu())
    yield as_numpy(host, writable=True)
    if host is not tensor:
        copy_(tensor, host)


def leading_rows(tensor: NDArray, rows: int) -> NDArray:
    """View the first `rows` rows of a contiguous tensor; the memory is shared."""
    return reshape_view(tensor, (rows, *tensor.shape[1:]))


def tensor_at(view: np.ndarray) -> NDArray:
    """View a writable array, aligned to 64 bytes, as a tensor; the memory is shared."""
    return tvm.runtime.from_dlpack(view)


def address_of(array: np.ndarray) -> ctypes.c_void_p:
    """Return the address of an array as a kernel argument."""
    return ctypes.c_void_p(array.__array_interface__["data"][0])


def view_as(block: NDArray, shape: tuple[int, ...], dtype: str) -> NDArray:
    """View the first bytes of a block as a tensor; the memory is shared."""
    return block._create_view(as_shape(shape), dtype)


class Kernel:
    """A compiled kernel that is called outside a program; it writes its output arguments."""

    __slots__ = ("_run", "name")

    def __init__(self, run: Callable[..., Any], name: str) -> None:
        self._run, self.name = run, name

    def __call__(self, *args: Any) -> Any:
        """Run on tensors and numbers."""
        if _interceptor is None:
            return self._run(*args)
        return _interceptor(self.name, self._run, args)


# (name, kernel, arguments) -> result
Interceptor = Callable[[str, Callable[..., Any], tuple[Any, ...]], Any]
_interceptor: Interceptor | None = None


@contextmanager
def intercept_kernels(interceptor: Interceptor) -> Iterator[None]:
    """Route all kernel calls through `interceptor` during the block, for example to time them."""
    global _interceptor
    before, _interceptor = _interceptor, interceptor
    try:
        yield
    finally:
        _interceptor = before
