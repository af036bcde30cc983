# SPDX-License-Identifier: Apache-2.0
"""Arrays of a kernel by number, so that a loop over similar arrays has one body.

Compile time hardly grows with their number. Addresses and extents are stored on the stack before
the loop, since TVM cannot choose between addresses; its simplifier would take seconds with a choice
between extents in every index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

_ADDRESS = 15  # the field of TVM's `tvm_struct_get` for a value, here an address


class ArrayTable:
    """Arrays of one dtype and number of axes; a table is made inside a kernel."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self._first = arrays[0]
        self._addresses = T.Bind(tirx.tvm_stack_alloca("tvm_ffi_any", len(arrays)))
        for n, array in enumerate(arrays):
            T.evaluate(tirx.tvm_struct_set(self._addresses, n, _ADDRESS, array.data))
        shapes = zip(*(array.shape for array in arrays), strict=True)
        self._extents = [number_table(extents) for extents in shapes]

    def __getitem__(self, number: Any) -> Any:
        """The array of a number, an Expr."""
        kind = self._first.data.ty
        memory = T.Bind(tirx.tvm_struct_get(self._addresses, number, _ADDRESS, kind))
        shape = tuple(T.Bind(extents[number]) for extents in self._extents)
        return T.decl_buffer(shape, self._first.dtype, data=memory)


def number_table(values: Sequence[Any]) -> Any:
    """Return an array of these values, int64."""
    stored = T.alloc_local((len(values),), "int64")
    for place, value in enumerate(values):
        T.buffer_store(stored, tirx.Cast("int64", tirx.convert(value)), [place])
    return stored
