# SPDX-License-Identifier: Apache-2.0
"""FinalMLP: two MLPs, fused by a bilinear form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.relax.frontend import nn

from sparsetrain.errors import ConfigError
from sparsetrain.models.by_feature import Dim
from sparsetrain.models.field_model import FieldModel
from sparsetrain.models.layers import MLP
from sparsetrain.system.argument_checks import require_int


class BilinearFusion(nn.Module):
    """``w_1 a + w_2 b + c + sum_h a_h^T W_h b_h``, where a and b are cut into H heads.

    Parameters
    ----------
    left, right : int
        Widths of a and b, multiples of `heads`.
    out : int
        T, the width of the result.
    heads : int
        H, the number of heads.
    """

    def __init__(self, left: int, right: int, out: int, heads: int) -> None:
        numbers = {"left": left, "right": right, "out": out, "heads": heads}
        left, right, self.out, self.heads = (
            require_int(f"BilinearFusion: {name}", number) for name, number in numbers.items()
        )
        if left % heads or right % heads:
            raise ConfigError(f"heads is {heads}; it must divide both widths, {left} and {right}")
        self.left, self.right = left // heads, right // heads
        self.of_left = nn.Linear(left, out)
        self.of_right = nn.Linear(right, out, bias=False)
        self.weight = nn.Parameter((heads, self.left, self.right * out))

    def forward(self, a: nn.Tensor, b: nn.Tensor) -> nn.Tensor:
        """(B, left), (B, right) -> (B, T)."""
        rows, heads = a.shape[0], self.heads
        split = nn.op.permute_dims(nn.op.reshape(a, (rows, heads, self.left)), [1, 0, 2])
        mixed = nn.op.matmul(split, self.weight)  # (H, B, right / H * T)
        mixed = nn.op.reshape(mixed, (heads, rows, self.out, self.right))
        others = nn.op.permute_dims(nn.op.reshape(b, (rows, heads, self.right)), [1, 0, 2])
        others = nn.op.reshape(others, (heads, rows, 1, self.right))
        both = nn.op.sum(nn.op.sum(mixed * others, axis=3), axis=0)  # (B, T)
        return self.of_left(a) + self.of_right(b) + both


class FinalMLP(FieldModel):
    """FinalMLP: two MLPs over all fields, joined by a bilinear form per head, see `BilinearFusion`.

    ``logit = w_1 a + w_2 b + c + sum_h a_h^T W_h b_h``, ``a = MLP_1(x)``, ``b = MLP_2(x)``,
    ``x = [v_1, ..., v_M]``. The paper's optional feature selection by gates is left out.

    Parameters
    ----------
    rows, num_dense
        As in `ClickModel`.
    dim : int, or mapping from str to int
        Width of the vectors v, or widths by feature, as in `ClickModel`.
    hidden, hidden2 : sequence of int
        Layer widths of the first and of the second MLP.
    heads : int
        H, the number of heads, which divides the last width of both MLPs.
    dropout : float
        Dropout rate of both MLPs.
    batch_norm : bool
        Whether both MLPs have batch norm.
    **rest
        As in `ClickModel`.

    References
    ----------
    Mao et al. 2023, https://arxiv.org/abs/2304.00902
    """

    kind = "finalmlp"
    takes_any_width = True

    def __init__(
        self,
        rows: Sequence[int],
        dim: Dim = 16,
        hidden: Sequence[int] = (64, 64),
        hidden2: Sequence[int] = (64, 64),
        heads: int = 1,
        num_dense: int = 0,
        dropout: float = 0.0,
        batch_norm: bool = False,
        **rest: Any,
    ) -> None:
        super().__init__(rows, dim, num_dense, **rest)
        width, chosen = self.vectors_width, self._options
        if not (chosen["hidden"] and chosen["hidden2"]):
            raise ConfigError("FinalMLP: hidden and hidden2 need at least one width each")
        self.first, self.second = (
            MLP([width, *widths], last_relu=True, dropout=dropout, batch_norm=batch_norm)
            for widths in (chosen["hidden"], chosen["hidden2"])
        )
        ends = chosen["hidden"][-1], chosen["hidden2"][-1]
        self.fusion = BilinearFusion(*ends, self.num_labels, chosen["heads"])

    def forward(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        """(B, num_dense), (B, F, dim) -> (B, T)."""
        x = self.flat(self.fields(dense, embedded))
        return self.fusion(self.first(x), self.second(x))
