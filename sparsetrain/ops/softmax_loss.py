# SPDX-License-Identifier: Apache-2.0
"""Kernels for the cross-entropy of scores, which overwrite their first argument.

The loss kernel replaces the scores s with ``softmax(s) - one_hot(y)``; the reverse pass scales
these rows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.kernels.loops import HOST_LOOPS, Loops, store_vector

LANES = 16


@cache
def softmax_loss_kernel(
    width: int | None, dtype: str, id_dtype: str, loops: Loops = HOST_LOOPS
) -> tirx.PrimFunc:
    """Compute ``loss[n] = log sum_v exp(s[n, v]) - s[n, y[n]]``; s becomes its derivative.

    The derivative is ``softmax(s) - one_hot(y)``. Rows run in parallel; each is summed per vector
    lane, then over the lanes in order. If `width` is None, the length of a row is symbolic.
    """

    def number(value: float) -> Any:
        return tirx.const(value, dtype)

    with kernel("softmax_loss") as built:
        rows, length = (*extents(1), width) if width else extents(2)
        whole, rest = length // LANES, length % LANES
        scores = buffer("scores", (rows, length), dtype)
        items = buffer("items", (rows,), id_dtype)
        loss = buffer("loss", (rows,), dtype)

        def fold(n: Any, start: float, combine: Any, update: Any) -> Any:
            lanes = T.alloc_buffer((LANES,), dtype, scope="local")
            with loops.vector(LANES) as lane:
                T.buffer_store(lanes, number(start), [lane])
            with T.serial(0, whole) as v, loops.vector(LANES) as lane:
                update(n, v * LANES + lane)
                T.buffer_store(lanes, combine(lanes[lane], scores[n, v * LANES + lane]), [lane])
            with T.serial(0, rest) as lane:
                update(n, whole * LANES + lane)
                value = combine(lanes[lane], scores[n, whole * LANES + lane])
                T.buffer_store(lanes, value, [lane])
            total = T.alloc_buffer((1,), dtype, scope="local")
            T.buffer_store(total, lanes[0], [0])
            for lane in range(1, LANES):
                T.buffer_store(total, combine(total[0], lanes[lane]), [0])
            return total[0]

        with loops.each(rows) as n:
            item = T.Bind(tirx.Cast("int64", items[n]))
            wanted = T.alloc_buffer((1,), dtype, scope="local")
            T.buffer_store(wanted, scores[n, item], [0])
            top = fold(n, float("-inf"), tirx.max, lambda n, v: None)
            total = fold(
                n,
                0.0,
                lambda a, b: a + b,
                lambda n, v: T.buffer_store(scores, tirx.exp(scores[n, v] - top), [n, v]),
            )
            T.buffer_store(loss, tirx.log(total) + top - wanted[0], [n])
            with T.serial(0, whole) as v, loops.vector(LANES) as lane:
                at = v * LANES + lane
                T.buffer_store(scores, scores[n, at] / total, [n, at])
            with T.serial(0, rest) as lane:
                at = whole * LANES + lane
                T.buffer_store(scores, scores[n, at] / total, [n, at])
            T.buffer_store(scores, scores[n, item] - number(1), [n, item])
    return built.get()


@cache
def scale_rows_kernel(width: int, dtype: str, loops: Loops = HOST_LOOPS) -> tirx.PrimFunc:
    """Compute ``weights[n, v] *= factors[n]``."""
    with kernel("scale_rows") as built:
        (rows,) = extents(1)
        weights, factors = buffer("weights", (rows, width), dtype), buffer("f", (rows,), dtype)
        with loops.each_vector(rows, width, dtype) as (n, c, lanes):
            store_vector(weights, [n, c], lanes, lambda lane: weights[n, c + lane] * factors[n])
    return built.get()
