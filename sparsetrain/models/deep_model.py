# SPDX-License-Identifier: Apache-2.0
"""Base of the models over fields that have an MLP on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsetrain.models.field_model import FieldModel
from sparsetrain.models.mlp import MLP


class DeepModel(FieldModel):
    """Model over fields with an MLP, ``self.mlp``, from ``[v_1, ..., v_M]`` to the logits.

    Parameters
    ----------
    rows, num_dense
        As in `ClickModel`.
    dim : int
        Width of the vectors v.
    hidden : sequence of int
        Hidden widths of the MLP.
    dropout : float
        Rate of its dropout.
    batch_norm : bool
        Whether it has batch norm.
    **rest
        As in `ClickModel`.
    """

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
        super().__init__(rows, dim, num_dense, **rest)
        widths = [self.num_fields * self.dim, *self._options["hidden"], self.num_labels]
        self.mlp = MLP(widths, last_relu=False, dropout=dropout, batch_norm=batch_norm)
