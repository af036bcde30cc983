# SPDX-License-Identifier: Apache-2.0
"""Factorization machine, and its sum over all pairs of fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.relax.frontend import nn

from sparsetrain.models.by_feature import Dim
from sparsetrain.models.field_model import FieldModel


def fm_sum(vectors: nn.Tensor) -> nn.Tensor:
    """Sum the dot products of all pairs of fields, in O(M D) operations.

    ``sum_{i<j} <v_i, v_j> = (|sum_i v_i|^2 - sum_i |v_i|^2) / 2`` (Rendle 2010, lemma 3.1).

    Parameters
    ----------
    vectors : (B, M, D) float

    Returns
    -------
    (B, 1) float
    """
    total = nn.op.sum(vectors, axis=1)  # (B, D)
    pairs = total * total - nn.op.sum(vectors * vectors, axis=1)
    return nn.op.sum(pairs, axis=1, keepdims=True) * 0.5


class FM(FieldModel):
    """Factorization machine: ``logit = b + sum_i w_i x_i + sum_{i<j} <v_i, v_j> x_i x_j``.

    Parameters
    ----------
    rows, num_dense
        As in `ClickModel`.
    dim : int, or mapping from str to int
        Width of the vectors v, or widths by feature, as in `ClickModel`.
    **rest
        As in `ClickModel`.

    References
    ----------
    Rendle 2010, https://doi.org/10.1109/ICDM.2010.127
    """

    kind = "fm"
    has_weights = True

    def __init__(self, rows: Sequence[int], dim: Dim = 16, num_dense: int = 0, **rest: Any) -> None:
        super().__init__(rows, dim, num_dense, **rest)

    def forward(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        """(B, num_dense), (B, F, T + dim) -> (B, T)."""
        linear, vectors = self.first_order(dense, embedded)
        return linear + fm_sum(vectors)
