# SPDX-License-Identifier: Apache-2.0
"""Geometry of the windows of convolutions and pools, in one, two or three dimensions.

Place `o` of the small side and tap `k` meet place `o stride + k dilation - padding` of the large
side, which a convolution reads and a transposed one writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tvm import te, tirx


class Windows(NamedTuple):
    """Strides, dilations and the padding in front, for each dimension."""

    strides: list[int]
    dilation: list[int]
    padding: list[int]

    @classmethod
    def of(cls, call: Any) -> Windows:
        """Those of a call of a convolution or a pool."""
        strides, dilation, padding = (
            [int(n) for n in call.attrs[name]] for name in ("strides", "dilation", "padding")
        )
        return cls(strides, dilation, padding[: len(strides)])

    def seen(self, small: Sequence[Any], taps: Sequence[Any]) -> list[Any]:
        """The places of the large side; some may lie in the padding."""
        places = zip(small, taps, self.strides, self.dilation, self.padding, strict=True)
        return [o * s + k * d - p for o, k, s, d, p in places]

    def seeing(
        self, large: Sequence[Any], taps: Sequence[Any], extents: Sequence[Any]
    ) -> tuple[list[Any], Any]:
        """The places of the small side, of those `extents`, and whether there are such."""
        found, exists = [], tirx.const(True, "bool")
        for w, k, extent, s, d, p in zip(large, taps, extents, *self, strict=True):
            offset = w + p - k * d
            place = tirx.floordiv(offset, s)
            exists = tirx.all(exists, offset >= 0, tirx.floormod(offset, s) == 0, place < extent)
            found.append(place)
        return found, exists


def inside(places: Sequence[Any], extents: Sequence[Any]) -> Any:
    """Whether the places are no padding."""
    tests = [tirx.all(w >= 0, w < n) for w, n in zip(places, extents, strict=True)]
    return tirx.all(*tests)


def taps(extents: Sequence[Any]) -> list[te.IterVar]:
    """An axis to reduce over for each extent of a window."""
    return [te.reduce_axis((0, extent), f"k{n}") for n, extent in enumerate(extents)]


def spatial(layout: str) -> list[int]:
    """The axes of depth, height and width."""
    return [layout.index(letter) for letter in "DHW" if letter in layout]
