# SPDX-License-Identifier: Apache-2.0
"""One argument of a compiled function: check an array and copy it into aligned memory.

A TVM tensor in C order and aligned memory is used without a copy. Other tensors are copied if the
program only reads them, and refused if it may write them. Cost: one pass over the ids.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from sparsetrain import runtime
from sparsetrain.errors import DataError
from sparsetrain.runtime.tensors import HOST, is_aligned


class Argument:
    """One argument: the dtype, shape and layout that an array must have.

    Parameters
    ----------
    name : str
    ty : relax.TensorType
        Each extent is a number, or a symbol that has one value throughout the function.
    device : Device
        Where the program runs.
    """

    def __init__(self, name: str, ty: relax.TensorType, device: tvm.runtime.Device) -> None:
        self.device = device
        shape = getattr(ty, "shape", None)  # only a tensor has one
        self.name, self.dtype = name, str(getattr(ty, "dtype", ""))
        self.shape = None if shape is None else tuple(_extent(n) for n in shape)
        self.rows: int | None = None  # upper bound of the ids, if the argument holds ids
        self.symbols = [(n, s) for n, s in enumerate(self.shape or ()) if isinstance(s, str)]

    def tensor(self, value: Any, checked: bool = False) -> runtime.NDArray:
        """Return `value` in aligned memory; unless `checked`, check that ids are in the table."""
        tensor = self._read(value) if isinstance(value, runtime.NDArray) else self._copied(value)
        if self.rows is not None and not checked:
            _check_ids(runtime.as_numpy(tensor), self.name, self.rows)
        return tensor

    def _read(self, tensor: runtime.NDArray) -> runtime.NDArray:
        """Return the tensor, or a copy if it is not laid out as kernels expect."""
        self._require_fit(tensor)
        return tensor if is_aligned(tensor) else self._copied(runtime.as_numpy(tensor))

    def require(self, tensor: runtime.NDArray) -> runtime.NDArray:
        """Return the tensor itself, never a copy, because the program may write it.

        Raises
        ------
        DataError
            If the tensor has the wrong dtype, shape or layout, or is on the wrong device.
        """
        self._require_fit(tensor)
        if not is_aligned(tensor):
            raise DataError(
                f"argument {self.name!r} is a tensor with strides, an offset, or memory that is "
                "not aligned to 64 bytes: pass a copy"
            )
        return tensor

    def _require_fit(self, tensor: runtime.NDArray) -> None:
        shape = tensor.shape
        fits = self.shape is None or self._fits(shape)
        if not fits or str(tensor.dtype) != self.dtype:
            raise DataError(
                f"argument {self.name!r} must be a tensor {self.dtype} ({self._extents()}), "
                f"not {tensor.dtype} {tuple(shape)}"
            )
        if tensor.device not in (HOST, self.device):
            raise DataError(
                f"argument {self.name!r} is on {tensor.device}, the program on {self.device}"
            )

    def _extents(self) -> str:
        return ", ".join(map(str, self.shape or ("any",)))

    def _copied(self, value: Any) -> runtime.NDArray:
        if (
            self.shape is None
        ):  # unknown until the program runs; a match_cast in the function checks it
            return runtime.as_tensor(value, self.dtype)
        try:
            array = np.asarray(value)
            if self._fits(array.shape):
                return runtime.as_tensor(array, self.dtype)
        except ValueError as error:  # NumPy's error for ragged lists, DataError for wrong values
            raise DataError(f"argument {self.name!r}: {error}") from None
        raise DataError(
            f"argument {self.name!r} must have shape ({self._extents()}), not {array.shape}"
        )

    def _fits(self, shape: tuple[int, ...]) -> bool:
        wanted = self.shape or ()
        return len(wanted) == len(shape) and all(
            w == n or isinstance(w, str) for w, n in zip(wanted, shape, strict=True)
        )


def _extent(extent: Any) -> int | str:
    return int(extent) if isinstance(extent, tvm.tirx.IntImm) else str(extent)


def _check_ids(ids: np.ndarray, name: str, rows: int) -> None:
    # As unsigned integers, negative ids become huge, so one comparison checks both bounds.
    if ids.size and ids.view(ids.dtype.str.replace("i", "u")).max() >= rows:
        place = tuple(int(i) for i in np.argwhere((ids < 0) | (ids >= rows))[0])
        raise DataError(
            f"argument {name!r}: id {int(ids[place])} at {place} is outside the table's {rows} rows"
        )
