# SPDX-License-Identifier: Apache-2.0
"""Vectors of binned numbers as a Relax operator; `numbers.Binned` has the formula.

The features of a number are 1 for all bins below its own and 0 for all above, so a product with the
weights is a lookup in a table of running sums, and a line within the bin. Cost: B N D
multiplications and N T D additions, where a product of the features takes 2 B N T D of each.

A task is one number, for all rows: its tables fit into the first-level cache, and each gradient has
one writer that adds the rows in order, so the bits do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from math import sqrt
from typing import Any, NamedTuple

from tvm import relax, tirx
from tvm.relax.frontend import nn
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.ad import defvjp
from sparsetrain.backend import current
from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.kernels.loops import HOST_LOOPS, columns
from sparsetrain.kernels.relax_op import call_kernel, define_op

LANES = 16  # rows of which the bins are searched at once

# (row, its bin or `bins` if the number is missing, its share of the bin) -> statements
Visit = Callable[[Any, Any, Any], None]


class Sizes(NamedTuple):
    """Extents of a call; N numbers of T bins and D columns, among C dense inputs."""

    inputs: int
    numbers: int
    bins: int
    width: int
    has_flags: bool
    dtype: str

    @property
    def factor(self) -> Any:
        """Factor of the shares, see `numbers.Binned`."""
        return const(1 / sqrt(self.bins), self.dtype)


class Arguments:
    """The arguments that both kernels begin with.

    Parameters
    ----------
    sizes : Sizes
    """

    def __init__(self, sizes: Sizes) -> None:
        (self.rows,) = extents(1)
        self.sizes, self._count = sizes, 0
        self.dense = self._array(self.rows, sizes.inputs)
        self.starts, self.scales, self.begins = (self.of_number(sizes.bins) for _ in range(3))
        self.weight = self.of_number(2 * sizes.bins, sizes.width)
        self.learnt = [self.of_number(sizes.width) for _ in range(1 + sizes.has_flags)]

    def _array(self, *shape: Any) -> Any:
        self._count += 1
        return buffer(f"p{self._count}", shape, self.sizes.dtype)

    def of_number(self, *shape: int) -> Any:
        """Declare an argument with an array for each number."""
        return self._array(self.sizes.numbers, *shape)

    def vectors(self) -> Any:
        """Declare an argument (B, N, D)."""
        return self._array(self.rows, self.sizes.numbers, self.sizes.width)

    def share(self, n: Any, t: Any, x: Any) -> Any:
        """Return the part of bin `t` that is below x."""
        return (x - self.starts[n, t]) * self.scales[n, t]

    def is_missing(self, b: Any, n: Any) -> Any:
        """Whether row `b` has no number `n`."""
        return self.dense[b, self.sizes.numbers + n] != const(0, self.sizes.dtype)


def _each_row(given: Arguments, n: Any, visit: Visit) -> None:
    """Visit all rows of number `n` in order, after a search for the bins of several at once."""
    sizes, rows = given.sizes, given.rows
    xs, bin_of = T.alloc_local((LANES,), sizes.dtype), T.alloc_local((LANES,), "int32")
    with T.serial(0, tirx.ceildiv(rows, LANES)) as block:
        first = T.Bind(block * LANES)
        with T.serial(0, LANES) as lane:
            T.buffer_store(xs, given.dense[tirx.min(first + lane, rows - 1), n], [lane])
        with T.vectorized(0, LANES) as lane:
            T.buffer_store(bin_of, const(0, "int32"), [lane])
        with T.serial(1, sizes.bins) as t, T.vectorized(0, LANES) as lane:
            reached = tirx.Cast("int32", xs[lane] >= given.begins[n, t])
            T.buffer_store(bin_of, bin_of[lane] + reached, [lane])
        with T.serial(0, tirx.min(rows - first, const(LANES, "int64"))) as lane:
            b, t = T.Bind(first + lane), T.Bind(tirx.Cast("int64", bin_of[lane]))
            share = T.Bind(given.share(n, t, xs[lane]))
            if sizes.has_flags:
                missing = const(sizes.bins, "int64")
                t = T.Bind(tirx.Select(given.is_missing(b, n), missing, t))
            visit(b, t, share)


@contextmanager
def _each_number(sizes: Sizes) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Loop over numbers; yields one, two tables with a row for each bin and missing, and a row."""
    with HOST_LOOPS.each(sizes.numbers) as n:
        rows = (sizes.bins + 1, sizes.width)
        yield n, *(T.alloc_buffer(shape, sizes.dtype) for shape in (rows, rows, (1, sizes.width)))


