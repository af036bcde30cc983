# SPDX-License-Identifier: Apache-2.0
"""Rules of convolutions and transposed convolutions, in any number of dimensions and layout.

A convolution has a large side, x, and a small side, y; a transposed one is the same the other way
round. So three sums serve both: from the small side to the large, from the large to the small, and
over both for the weight. They are plain loops, which are slower than a tuned kernel.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from sparsetrain.ad.dense_rules.windows import Windows, inside, spatial, taps
from sparsetrain.errors import ConfigError

_SWAPPED = str.maketrans("IO", "OI")


class Convolution:
    """A convolution, and its three sums as kernels.

    Parameters
    ----------
    windows : Windows
        Where the windows lie.
    groups : int
        Of channels.
    data : str
        The layout of both sides, a letter for each axis.
    kernel : str
        That of the weight: O are all channels of the small side, I the large one's of a group.
    """

    def __init__(self, windows: Windows, groups: int, data: str, kernel: str) -> None:
        self.windows, self.groups, self.data, self.kernel = windows, groups, data, kernel
        self.batch, self.channel = data.index("N"), data.index("C")
        self.axes, self.taps = spatial(data), spatial(kernel)
        self.small, self.large = kernel.index("O"), kernel.index("I")

    @classmethod
    def of(cls, call: Any) -> Convolution:
        """Return the convolution of a call.

        Raises
        ------
        ConfigError
            For layouts with blocks of channels, or a result of another layout.
        """
        layouts = [str(call.attrs[f"{name}_layout"]) for name in ("data", "kernel")]
        for layout, tensor in zip(layouts, call.args, strict=True):
            if len(layout) != len(tensor.ty.shape):
                raise ConfigError(
                    f"no derivative for layout {layout!r}: write a letter for each axis"
                )
        out = str(call.attrs["out_layout"])
        if out not in ("", layouts[0]):
            raise ConfigError(
                f"no derivative for out_layout {out!r}: leave it away, or permute_dims"
            )
        data, kernel = layouts
        if call.op.name.endswith("transpose"):
            kernel = kernel.translate(_SWAPPED)
        return cls(Windows.of(call), int(call.attrs["groups"]), data, kernel)

    def at(self, batch: Any, channel: Any, places: list[Any]) -> list[Any]:
        """The index of an element of a side."""
        return _ordered({self.batch: batch, self.channel: channel}, self.axes, places)

    def tap(self, small: Any, large: Any, window: list[Any]) -> list[Any]:
        """The index of an element of the weight."""
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
    of, (x, weight) = Convolution.of(call), call.args
    return [
        builder.emit_te(of.to_large, cotangent, weight, x),
        builder.emit_te(of.to_weight, cotangent, x, weight),
    ]


def _transposed(
    output: relax.Var, call: Any, cotangent: relax.Expr, builder: relax.BlockBuilder
) -> list:
    """Forward: ``y[w] = sum x[o] weight[k]``. Backward: a convolution, and its sum."""
    of, (x, weight) = Convolution.of(call), call.args
    return [
        builder.emit_te(of.to_small, cotangent, weight, x),
        builder.emit_te(of.to_weight, x, cotangent, weight),
    ]


RULES = {
    **{f"relax.nn.conv{n}d": _convolution for n in (1, 2, 3)},
    **{f"relax.nn.conv{n}d_transpose": _transposed for n in (1, 2, 3)},
}
