# SPDX-License-Identifier: Apache-2.0
"""Hand-written CPU kernel for the softmax and log-softmax of rows.

A row is copied to a local array and padded with -inf to a whole number of vectors. Its maximum,
exponentials and sum are computed a vector at a time, whereas TVM's kernel is a chain of dependent
operations. Rows run in parallel. Invariant: elements are summed per lane, and then the lanes in
pairs, for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, reduce
from operator import add
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T
from tvm.target import Target

from sparsetrain.backend import current
from sparsetrain.compiler.schedule.register_tile import vector_unit
from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.kernels.relax_op import call_kernel

_DTYPES = ("float32", "float64")
# Rows that are longer, or of symbolic length, are left to the schedule rules.
_LONGEST = 8192


def _legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    tensor = call.args[0].ty
    make = current().kernel("softmax", softmax_kernel)
    if make is None or not _fits(tensor, int(call.attrs.axis)):
        return call.op.get_attr("FLegalize")(builder, call)
    dtype, length = str(tensor.dtype), int(tensor.shape[-1])
    lanes = vector_unit(Target.current()).lanes(dtype)
    name = call.op.name.rpartition(".")[-1]
    made = make(tensor.ndim, length, dtype, lanes, name == "log_softmax")
    return call_kernel(builder, made, name, list(call.args), tensor)


LEGALIZE = dict.fromkeys(("relax.nn.softmax", "relax.nn.log_softmax"), _legalized)


def _fits(tensor: relax.TensorType, axis: int) -> bool:
    if tensor.shape is None or str(tensor.dtype) not in _DTYPES:
        return False
    length = tensor.shape[-1]
    is_last = axis in (-1, tensor.ndim - 1)
    return is_last and isinstance(length, tirx.IntImm) and 1 <= int(length) <= _LONGEST


@cache
def softmax_kernel(
    rank: int, length: int, dtype: str, lanes: int, logarithm: bool
) -> tirx.PrimFunc:
    """Return ``kernel(x, out)`` for tensors with `rank` axes; the last axis has `length` elements.

    Parameters
    ----------
    rank, length : int
        Numbers of 1 or more.
    dtype : str
        A floating-point type.
    lanes : int
        Numbers per vector.
    logarithm : bool
        Whether to write ``x - max - log(sum(exp(x - max)))``.
    """
    with kernel("softmax") as built:
        shape = (*extents(rank - 1), wide(length))
        rows = reduce(lambda a, b: a * b, shape[:-1], wide(1))
        given = [buffer(name, shape, dtype) for name in ("x", "out")]
        x, out = (T.decl_buffer((rows, length), dtype, data=array.data) for array in given)
        with T.parallel(wide(0), rows) as row:
            _write_row(_Row(length, lanes, dtype), x, out, row, logarithm)
    return built.get()


def wide(value: int) -> Any:
    """Return an int64 constant, the dtype of extents and indices."""
    return tirx.const(value, "int64")


class _Row:
    """A local copy of a row, padded to a whole number of vectors."""

    def __init__(self, length: int, lanes: int, dtype: str) -> None:
        self.whole, self.rest = divmod(length, lanes)
        self.lanes, self.dtype = lanes, dtype
        self.vectors = self.whole + bool(self.rest)
        self._numbers = T.alloc_buffer((self.vectors * lanes,), dtype)

    def read(self, x: Any, row: Any) -> None:
        """Copy a row of `x`, padded with -inf."""
        self._whole_vectors(lambda n: self._put(n, x[row, n]))
        for lane in range(self.lanes if self.rest else 0):
            n = wide(self.whole * self.lanes + lane)
            lowest = tirx.const(float("-inf"), self.dtype)
            self._put(n, x[row, n] if lane < self.rest else lowest)

    def write(self, out: Any, row: Any) -> None:
        """Copy the local row to a row of `out`."""
        self._whole_vectors(lambda n: T.buffer_store(out, self._numbers[n], [row, n]))
        for lane in range(self.rest):
            n = wide(self.whole * self.lanes + lane)
            T.buffer_store(out, self._numbers[n], [row, n])

    def replace(self, by: Callable[[Any], Any]) -> None:
        """Replace every number n by `by(n)`."""
        self._each(self.vectors, lambda n: self._put(n, by(self._numbers[n])))

    def total(self, combine: Callable[[Any, Any], Any], of: Callable[[Any], Any]) -> Any:
        """Combine `of(n)` for all numbers n: first in each lane, then the lanes in pairs."""
        lanes = T.alloc_buffer((self.lanes,), self.dtype)
        with self._vector() as lane:
            T.buffer_store(lanes, of(self._numbers[lane]), [lane])
        with (
            T.serial(wide(1), wide(self.vectors)) as v,
            self._vector() as lane,
        ):
            value = of(self._numbers[v * self.lanes + lane])
            T.buffer_store(lanes, combine(lanes[lane], value), [lane])
        parts = [lanes[wide(n)] for n in range(self.lanes)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [combine(a, b) for a, b in zip(parts[:half], parts[half:], strict=True)]
        result = T.alloc_buffer((1,), self.dtype)
        T.buffer_store(result, parts[0], [wide(0)])
        return result[wide(0)]

    def _vector(self) -> Any:
        return T.vectorized(wide(0), wide(self.lanes))

    def _put(self, n: Any, value: Any) -> None:
        T.buffer_store(self._numbers, value, [n])

    def _whole_vectors(self, step: Callable[[Any], None]) -> None:
        self._each(self.whole, step)

    def _each(self, vectors: int, step: Callable[[Any], None]) -> None:
        with T.serial(wide(0), wide(vectors)) as v, self._vector() as lane:
            step(v * self.lanes + lane)


def _write_row(local: _Row, x: Any, out: Any, row: Any, logarithm: bool) -> None:
    local.read(x, row)
    largest = local.total(tirx.max, lambda value: value)
    if logarithm:
        local.replace(lambda value: value - largest)
        total = tirx.log(local.total(add, tirx.exp))
        local.replace(lambda value: value - total)
    else:
        local.replace(lambda value: tirx.exp(value - largest))
        total = local.total(add, lambda value: value)
        local.replace(lambda value: value / total)
    local.write(out, row)
