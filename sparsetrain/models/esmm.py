# SPDX-License-Identifier: Apache-2.0
"""ESMM: clicks and later conversions, both learnt from all impressions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax
from tvm.relax.frontend import nn

from sparsetrain.errors import ConfigError
from sparsetrain.models.arguments import check_widths
from sparsetrain.models.by_feature import Dim
from sparsetrain.models.click_model import ClickModel
from sparsetrain.models.interaction.cross import side_by_side
from sparsetrain.models.layers import MLP


class ESMM(ClickModel):
    """Entire space multi-task model: ``P(click) = s(a)``, ``P(click and conversion) = s(a) s(b)``.

    s is the sigmoid; a and b are the logits of two MLPs on the same embeddings. The second label's
    loss is the cross-entropy of the product, with the logit ``a + b - log(e^a + e^b + 1)`` (Ma et
    al. 2018, https://arxiv.org/abs/1804.07931).

    Parameters
    ----------
    rows, num_dense
        As in `ClickModel`.
    dim : int, or mapping from str to int
        Width of all tables, or of features by name, as in `ClickModel`.
    tower : sequence of int
        Hidden widths of both MLPs.
    dropout : float
        Dropout rate of both MLPs.
    **rest
        As in `ClickModel`; there are two binary labels, clicked and converted.
    """

    kind = "esmm"
    takes_any_width = True

    def __init__(
        self,
        rows: Sequence[int],
        dim: Dim = 16,
        num_dense: int = 0,
        tower: Sequence[int] = (64, 32),
        dropout: float = 0.0,
        **rest: Any,
    ) -> None:
        super().__init__(rows, dim, num_dense, **rest)
        labels = self.all_labels
        if len(labels) != 2 or not all(label.is_yes_or_no for label in labels.values()):
            raise ConfigError(
                "ESMM learns two labels of 0 and 1, clicked and converted; it has "
                f"{', '.join(labels)}"
            )
        widths = [self.flat_width, *check_widths("ESMM", "tower", tower), 1]
        self.click, self.conversion = (
            MLP(widths, last_relu=False, dropout=dropout) for _ in range(2)
        )

    def forward(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        """(B, num_dense) floats and (B, F, D) embeddings -> (B, 2) logits."""
        x = side_by_side(dense, embedded)
        a, b = self.click(x), self.conversion(x)
        logarithms = relax.op.nn.log_softmax(nn.op.concat([a, b, a * 0.0], dim=1)._expr, axis=1)
        _, _, last = nn.op.split(nn.wrap_nested(logarithms, "logarithms"), 3, axis=1)
        return nn.op.concat([a, a + b + last], dim=1)
