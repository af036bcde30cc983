# SPDX-License-Identifier: Apache-2.0
"""Wide & Deep: logistic regression beside an MLP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.relax.frontend import nn

from sparsetrain.models.field_model import FieldModel


class WideDeep(FieldModel):
    """Wide & Deep: ``logit = b + sum_i w_i + MLP([v_1, ..., v_M])``.

    Parameters
    ----------
    rows, num_dense
        As of `ClickModel`.
    dim : int
        Width of the vectors v.
    hidden : sequence of int
        Hidden widths of the MLP.
    dropout : float
        Rate of its dropout.
    batch_norm : bool
        Whether it has batch norm.
    **rest
        As of `ClickModel`.

    References
    ----------
    Cheng et al. 2016, https://arxiv.org/abs/1606.07792
    """

    kind = "widedeep"

    def __init__(
        self,
        rows: Sequence[int],
        dim: int = 16,
        hidden: Sequence[int] = (64, 64),
        num_dense: int = 13,
        dropout: float = 0.0,
        batch_norm: bool = False,
        **rest: Any,
    ) -> None:
        options = {"hidden": hidden, "dropout": dropout, "batch_norm": batch_norm}
        super().__init__(rows, dim, num_dense, options, first_order=True, **rest)
        self.mlp = self.deep()

    def forward(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        """(B, num_dense), (B, F, T + dim) -> (B, T)."""
        linear, vectors = self.first_order(dense, embedded)
        return linear + self.mlp(self.flat(vectors))
