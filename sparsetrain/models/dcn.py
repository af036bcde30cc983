# SPDX-License-Identifier: Apache-2.0
"""Deep & Cross Networks, versions 1 and 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from tvm.relax.frontend import nn

from sparsetrain.errors import ConfigError
from sparsetrain.models.by_feature import Dim
from sparsetrain.models.field_model import DeepModel
from sparsetrain.models.interaction.cross import CrossNetwork, VectorCrossLayer


class DCN(DeepModel):
    """Deep & Cross: ``logit = MLP(x_0) + w x_L``, with ``x_{l+1} = x_0 (w_l x_l) + b_l + x_l``.

    ``x_0 = [v_1, ..., v_M]``, and ``w_l x_l`` is a scalar.

    Parameters
    ----------
    rows, dim
        As in `DeepModel`.
    cross_layers : int
        L, the number of cross layers.
    **rest
        As in `DeepModel`.

    References
    ----------
    Wang et al. 2017, https://arxiv.org/abs/1708.05123
    """

    kind = "dcn"
    takes_any_width = True

    def __init__(
        self,
        rows: Sequence[int],
        dim: Dim = 16,
        cross_layers: int = 3,
        **rest: Any,
    ) -> None:
        super().__init__(rows, dim, **rest)
        width = self.vectors_width
        layers = self._options["cross_layers"]
        self.cross = nn.ModuleList([VectorCrossLayer(width) for _ in range(layers)])
        self.crossed = nn.Linear(width, self.num_labels, bias=False)

    def forward(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        """(B, num_dense), (B, F, dim) -> (B, T)."""
        x = x0 = self.flat(self.fields(dense, embedded))
        for layer in self.cross:
            x = layer(x0, x)
        return self.mlp(x0) + self.crossed(x)


class DCNv2(DeepModel):
    """DCN V2: cross layers with a matrix, ``x_{l+1} = x_0 * (W_l x_l + b_l) + x_l``, and an MLP.

    ``x_0 = [v_1, ..., v_M]`` has N = M dim numbers. Parallel: ``logit = MLP(x_0) + w x_L``.
    Stacked: ``logit = MLP(x_L)``. With a rank r, ``W_l = U_l V_l`` is the product of (N, r) and (r,
    N); with K experts, ``W_l x_l + b_l`` becomes ``sum_k g_k U_k tanh(C_k tanh(V_k x_l)) + b_l``
    with ``g = softmax(G_l x_l)``.

    Parameters
    ----------
    rows, dim
        As in `DeepModel`.
    structure : {"parallel", "stacked"}
        How the cross layers and the MLP are combined.
    cross_layers : int
        L, the number of cross layers.
    cross_rank : int, optional
        r, the rank of the matrices; by default they are full.
    experts : int
        K, the number of experts; more than one needs a rank.
    **rest
        As in `DeepModel`.

    References
    ----------
    Wang et al. 2021, https://arxiv.org/abs/2008.13535
    """

    kind = "dcnv2"
    takes_any_width = True

    def __init__(
        self,
        rows: Sequence[int],
        dim: Dim = 16,
        structure: Literal["parallel", "stacked"] = "parallel",
        cross_layers: int = 3,
        cross_rank: int | None = None,
        experts: int = 1,
        **rest: Any,
    ) -> None:
        super().__init__(rows, dim, **rest)
        width, chosen = self.vectors_width, self._options
        if chosen["experts"] > 1 and cross_rank is None:
            raise ConfigError(
                "DCNv2: several experts need layers of low rank: give cross_rank as well"
            )
        self.cross = CrossNetwork(width, chosen["cross_layers"], cross_rank, chosen["experts"])
        if structure == "parallel":
            self.crossed = nn.Linear(width, self.num_labels, bias=False)

    def forward(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        """(B, num_dense), (B, F, dim) -> (B, T)."""
        x = self.flat(self.fields(dense, embedded))
        if self._options["structure"] == "stacked":
            return self.mlp(self.cross(x))
        return self.mlp(x) + self.crossed(self.cross(x))
