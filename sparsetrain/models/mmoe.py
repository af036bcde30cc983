# SPDX-License-Identifier: Apache-2.0
"""MMoE: several labels, each from its own mixture of shared experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.relax.frontend import nn

from sparsetrain.models.arguments import check_widths
from sparsetrain.models.by_feature import Dim
from sparsetrain.models.click_model import ClickModel
from sparsetrain.models.interaction.cross import side_by_side
from sparsetrain.models.layers import MLP


class MMoE(ClickModel):
    """Multi-gate mixture of experts: ``y_t = tower_t(sum_i softmax(G_t x)_i expert_i(x))``.

    Ma et al. 2018, https://doi.org/10.1145/3219819.3220007.

    Parameters
    ----------
    rows, num_dense
        As in `ClickModel`.
    dim : int, or mapping from str to int
        Width of all tables, or of features by name, as in `ClickModel`.
    experts : int
        Number of experts.
    expert : sequence of int
        Widths of an expert's layers.
    tower : sequence of int
        Hidden widths of a tower; each label has a tower.
    **rest
        As in `ClickModel`.
    """

    kind = "mmoe"
    takes_any_width = True

    def __init__(
        self,
        rows: Sequence[int],
        dim: Dim = 16,
        num_dense: int = 0,
        experts: int = 4,
        expert: Sequence[int] = (64,),
        tower: Sequence[int] = (32,),
        **rest: Any,
    ) -> None:
        super().__init__(rows, dim, num_dense, **rest)
        widths = check_widths("MMoE", "expert", expert)
        inputs = self.flat_width
        each = [label.num_logits for label in self.all_labels.values()]
        self.experts = nn.ModuleList(
            [MLP([inputs, *widths], last_relu=True) for _ in range(experts)]
        )
        self.gates = nn.ModuleList([nn.Linear(inputs, experts, bias=False) for _ in each])
        self.towers = nn.ModuleList(
            [MLP([widths[-1], *tower, logits], last_relu=False) for logits in each]
        )

    def forward(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        """(B, num_dense) floats and (B, F, D) embeddings -> (B, S) logits."""
        x = side_by_side(dense, embedded)
        each = [expert(x) for expert in self.experts]
        rows = dense.shape[0]
        stacked = nn.op.reshape(nn.op.concat(each, dim=1), (rows, len(each), each[0].shape[1]))
        logits = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            shares = nn.op.reshape(nn.op.softmax(gate(x), axis=-1), (rows, len(each), 1))
            logits.append(tower(nn.op.sum(stacked * shares, axis=1)))
        return nn.op.concat(logits, dim=1)
