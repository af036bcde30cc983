# SPDX-License-Identifier: Apache-2.0
"""Projection of vectors of several widths to one width, for models that multiply vectors.

Mixed dimension embeddings: rare features have narrow tables, and a matrix maps each narrow width to
the widest (Ginart et al. 2019, https://arxiv.org/abs/1909.11810). Cost: w D multiplications for
each vector of width w.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm.relax.frontend import nn

from sparsetrain.models.fields import in_order


class Projections(nn.Module):
    """A matrix (D, w) for each width w except D.

    Parameters
    ----------
    features : sequence of sequences of int
        Groups of features with equal width, by their positions.
    widths : sequence of int
        Width of each group of features.
    common : int
        D, the common width.
    weights : int
        Number of first-order weights before each vector, which are not projected.
    """

    def __init__(
        self, features: Sequence[Sequence[int]], widths: Sequence[int], common: int, weights: int
    ) -> None:
        self.features, self.common, self.weights = features, common, weights
        for width in widths:
            if width != common:
                setattr(self, f"width{width}", nn.Linear(width, common, bias=False))

    def forward(self, vectors: Sequence[nn.Tensor]) -> nn.Tensor:
        """(B, F_w, weights + w) of each width w -> (B, F, weights + D), in the features' order."""
        joined = in_order([self._projected(of_width) for of_width in vectors], self.features)
        count, batch = sum(map(len, self.features)), joined.shape[0]
        return nn.op.reshape(joined, (batch, count, self.weights + self.common))

    def _projected(self, vectors: nn.Tensor) -> nn.Tensor:
        batch, count, width = vectors.shape
        width -= self.weights
        if width == self.common:
            return vectors
        first = []
        if self.weights:
            *first, vectors = nn.op.split(vectors, [self.weights], axis=2)
        rows = getattr(self, f"width{width}")(nn.op.reshape(vectors, (batch * count, width)))
        projected = nn.op.reshape(rows, (batch, count, self.common))
        return nn.op.concat([*first, projected], dim=2) if first else projected
