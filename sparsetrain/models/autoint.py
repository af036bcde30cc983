# SPDX-License-Identifier: Apache-2.0
"""AutoInt, and its self-attention over fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.relax.frontend import nn

from sparsetrain.models.by_feature import Dim
from sparsetrain.models.field_model import DeepModel
from sparsetrain.system.argument_checks import require_int


class FieldAttention(nn.Module):
    """Multi-head self-attention over the fields of a row, with a residual and ReLU.

    ``y = relu([softmax(Q_h K_h^T) V_h for all heads h] + x R)`` with ``Q_h = x W_h`` and so on; the
    dot products are not scaled.

    Parameters
    ----------
    dim : int
        D, width of a field's vector.
    width : int
        Width of a head.
    heads : int
        H, the number of heads.
    """

    def __init__(self, dim: int, width: int, heads: int) -> None:
        numbers = {"dim": dim, "width": width, "heads": heads}
        dim, self.width, self.heads = (
            require_int(f"FieldAttention: {name}", number) for name, number in numbers.items()
        )
        out = self.width * self.heads
        self.query, self.key, self.value, self.residual = (
            nn.Linear(dim, out, bias=False) for _ in range(4)
        )

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """(B, M, D) -> (B, M, H width)."""
        batch, fields, dim = x.shape
        flat = nn.op.reshape(x, (batch * fields, dim))
        split = (batch, fields, self.heads, self.width)
        query, key, value = (
            nn.op.reshape(layer(flat), split) for layer in (self.query, self.key, self.value)
        )
        mixed = nn.op.scaled_dot_product_attention(query, key, value, scale=1.0)
        joined = nn.op.reshape(mixed, (batch * fields, self.heads * self.width))
        y = nn.op.relu(joined + self.residual(flat))
        return nn.op.reshape(y, (batch, fields, self.heads * self.width))


class AutoInt(DeepModel):
    """AutoInt: ``logit = w x_L + b + MLP(x_0)``, ``x_{l+1}`` the self-attention over fields of x_l.

    ``x_0`` holds the vectors v of all fields.

    Parameters
    ----------
    rows, dim
        As in `DeepModel`.
    attention_layers : int
        L, the number of attention layers.
    attention_width : int
        Width of a head.
    heads : int
        Number of heads in each layer, see `FieldAttention`.
    **rest
        As in `DeepModel`.

    References
    ----------
    Song et al. 2019, https://arxiv.org/abs/1810.11921
    """

    kind = "autoint"

    def __init__(
        self,
        rows: Sequence[int],
        dim: Dim = 16,
        attention_layers: int = 2,
        attention_width: int = 16,
        heads: int = 2,
        **rest: Any,
    ) -> None:
        super().__init__(rows, dim, **rest)
        out = attention_width * heads
        widths = [self.dim, *[out] * attention_layers]
        self.attention = nn.ModuleList(
            [FieldAttention(width, attention_width, heads) for width in widths[:-1]]
        )
        self.attended = nn.Linear(self.num_fields * out, self.num_labels)

    def forward(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        """(B, num_dense), (B, F, dim) -> (B, T)."""
        x = x0 = self.fields(dense, embedded)
        for layer in self.attention:
            x = layer(x)
        out = self._options["attention_width"] * self._options["heads"]
        logits = self.attended(nn.op.reshape(x, (dense.shape[0], self.num_fields * out)))
        return logits + self.mlp(self.flat(x0))
