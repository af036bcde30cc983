# SPDX-License-Identifier: Apache-2.0
"""Numeric embeddings: a learnt vector for each number of a row, as in three papers.

Each module computes T features of each number x_i, and the number's own matrix W_i maps them to D
numbers: ``e_i = f_i(x_i) W_i + b_i``. A missing number has a learnt vector instead. Cost: N T (D +
1) multiplications per row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import pi, sqrt
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Op
from tvm.relax import op
from tvm.relax.frontend import nn

from sparsetrain.errors import ConfigError
from sparsetrain.models.binned import binned
from sparsetrain.models.initialize import constant


class NumberEmbedding(nn.Module, ABC):
    """Base class of numeric embeddings: a vector for each number.

    Parameters
    ----------
    bins : sequence of N sequences of float
        Boundaries for `PiecewiseLinear` and `Binned`; other encodings use only N.
    width : int
        T, the number of features of a number.
    dim : int
        D, the width of a vector.
    missing_flags : bool
        Whether N further inputs follow the N numbers: 1 if a number is missing, else 0.
    deviation : float
        Standard deviation of initial weights and vectors.
    """

    has_bias = True
    needs_bins = False  # boundaries of every number

    def __init__(
        self,
        bins: Sequence[Sequence[float]],
        width: int,
        dim: int,
        missing_flags: bool,
        deviation: float,
    ) -> None:
        self.count = len(bins)
        self.weight = _normal((self.count, width, dim), deviation)
        if self.has_bias:
            self.bias = _normal((self.count, dim), deviation)
        if missing_flags:
            self.missing = _normal((self.count, dim), deviation)
        self.missing_flags = missing_flags

    @property
    def inputs(self) -> int:
        """Number of dense inputs that the module reads, starting with the first."""
        return self.count * (1 + self.missing_flags)

    @abstractmethod
    def forward(self, dense: nn.Tensor) -> nn.Tensor:
        """(B, num_dense) -> (B, N, D)."""


class _OfFeatures(NumberEmbedding):
    """Products of weights and a number's features, which a subclass defines."""

    @abstractmethod
    def features(self, x: nn.Tensor) -> nn.Tensor:
        """(B, N, 1) -> (B, N, T)."""

    def forward(self, dense: nn.Tensor) -> nn.Tensor:
        """(B, num_dense) -> (B, N, D)."""
        x = columns(dense, 0, self.count)  # (B, N)
        features = self.features(nn.op.reshape(x, (x.shape[0], self.count, 1)))  # (B, N, T)
        vectors = by_number(features, self.weight)  # (B, N, D)
        if self.has_bias:
            vectors = vectors + self.bias
        if self.missing_flags:
            flags = columns(dense, self.count, 2 * self.count)
            flags = nn.op.reshape(flags, (x.shape[0], self.count, 1))
            vectors = vectors + flags * (self.missing - vectors)
        return vectors


class PiecewiseLinear(_OfFeatures):
    """Piecewise linear encoding: ``f(x)_t`` is the share of bin t below x.

    ``f(x)_t = (x - b_{t-1}) / (b_t - b_{t-1})``, at least 0 except in the first bin, and at most 1
    except in the last. The boundaries b between bins are given; the open bins at both ends are
    scaled by their neighbours' widths.

    References
    ----------
    Gorishniy et al. 2022, equation 1, https://arxiv.org/abs/2203.05556
    """

    needs_bins = True

    def __init__(self, bins: Sequence[Sequence[float]], *rest: Any) -> None:
        laws = _laws(bins)
        super().__init__(bins, laws.shape[2], *rest)
        self.starts, self.scales, self.lows, self.highs = (_given(laws[:, n]) for n in range(4))

    def features(self, x: nn.Tensor) -> nn.Tensor:
        """(B, N, 1) -> (B, N, T)."""
        shares = (x - self.starts) * self.scales
        return nn.op.maximum(nn.op.minimum(shares, self.highs), self.lows)


class Binned(NumberEmbedding):
    """Piecewise linear encoding plus a one-hot encoding of the bin: lines with jumps between bins.

    It thus combines one vector per bin, as for a category column, with slopes within bins. The
    shares are divided by the square root of the number of bins: the shares of all bins below x are
    1, and updates of their weights would otherwise dominate the one-hot part. A kernel looks the
    vectors up instead of multiplying the features, see `models.binned`.
    """

    needs_bins = True

    def __init__(self, bins: Sequence[Sequence[float]], *rest: Any) -> None:
        laws = _laws(bins)
        width = laws.shape[2]
        super().__init__(bins, 2 * width, *rest)
        self.starts, self.scales = _given(laws[:, 0]), _given(laws[:, 1])
        begins = np.full((len(bins), width), _LARGEST)  # unused bins begin after every number
        for n, each in enumerate(bins):
            begins[n, : len(each) + 1] = [-_LARGEST, *each]
        self.begins = _given(begins)

    def forward(self, dense: nn.Tensor) -> nn.Tensor:
        """(B, num_dense) -> (B, N, D)."""
        learnt = [self.weight, self.bias, *([self.missing] if self.missing_flags else [])]
        return binned(dense, self.starts, self.scales, self.begins, *learnt)


class Periodic(_OfFeatures):
    """Periodic features: ``f(x) = [sin(2 pi c x), cos(2 pi c x)]`` with learnt frequencies c.

    This is the paper's variant PL: no ReLU follows the linear map.

    References
    ----------
    Gorishniy et al. 2022, equation 2, https://arxiv.org/abs/2203.05556
    """

    frequencies = 16  # per number
    sigma = 0.1  # standard deviation of the initial frequencies

    def __init__(self, bins: Sequence[Sequence[float]], *rest: Any) -> None:
        super().__init__(bins, 2 * self.frequencies, *rest)
        self.c = _normal((len(bins), self.frequencies), self.sigma)

    def features(self, x: nn.Tensor) -> nn.Tensor:
        """(B, N, 1) -> (B, N, T)."""
        angles = (x * self.c * (2 * pi))._expr
        waves = [nn.wrap_nested(wave(angles), "wave") for wave in (op.sin, op.cos)]
        return nn.op.concat(waves, dim=2)


