# SPDX-License-Identifier: Apache-2.0
"""Wide & Deep: logistic regression beside an MLP."""

from __future__ import annotations

from tvm.relax.frontend import nn

from sparsetrain.models.field_model import DeepModel


class WideDeep(DeepModel):
    """Wide & Deep: ``logit = b + sum_i w_i + MLP([v_1, ..., v_M])``.

    It takes the same arguments as `DeepModel`.

    References
    ----------
    Cheng et al. 2016, https://arxiv.org/abs/1606.07792
    """

    kind = "widedeep"
    has_weights = True
    takes_any_width = True

    def forward(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        """(B, num_dense), (B, F, T + dim) -> (B, T)."""
        linear, vectors = self.first_order(dense, embedded)
        return linear + self.mlp(self.flat(vectors))
