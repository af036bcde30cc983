# SPDX-License-Identifier: Apache-2.0
"""Rules of pools: means and maxima of windows. The gradient of an element sums over its windows."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax, te, tirx

from sparsetrain.ad.dense_rules.windows import Windows, inside, spatial, taps
from sparsetrain.errors import ConfigError


class _Pool:
    """A call of a pool, and the two kernels of its derivative."""

    def __init__(self, call: Any) -> None:
        self.windows = Windows.of(call)
        self.size = [int(n) for n in call.attrs["pool_size"]]
        self.ends = [int(n) for n in call.attrs["padding"]][len(self.size) :]
        self.axes = spatial(_layout(call))
        self.counts_padding = bool(call.attrs["count_include_pad"])

    def places(self, index: Any) -> list[Any]:
        return [index[a] for a in self.axes]

    def at(self, index: Any, places: list[Any]) -> list[Any]:
        """An index with other places."""
        moved = dict(zip(self.axes, places, strict=True))
        return [moved.get(a, i) for a, i in enumerate(index)]

    def number(self, window: list[Any]) -> Any:
        """The taps of a window, counted through."""
        total: Any = tirx.const(0, "int64")
        for tap, extent in zip(window, self.size, strict=True):
            total = total * extent + tap
        return total

    def count(self, x: te.Tensor, index: Any) -> Any:
        """By how many elements the mean of a window is divided."""
        total: Any = tirx.const(1, "int64")
        for n, (axis, size, end) in enumerate(zip(self.axes, self.size, self.ends, strict=True)):
            extent, step = x.shape[axis], self.windows.dilation[n]
            start = index[axis] * self.windows.strides[n] - self.windows.padding[n]
            last = extent + end if self.counts_padding else extent
            behind = tirx.floordiv(tirx.min(last - 1 - start, (size - 1) * step), step) + 1
            # Taps in front of the first element.
            ahead = 0 if self.counts_padding else tirx.max(tirx.floordiv(step - 1 - start, step), 0)
            total = total * (behind - ahead)
        return tirx.max(total, 1)

    def spread(self, share: te.Tensor, x: te.Tensor, first: te.Tensor | None = None) -> te.Tensor:
        """The sum of the shares of the windows that an element is in, or is `first` of."""
        window = taps(self.size)

        def element(*index: Any) -> Any:
            extents = [share.shape[a] for a in self.axes]
            found, counts = self.windows.seeing(self.places(index), window, extents)
            at = self.at(index, found)
            if first is not None:
                chosen = tirx.if_then_else(counts, first(*at), -1) == self.number(window)
                counts = tirx.all(counts, chosen)
            zero = tirx.const(0, share.dtype)
            return te.sum(tirx.if_then_else(counts, share(*at), zero), axis=window)

        return te.compute(x.shape, element, "pool_cotangent")

    def first(self, output: te.Tensor, x: te.Tensor) -> te.Tensor:
        """The number of the first tap at which a window has its maximum."""
        window, none = taps(self.size), tirx.const(prod(self.size), "int64")
        extents = [x.shape[a] for a in self.axes]

        def element(*index: Any) -> Any:
            seen = self.windows.seen(self.places(index), window)
            value = tirx.if_then_else(inside(seen, extents), x(*self.at(index, seen)), 0)
            here = tirx.all(inside(seen, extents), value == output(*index))
            number = tirx.Cast("int64", self.number(window))
            return te.min(tirx.if_then_else(here, number, none), axis=window)

        return te.compute(output.shape, element, "first_maximum")


def _layout(call: Any) -> str:
    layout = str(call.attrs["layout"])
    if len(layout) != len(call.args[0].ty.shape):
        raise ConfigError(f"no derivative for layout {layout!r}: write a letter for each axis")
    return layout


def _max_pool(
    output: relax.Var, call: Any, cotangent: relax.Expr, builder: relax.BlockBuilder
) -> list:
    """Backward: to the first element that is the maximum of its window, as in PyTorch."""
    pool, x = _Pool(call), call.args[0]
    first = builder.emit_te(pool.first, output, x)
    return [builder.emit_te(pool.spread, cotangent, x, first)]


def _avg_pool(
    output: relax.Var, call: Any, cotangent: relax.Expr, builder: relax.BlockBuilder
) -> list:
    """Backward: to each element of the window, over their number."""
    pool, x = _Pool(call), call.args[0]

    def shares(cotangent: te.Tensor, x: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            return cotangent(*index) / tirx.Cast(cotangent.dtype, pool.count(x, index))

        return te.compute(cotangent.shape, element, "pool_share")

    return [builder.emit_te(pool.spread, builder.emit_te(shares, cotangent, x), x)]


RULES = {
    **{f"relax.nn.max_pool{n}d": _max_pool for n in (1, 2, 3)},
    **{f"relax.nn.avg_pool{n}d": _avg_pool for n in (1, 2, 3)},
}