class AutoDis(_OfFeatures):
    """AutoDis: a weighted mean of H meta-embeddings, by a learnt soft discretization.

    ``h = leaky_relu(w x)``, ``e = softmax(tau (W h + alpha h)) ME``. tau and alpha are constants;
    the paper's adaptive temperature per number is left out.

    References
    ----------
    Guo et al. 2021, https://arxiv.org/abs/2012.08986
    """

    buckets = 16  # H
    alpha, tau, slope = 0.1, 1.0, 0.01
    has_bias = False

    def __init__(self, bins: Sequence[Sequence[float]], *rest: Any) -> None:
        super().__init__(bins, self.buckets, *rest)
        count, buckets = len(bins), self.buckets
        self.w = _normal((count, buckets), 1.0)
        self.mix = _normal((count, buckets, buckets), sqrt(1 / buckets))

    def features(self, x: nn.Tensor) -> nn.Tensor:
        """(B, N, 1) -> (B, N, T)."""
        product = (x * self.w)._expr
        h = nn.wrap_nested(op.nn.leakyrelu(product, self.slope), "h")  # (B, N, H)
        return nn.op.softmax((by_number(h, self.mix) + h * self.alpha) * self.tau, axis=-1)


LEARNT = {
    "piecewise": PiecewiseLinear,
    "binned": Binned,
    "periodic": Periodic,
    "autodis": AutoDis,
}


def number_embedding(
    cls: str, config: dict[str, Any], dim: int, deviation: float
) -> NumberEmbedding | None:
    """Return the module for a click model's config; None if numbers are scaled.

    Raises
    ------
    ConfigError
        If `numbers` is unknown, there are too few dense inputs, or boundaries are missing for
        piecewise linear encoding.
    """
    kind, flags, inputs = config["numbers"], config["missing_flags"], config["num_dense"]
    if kind == "scaled":
        return None
    if kind not in LEARNT:
        raise ConfigError(f"{cls}: numbers is {kind!r}; it must be 'scaled' or one of {[*LEARNT]}")
    bins = config["number_bins"]
    if bins is None:
        bins = [[]] * (inputs // (1 + flags))
    if not bins or len(bins) * (1 + flags) > inputs:
        raise ConfigError(f"{cls}: numbers={kind!r} needs more than {inputs} dense inputs")
    if LEARNT[kind].needs_bins and not all(bins):
        raise ConfigError(
            f"{cls}: numbers={kind!r} needs boundaries of every number: fit the encoder with "
            f"st.data.with_buckets(schema, {kind!r})"
        )
    return LEARNT[kind](bins, dim, flags, deviation)


def by_number(x: nn.Tensor, weight: nn.Tensor) -> nn.Tensor:
    """(B, N, H), (N, H, D) -> (B, N, D): a product for each number."""
    product = nn.op.matmul(nn.op.permute_dims(x, [1, 0, 2]), weight)  # (N, B, D)
    return nn.op.permute_dims(product, [1, 0, 2])


def columns(x: nn.Tensor, first: int, end: int) -> nn.Tensor:
    """(B, C, ...) -> (B, end - first, ...); a tensor that was concatenated is not copied again."""
    if (first, end) == (0, x.shape[1]):
        return x
    at = 0
    for part in _parts(x):
        if (first, end) == (at, at + int(part.ty.shape[1])):
            return nn.Tensor(_expr=part)
        at += int(part.ty.shape[1])
    return nn.wrap_nested(op.strided_slice(x._expr, [1], [first], [end]), "columns")


def _parts(x: nn.Tensor) -> list[relax.Var]:
    """Return the tensors that a concatenation along the second axis joined, or else `x` alone."""
    made = relax.BlockBuilder.current().lookup_binding(x._expr)
    joins = isinstance(made, relax.Call) and made.op == Op.get("relax.concat")
    return [*made.args[0].fields] if joins and int(made.attrs.axis) == 1 else [x._expr]


def _laws(bins: Sequence[Sequence[float]]) -> np.ndarray:
    """Return start, scale, minimum and maximum share of every number's bins, (N, 4, T) float32."""
    width = max((len(each) for each in bins), default=0) + 1
    return np.array([_bins(each, width) for each in bins], np.float32)


def _bins(boundaries: Sequence[float], width: int) -> np.ndarray:
    """Return start, scale, minimum and maximum share of each bin, (4, width); 0 for unused bins."""
    cuts = np.asarray(boundaries, np.float64)
    steps = np.diff(cuts) if len(cuts) > 1 else np.ones(1)
    found = np.zeros((4, width))
    used = slice(0, len(cuts) + 1)
    found[0, used] = [cuts[0] - steps[0], *cuts]
    found[1, used] = 1 / np.r_[steps[0], np.diff(cuts), steps[-1]]
    found[3, used] = 1
    found[2, 0], found[3, len(cuts)] = -_OPEN, _OPEN
    return found


_OPEN = 1e30  # no bound
_LARGEST = np.finfo(np.float32).max


def _given(values: np.ndarray) -> nn.Parameter:
    made = constant(values.shape, "float32")
    made.attrs["initial"] = values
    return made


def _normal(shape: Sequence[int], deviation: float) -> nn.Parameter:
    made = nn.Parameter(tuple(shape))
    made.attrs["deviation"] = deviation
    return made