@cache
def forward_kernel(sizes: Sizes) -> PrimFunc:
    """Return the kernel that writes the vectors (B, N, D)."""
    bins, factor, zero = sizes.bins, sizes.factor, const(0, sizes.dtype)
    with kernel("binned") as built:
        given = Arguments(sizes)
        out, bias = given.vectors(), given.learnt[0]
        with _each_number(sizes) as (n, at_begin, slope, below):
            put = T.buffer_store
            columns(sizes.width, lambda c: put(below, bias[n, c], [0, c]))
            with T.serial(0, bins) as t:

                def of_bin(c: Any) -> None:
                    put(at_begin, below[0, c] + given.weight[n, bins + t, c], [t, c])
                    put(slope, given.weight[n, t, c] * factor, [t, c])
                    put(below, below[0, c] + slope[t, c], [0, c])

                columns(sizes.width, of_bin)
            if sizes.has_flags:
                columns(sizes.width, lambda c: put(at_begin, given.learnt[1][n, c], [bins, c]))
                columns(sizes.width, lambda c: put(slope, zero, [bins, c]))

            def write(b: Any, t: Any, share: Any) -> None:
                columns(
                    sizes.width,
                    lambda c: put(out, at_begin[t, c] + share * slope[t, c], [b, n, c]),
                )

            _each_row(given, n, write)
    return built.get()


@cache
def backward_kernel(sizes: Sizes) -> PrimFunc:
    """Return the kernel that writes the cotangents of the weights, the bias and missing's vectors.

    A bin's weight of the share also gets the cotangents of all rows in bins above.
    """
    bins, zero = sizes.bins, const(0, sizes.dtype)
    with kernel("binned_backward") as built:
        given = Arguments(sizes)
        cotangent, weight = given.vectors(), given.of_number(2 * bins, sizes.width)
        learnt = [given.of_number(sizes.width) for _ in given.learnt]
        with _each_number(sizes) as (n, in_bin, shared, above):
            put = T.buffer_store
            with T.serial(0, bins + 1) as t:
                columns(sizes.width, lambda c: put(in_bin, zero, [t, c]))
                columns(sizes.width, lambda c: put(shared, zero, [t, c]))
            columns(sizes.width, lambda c: put(above, zero, [0, c]))

            def add(b: Any, t: Any, share: Any) -> None:
                def to_bin(c: Any) -> None:
                    put(in_bin, in_bin[t, c] + cotangent[b, n, c], [t, c])
                    put(shared, shared[t, c] + share * cotangent[b, n, c], [t, c])

                columns(sizes.width, to_bin)

            _each_row(given, n, add)
            with T.serial(0, bins) as down:
                t = bins - 1 - down

                def of_bin(c: Any) -> None:
                    put(weight, (shared[t, c] + above[0, c]) * sizes.factor, [n, t, c])
                    put(weight, in_bin[t, c], [n, bins + t, c])
                    put(above, above[0, c] + in_bin[t, c], [0, c])

                columns(sizes.width, of_bin)
            columns(sizes.width, lambda c: put(learnt[0], above[0, c], [n, c]))
            if sizes.has_flags:
                columns(sizes.width, lambda c: put(learnt[1], in_bin[bins, c], [n, c]))
    return built.get()


def _sizes(call: Any) -> Sizes:
    dense, starts, *_ = (argument.ty for argument in call.args)
    count, bins = map(int, starts.shape)
    width, has_flags = int(call.args[_LEARNT].ty.shape[2]), len(call.args) == len(_NAMES)
    return Sizes(int(dense.shape[1]), count, bins, width, has_flags, str(dense.dtype))


def _forward(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    made = current().kernel("binned", forward_kernel)(_sizes(call))
    return call_kernel(builder, made, "binned", list(call.args), call.ty)


def _forward_type(call: Any) -> relax.Type:
    dense, weight = call.args[0].ty, call.args[_LEARNT].ty
    return relax.TensorType((dense.shape[0], weight.shape[0], weight.shape[2]), dense.dtype)


def _backward(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    *given, _ = call.args
    made = current().kernel("binned_backward", backward_kernel)(_sizes(_binned(*given)))
    outputs = [argument.ty for argument in given[_LEARNT:]]
    return call_kernel(builder, made, "binned_backward", list(call.args), outputs)


# Dense inputs (B, C); of N numbers, constants of their bins (N, T) and learnt values: weights (N, 2
# T, D), bias (N, D) and, with flags, missing (N, D) -> vectors (B, N, D).
_NAMES = ("dense", "starts", "scales", "begins", "weight", "bias", "missing")
_LEARNT = 4  # the first learnt argument
_binned = define_op("binned", _NAMES, _forward_type, _forward)
_binned_backward = define_op(
    "binned_backward",
    (*_NAMES, "cotangent"),
    lambda call: relax.TupleType([argument.ty for argument in call.args[_LEARNT:-1]]),
    _backward,
)


def _vjp(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: see `backward_kernel`."""
    parts = builder.emit(_binned_backward(*call.args, cotangent))
    learnt = len(call.args) - _LEARNT
    return [*[None] * _LEARNT, *(relax.TupleGetItem(parts, n) for n in range(learnt))]


defvjp("relax.sparsetrain.binned", _vjp)


def binned(*arguments: nn.Tensor) -> nn.Tensor:
    """The operator in `nn` models: ``dense, starts, scales, begins, weight, bias[, missing]``."""
    return nn.op.wrap_nested(_binned(*(each._expr for each in arguments)), "binned")
