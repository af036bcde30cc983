# SPDX-License-Identifier: Apache-2.0
"""xDeepFM, and its compressed interaction network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.relax.frontend import nn

from sparsetrain.models.arguments import check_widths
from sparsetrain.models.by_feature import Dim
from sparsetrain.models.field_model import DeepModel
from sparsetrain.system.argument_checks import require_int


class CIN(nn.Module):
    """Compressed interaction network: feature maps from products of fields, column by column.

    ``x^k_{h,d} = sum_{i,j} W^k_{h,ij} x^{k-1}_{i,d} x^0_{j,d}`` for ``h < H_k``; the result is
    ``sum_d x^k_{h,d}`` of all layers k >= 1, concatenated. A layer multiplies a matrix (B D,
    H_{k-1} M) by a matrix (H_{k-1} M, H_k).

    Parameters
    ----------
    fields : int
        M, the number of fields.
    maps : sequence of int
        H_1, H_2, ..., the number of feature maps of each layer.
    """

    def __init__(self, fields: int, maps: Sequence[int]) -> None:
        fields = require_int("CIN: fields", fields)
        self.maps = check_widths("CIN", "maps", maps)
        heights = [fields, *self.maps]
        pairs = zip(heights[:-1], heights[1:], strict=True)
        self.layers = nn.ModuleList([nn.Linear(h * fields, out, bias=False) for h, out in pairs])

    def forward(self, vectors: nn.Tensor) -> nn.Tensor:
        """(B, M, D) -> (B, H_1 + H_2 + ...)."""
        batch, fields, dim = vectors.shape
        x0 = nn.op.permute_dims(vectors, [0, 2, 1])  # (B, D, M)
        right = nn.op.reshape(x0, (batch, dim, 1, fields))
        x, height, sums = x0, fields, []
        for layer, out in zip(self.layers, self.maps, strict=True):
            products = nn.op.reshape(x, (batch, dim, height, 1)) * right  # (B, D, H, M)
            x = layer(nn.op.reshape(products, (batch * dim, height * fields)))
            x, height = nn.op.reshape(x, (batch, dim, out)), out
            sums.append(nn.op.sum(x, axis=1))  # (B, H)
        return nn.op.concat(sums, dim=1)


class XDeepFM(DeepModel):
    """xDeepFM: ``logit = b + sum_i w_i + w CIN([v_1, ..., v_M]) + MLP([v_1, ..., v_M])``.

    Parameters
    ----------
    rows, dim
        As in `DeepModel`.
    cin : sequence of int
        Number of feature maps in each layer of the compressed interaction network, see `CIN`.
    **rest
        As in `DeepModel`.

    References
    ----------
    Lian et al. 2018, https://arxiv.org/abs/1803.05170
    """

    kind = "xdeepfm"
    has_weights = True

    def __init__(
        self,
        rows: Sequence[int],
        dim: Dim = 16,
        cin: Sequence[int] = (32, 32),
        **rest: Any,
    ) -> None:
        super().__init__(rows, dim, **rest)
        maps = self._options["cin"]
        self.network = CIN(self.num_fields, maps)
        self.compressed = nn.Linear(sum(maps), self.num_labels, bias=False)

    def forward(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        """(B, num_dense), (B, F, T + dim) -> (B, T)."""
        linear, vectors = self.first_order(dense, embedded)
        return linear + self.compressed(self.network(vectors)) + self.mlp(self.flat(vectors))
