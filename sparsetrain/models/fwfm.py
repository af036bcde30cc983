# SPDX-License-Identifier: Apache-2.0
"""Field-weighted factorization machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.relax.frontend import nn

from sparsetrain.errors import ConfigError
from sparsetrain.models.by_feature import Dim
from sparsetrain.models.field_model import FieldModel
from sparsetrain.models.interaction import dot_interaction


class FwFM(FieldModel):
    """FM with a weight for each pair of fields: ``b + sum_i w_i + sum_{i<j} r_ij <v_i, v_j>``.

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
    Pan et al. 2018, https://arxiv.org/abs/1806.03514
    """

    kind = "fwfm"
    has_weights = True

    def __init__(self, rows: Sequence[int], dim: Dim = 16, num_dense: int = 0, **rest: Any) -> None:
        super().__init__(rows, dim, num_dense, **rest)
        if self.num_fields < 2:
            raise ConfigError("FwFM: there is one field; it takes at least two, to make a pair")
        pairs = self.num_fields * (self.num_fields - 1) // 2
        self.pairs = nn.Linear(pairs, self.num_labels, bias=False)

    def forward(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        """(B, num_dense), (B, F, T + dim) -> (B, T)."""
        linear, vectors = self.first_order(dense, embedded)
        first, others = nn.op.split(vectors, [1], axis=1)
        first = nn.op.reshape(first, (dense.shape[0], self.dim))
        _, dots = nn.op.split(dot_interaction(first, others), [self.dim], axis=1)
        return linear + self.pairs(dots)
