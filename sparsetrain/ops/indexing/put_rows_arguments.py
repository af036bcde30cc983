# SPDX-License-Identifier: Apache-2.0
"""Arguments of the `put_rows` kernels, and the reductions that combine old and written values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from sparsetrain.kernels.builder import buffer, extents

Element = Callable[[Any], Any]  # of a row: column -> its value

# Reduction -> what becomes of an element: (old, written) -> new.
COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": tirx.min,
    "max": tirx.max,
    "mean": lambda old, new: (old + new) / tirx.const(2, old.ty.dtype),
}


class PutRowsArguments:
    """The arguments of a kernel, in order: data unless it begins from 0, places, updates, out.

    Parameters
    ----------
    width : int
    dtype : str
    reduction : str
        A key of `COMBINE`.
    from_zero : bool
    """

    def __init__(self, width: int, dtype: str, reduction: str, from_zero: bool) -> None:
        self.batch, self.height, self.count, self._lists = extents(4)
        self._zero, self._combine = tirx.const(0, dtype), COMBINE[reduction]
        self.width = width
        shape = self.batch, self.height, width
        self._data = None if from_zero else buffer("data", shape, dtype)
        self._places = buffer("places", (self._lists, self.count), "int64")
        self._updates = buffer("updates", (self.batch, self.count, width), dtype)
        self.out = buffer("out", shape, dtype)

    def place(self, b: Any, n: Any) -> Any:
        """Where batch `b` is written to by n: of one list for all, or of its own."""
        return self._places[tirx.min(b, self._lists - 1), n]

    def before(self, b: Any, row: Any) -> Element:
        """What a row is at first."""
        data = self._data
        return (lambda _: self._zero) if data is None else lambda d: data[b, row, d]

    def after(self, b: Any, row: Any, n: Any) -> Element:
        """What a row becomes by n."""
        return lambda d: self._combine(self.out[b, row, d], self._updates[b, n, d])
