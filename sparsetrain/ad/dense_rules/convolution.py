# SPDX-License-Identifier: Apache-2.0
"""Convolutions and transposed ones, of any number of dimensions, layout and grouping.

A convolution has a large side, x, and a small side, y; a transposed one is the same the other way
round. So three sums serve both: from the small side to the large, from the large to the small, and
over both for the weight. They are plain loops: fast enough for short kernels.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from sparsetrain.ad.dense_rules.windows import Windows, inside, spatial, taps


class _Convolution:
    """A call, and the kernels of its derivative."""

    def __init__(self, call: Any) -> None:
        self.windows, self.groups = Windows.of(call), int(call.attrs["groups"])
        data, kernel = str(call.attrs["data_layout"]), str(call.attrs["kernel_layout"])
        self.batch, self.channel = data.index("N"), data.index("C")
        self.axes, self.taps = spatial(data, call.args[0]), spatial(kernel, call.args[1])
        ends = "IO" if call.op.name.endswith("transpose") else "OI"
        self.small, self.large = (kernel.index(end) for end in ends)  # of the weight's axes

    def at(self, batch: Any, channel: Any, places: list[Any]) -> list[Any]:
        return _ordered({self.batch: batch, self.channel: channel}, self.axes, places)

    def tap(self, small: Any, large: Any, window: list[Any]) -> list[Any]:
        return _ordered({self.small: small, self.large: large}, self.taps, window)

    def to_large(self, small: te.Tensor, weight: te.Tensor, like: te.Tensor) -> te.Tensor:
        """``large[w] = sum small[o] weight[k]`` over all o and k that see w."""
        width, of_group = weight.shape[self.large], weight.shape[self.small] // self.groups
        window = taps([weight.shape[a] for a in self.taps])
        channel = te.reduce_axis((0, of_group), "c")
        extents = [small.shape[a] for a in self.axes]

        def element(*index: Any) -> Any:
            large = index[self.channel]
            m = tirx.floordiv(large, width) * of_group + channel
            found, exists = self.windows.seeing([index[a] for a in self.axes], window, extents)
            value = small(*self.at(index[self.batch], m, found))
            value = value * weight(*self.tap(m, tirx.floormod(large, width), window))
            zero = tirx.const(0, small.dtype)
            return te.sum(tirx.if_then_else(exists, value, zero), axis=[channel, *window])

        return te.compute(like.shape, element, "convolution_to_large")

    def to_small(self, large: te.Tensor, weight: te.Tensor, like: te.Tensor) -> te.Tensor:
        """``small[o] = sum large[w] weight[k]`` over all that o sees."""
        width, of_group = weight.shape[self.large], weight.shape[self.small] // self.groups
        window = taps([weight.shape[a] for a in self.taps])
        channel = te.reduce_axis((0, width), "c")

        def element(*index: Any) -> Any:
            m = index[self.channel]
            seen = self.windows.seen([index[a] for a in self.axes], window)
            at = self.at(index[self.batch], tirx.floordiv(m, of_group) * width + channel, seen)
            value = large(*at) * weight(*self.tap(m, channel, window))
            return te.sum(self._or_zero(large, seen, value), axis=[channel, *window])

        return te.compute(like.shape, element, "convolution_to_small")

    def to_weight(self, small: te.Tensor, large: te.Tensor, like: te.Tensor) -> te.Tensor:
        """``weight[k] = sum small[o] large[w]`` over examples and all w that o sees by k."""
        width, of_group = like.shape[self.large], like.shape[self.small] // self.groups
        batch = te.reduce_axis((0, small.shape[self.batch]), "b")
        places = taps([small.shape[a] for a in self.axes])

        def element(*index: Any) -> Any:
            m = index[self.small]
            channel = tirx.floordiv(m, of_group) * width + index[self.large]
            seen = self.windows.seen(places, [index[a] for a in self.taps])
            value = small(*self.at(batch, m, places)) * large(*self.at(batch, channel, seen))
            return te.sum(self._or_zero(large, seen, value), axis=[batch, *places])

        return te.compute(like.shape, element, "convolution_to_weight")

    def _or_zero(self, large: te.Tensor, seen: list[Any], value: Any) -> Any:
        extents = [large.shape[a] for a in self.axes]
        return tirx.if_then_else(inside(seen, extents), value, tirx.const(0, large.dtype))


def _ordered(known: dict[int, Any], axes: list[int], places: list[Any]) -> list[Any]:
    """Indices in the order of their axes."""
    known = known | dict(zip(axes, places, strict=True))
    return [known[axis] for axis in sorted(known)]


def _convolution(
    output: relax.Var, call: Any, cotangent: relax.Expr, builder: relax.BlockBuilder
) -> list:
    """Forward: ``y[o] = sum x[w] weight[k]``. Backward: the other two sums."""
    of, (x, weight) = _Convolution(call), call.args
    return [
        builder.emit_te(of.to_large, cotangent, weight, x),
        builder.emit_te(of.to_weight, cotangent, x, weight),
    ]


def _transposed(
    output: relax.Var, call: Any, cotangent: relax.Expr, builder: relax.BlockBuilder
) -> list:
    """Forward: ``y[w] = sum x[o] weight[k]``. Backward: a convolution, and its sum."""
    of, (x, weight) = _Convolution(call), call.args
    return [
        builder.emit_te(of.to_small, cotangent, weight, x),
        builder.emit_te(of.to_weight, x, cotangent, weight),
    ]


RULES = {
    **{f"relax.nn.conv{n}d": _convolution for n in (1, 2, 3)},
    **{f"relax.nn.conv{n}d_transpose": _transposed for n in (1, 2, 3)},
}
