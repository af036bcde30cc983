# SPDX-License-Identifier: Apache-2.0
"""Logistic regression on ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.relax.frontend import nn

from sparsetrain.models.field_model import FieldModel


class LR(FieldModel):
    """Logistic regression: a weight for each value, ``logit = b + sum_i w_i x_i``.

    Parameters
    ----------
    rows, num_dense
        As in `ClickModel`.
    **rest
        As in `ClickModel`.

    References
    ----------
    Richardson et al. 2007, https://doi.org/10.1145/1242572.1242643
    """

    kind = "lr"
    has_weights = True
    takes_any_width = True

    def __init__(self, rows: Sequence[int], num_dense: int = 0, **rest: Any) -> None:
        rest.pop("dim", None)  # kept in saved configs; tables have one column per label
        super().__init__(rows, 0, num_dense, **rest)

    def forward(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        """(B, num_dense), (B, F, T) -> (B, T)."""
        return nn.op.sum(self.fields(dense, embedded), axis=1) + self.bias
