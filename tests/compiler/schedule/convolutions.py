# SPDX-License-Identifier: Apache-2.0
"""Convolutions to compile, and in NumPy, one tap after the other: their oracle."""

from itertools import product
from typing import NamedTuple

import numpy as np
from tvm import relax
from tvm.relax import op

from sparsetrain.ops.windows import Convolution, Windows, to_large, to_weight
from tests.compiler.schedule.relax_programs import function

_LETTERS = "DHW"


class Case(NamedTuple):
    """A convolution of channels first, and the layouts that it is tested in."""

    x: tuple
    w: tuple
    attributes: dict
    layouts: tuple = ("NCW", "OIW")
    batch: int = 3
    target: str = "host"
    dtype: str = "float32"

    @property
    def rank(self):
        """Dimensions of places."""
        return len(self.x) - 1

    @property
    def whole(self):
        """All attributes, of each axis."""
        ones, zeros = (1,) * self.rank, (0,) * 2 * self.rank
        plain = {"strides": ones, "padding": zeros, "dilation": ones, "groups": 1}
        return {**plain, **self.attributes}

    @property
    def plain(self):
        """Layouts of x, w and y with channels first."""
        letters = _LETTERS[-self.rank :]
        return f"NC{letters}", f"OI{letters}", f"NC{letters}"


class Reference:
    """A convolution of channels first, and its two cotangents, by their definition.

    Parameters
    ----------
    x, w : ndarray
        (B, C, *places) and (M, C / groups, *taps), of whole numbers.
    strides, padding, dilation : sequence of int
        For each axis; the padding in front of all, then behind.
    groups : int
        Of channels.
    """

    def __init__(self, x, w, strides, padding, dilation, groups=1):
        rank = x.ndim - 2
        self.w, self.strides, self.dilation = w, strides, dilation
        self.borders = list(zip(padding[:rank], padding[rank:], strict=True))
        padded = np.pad(x, [(0, 0), (0, 0), *self.borders])
        self.grouped = padded.reshape(len(x), groups, w.shape[1], *padded.shape[2:])
        self.by_group = w.reshape(groups, -1, *w.shape[1:])
        reach = [(k - 1) * d for k, d in zip(w.shape[2:], dilation, strict=True)]
        ends = zip(padded.shape[2:], reach, strides, strict=True)
        self.places = [(n - far - 1) // s + 1 for n, far, s in ends]

    def _taps(self):
        """For each tap its place in the window, and what the result sees by it."""
        for tap in product(*map(range, self.w.shape[2:])):
            axes = zip(tap, self.places, self.strides, self.dilation, strict=True)
            yield tap, (..., *(slice(k * d, k * d + (n - 1) * s + 1, s) for k, n, s, d in axes))

    def output(self):
        """(B, M, *places)."""
        parts = [
            np.einsum("bgc...,gmc->bgm...", self.grouped[seen], self.by_group[(..., *tap)])
            for tap, seen in self._taps()
        ]
        return sum(parts).reshape(len(self.grouped), len(self.w), *self.places)

    def cotangents(self, y):
        """Those of x and of w, for that of the result."""
        y = y.reshape(len(y), *self.by_group.shape[:2], *self.places)
        x, w = np.zeros_like(self.grouped), np.zeros_like(self.by_group)
        for tap, seen in self._taps():
            x[seen] += np.einsum("bgm...,gmc->bgc...", y, self.by_group[(..., *tap)])
            letters = _LETTERS[: len(self.places)].lower()
            sums = f"bgm{letters},bgc{letters}->gmc"
            w[(..., *tap)] = np.einsum(sums, y, self.grouped[seen])
        x = x.reshape(len(x), x.shape[1] * x.shape[2], *x.shape[3:])
        ends = zip(self.borders, x.shape[2:], strict=True)
        return x[(..., *(slice(a, n - b) for (a, b), n in ends))], w.reshape(self.w.shape)


def arranged(axes, layout, wanted):
    """A tensor, or its shape, of one layout in the axes of another."""
    order = [layout.index(letter) for letter in wanted]
    return axes.transpose(order) if hasattr(axes, "transpose") else [axes[n] for n in order]


def forms(case):
    """The cotangents of x and w for that of the result, and the convolution."""
    (data, kernel), plain = case.layouts, case.plain
    whole = case.whole
    windows = Windows(whole["strides"], whole["dilation"], whole["padding"][: case.rank])
    of = Convolution(windows, whole["groups"], data, kernel)
    convolution = getattr(op.nn, f"conv{case.rank}d")

    def body(x, w, y):
        forward = convolution(x, w, **whole, data_layout=data, kernel_layout=kernel)
        return relax.Tuple([to_large(of, y, w, x), to_weight(of, y, x, w), forward])

    places = Reference(np.zeros((1, *case.x)), np.zeros(case.w), **whole).places
    shapes = {
        "x": arranged(("b", *case.x), plain[0], data),
        "w": arranged(case.w, plain[1], kernel),
        "y": arranged(("b", case.w[0], *places), plain[2], data),
    }
    return function(shapes, body, case.dtype)
