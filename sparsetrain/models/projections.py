# SPDX-License-Identifier: Apache-2.0
"""Vectors of several widths as vectors of one, for models that multiply them with each other.

Mixed dimension embeddings: rare features have narrow tables, and a matrix maps each narrow width to
the widest (Ginart et al. 2019, https://arxiv.org/abs/1909.11810). Cost: w D multiplications for
each vector of width w.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm.relax.frontend import nn

from sparsetrain.models.fields import in_order


class Projections(nn.Module):
    """A matrix (D, w) for each width w but D.

    Parameters
    ----------
    features : sequence of sequences of int
        Positions of the features of each width.
    widths : sequence of int
        Those widths.
    common : int
        D.
    weights : int
        Numbers in front of each vector that are left as they are, first-order weights.
    """

    def __init__(
        self, features: Sequence[Sequence[int]], widths: Sequence[int], common: int, weights: int
    ) -> None:
        self.features, self.common, self.weights = features, common, weights
        for width in widths:
            if width != common:
                setattr(self, f"width{width}", nn.Linear(width, common, bias=False))

    def forward(self, each: Sequence[nn.Tensor]) -> nn.Tensor:
        """(B, F_w, weights + w) of each width w -> (B, F, weights + D), in the features' order."""
        joined = in_order([self._projected(vectors) for vectors in each], self.features)
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
