# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels for the vectors of binned numbers; `models.binned` has the operator.

Forward, a thread computes one column of a vector. Backward, a block sums one column of a bin over
the rows in it, each thread a part of the batch; then a thread adds up the bins of a column. Every
sum has a fixed order.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.backends.cuda.sparse.parts import barrier, blocks_of_threads, each_row, shared
from sparsetrain.kernels.builder import kernel
from sparsetrain.kernels.loops import Number
from sparsetrain.models.binned import Arguments, Sizes

_THREADS = 64  # few: one of them adds up the sums of all


def forward_kernel(sizes: Sizes) -> PrimFunc:
    """Return the kernel that writes the vectors (B, N, D)."""
    with kernel("binned") as built:
        given = Arguments(sizes)
        out = given.vectors()
        with each_row(given.rows * sizes.numbers, sizes.width) as (row, columns):
            b, n = (
                T.Bind(tirx.floordiv(row, sizes.numbers)),
                T.Bind(tirx.floormod(row, sizes.numbers)),
            )
            columns(lambda c: _write(given, out, (b, n, c)))
    return built.get()


def _write(given: Arguments, out: Any, place: Any) -> None:
    """Write one column of a vector."""
    (b, n, c), sizes = place, given.sizes
    x, bin_of, value = T.Bind(given.dense[b, n]), Number("int64"), Number(sizes.dtype)
    with T.serial(1, sizes.bins) as t:
        bin_of.add(tirx.Cast("int64", x >= given.begins[n, t]))
    last = T.Bind(bin_of.now)
    with T.serial(0, last) as t:
        value.add(given.weight[n, t, c] * sizes.factor)
    value.add(given.share(n, last, x) * given.weight[n, last, c] * sizes.factor)
    value.add(given.weight[n, sizes.bins + last, c] + given.learnt[0][n, c])
    if sizes.has_flags:
        with T.If(given.is_missing(b, n)), T.Then():
            value.set(given.learnt[1][n, c])
    T.buffer_store(out, value.now, [b, n, c])


def backward_kernel(sizes: Sizes) -> PrimFunc:
    """Return the kernel that writes the cotangents of the weights, the bias and missing's vectors.

    A bin's weight of the share also gets the cotangents of all rows in bins above.
    """
    bins = sizes.bins
    with kernel("binned_backward") as built:
        given = Arguments(sizes)
        cotangent, weight = given.vectors(), given.of_number(2 * bins, sizes.width)
        learnt = [given.of_number(sizes.width) for _ in given.learnt]
        of_number = (bins + sizes.has_flags) * sizes.width  # a block for each
        with blocks_of_threads(sizes.numbers * of_number, _THREADS) as (block, thread):
            n, rest = T.Bind(tirx.floordiv(block, of_number)), tirx.floormod(block, of_number)
            t, c = (
                T.Bind(tirx.floordiv(rest, sizes.width)),
                T.Bind(tirx.floormod(rest, sizes.width)),
            )
            in_bin, of_shares = _sums(given, cotangent, (n, t, c), thread)
            with T.If(tirx.And(thread == 0, t < bins)), T.Then():
                T.buffer_store(weight, of_shares, [n, t, c])
                T.buffer_store(weight, in_bin, [n, bins + t, c])
            if sizes.has_flags:
                with T.If(tirx.And(thread == 0, t == bins)), T.Then():
                    T.buffer_store(learnt[1], in_bin, [n, c])
        with each_row(sizes.numbers, sizes.width) as (n, columns):
            columns(lambda c: _add_bins_above(sizes, weight, learnt[0], (n, c)))
    return built.get()


def _sums(given: Arguments, cotangent: Any, place: Any, thread: Any) -> tuple[Any, Any]:
    """Sum a column of the cotangents of rows in a bin, and of these times the rows' shares."""
    (n, t, c), sizes = place, given.sizes
    bins, last = sizes.bins, const(sizes.bins - 1, "int64")
    parts = [shared(_THREADS, sizes.dtype) for _ in range(2)]
    totals = [Number(sizes.dtype) for _ in parts]
    own, above = T.Bind(tirx.min(t, last)), T.Bind(tirx.min(t + 1, last))
    with T.serial(0, tirx.ceildiv(given.rows, _THREADS)) as turn:
        b = T.Bind(turn * _THREADS + thread)
        with T.If(b < given.rows), T.Then():
            x = T.Bind(given.dense[b, n])
            begun = tirx.Or(own == 0, x >= given.begins[n, own])
            here = tirx.And(begun, tirx.Or(own == last, x < given.begins[n, above]))
            if sizes.has_flags:
                is_missing = T.Bind(given.is_missing(b, n))
                here = tirx.Select(t == bins, is_missing, tirx.And(here, tirx.Not(is_missing)))
            with T.If(here), T.Then():
                totals[0].add(cotangent[b, n, c])
                totals[1].add(given.share(n, own, x) * cotangent[b, n, c])
    for part, total in zip(parts, totals, strict=True):
        T.buffer_store(part, total.now, [thread])
    barrier()
    with T.If(thread == 0), T.Then(), T.serial(1, _THREADS) as other:
        for part, total in zip(parts, totals, strict=True):
            total.add(part[other])
    return totals[0].now, totals[1].now


def _add_bins_above(sizes: Sizes, weight: Any, bias: Any, place: Any) -> None:
    """Add to the sums of each bin those of the bins above; all of them are the bias's."""
    (n, c), above = place, Number(sizes.dtype)
    with T.serial(0, sizes.bins) as down:
        t = T.Bind(sizes.bins - 1 - down)
        T.buffer_store(weight, (weight[n, t, c] + above.now) * sizes.factor, [n, t, c])
        above.add(weight[n, sizes.bins + t, c])
    T.buffer_store(bias, above.now, [n, c])
