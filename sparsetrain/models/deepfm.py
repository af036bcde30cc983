# SPDX-License-Identifier: Apache-2.0
"""DeepFM: a factorization machine and an MLP on the same vectors."""

from __future__ import annotations

from tvm.relax.frontend import nn

from sparsetrain.models.field_model import DeepModel
from sparsetrain.models.fm import fm_sum


class DeepFM(DeepModel):
    """DeepFM: ``logit = b + sum_i w_i + sum_{i<j} <v_i, v_j> + MLP([v_1, ..., v_M])``.

    It takes the same arguments as `DeepModel`.

    References
    ----------
    Guo et al. 2017, https://arxiv.org/abs/1703.04247
    """

    kind = "deepfm"
    has_weights = True

    def forward(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        """(B, num_dense), (B, F, T + dim) -> (B, T)."""
        linear, vectors = self.first_order(dense, embedded)
        return linear + fm_sum(vectors) + self.mlp(self.flat(vectors))
