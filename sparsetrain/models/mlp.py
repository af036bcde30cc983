# SPDX-License-Identifier: Apache-2.0
"""Multilayer perceptron: linear layers with ReLU between, and batch norm and dropout if wanted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from tvm.relax.frontend import nn

from sparsetrain.models.batch_norm import BatchNorm
from sparsetrain.models.dropout import Dropout
from sparsetrain.system.argument_checks import require_int


class MLP(nn.Module):
    """Linear layers of the given widths.

    Parameters
    ----------
    widths : sequence of int
        Input width, then the width of each layer's result.
    last_relu : bool
        Apply ReLU after the last layer too.
    dtype : str
        Dtype of weights and biases.
    dropout : float
        Rate after each ReLU between two layers.
    batch_norm : bool
        Normalize before each ReLU between two layers, see `BatchNorm`.
    """

    def __init__(
        self,
        widths: Sequence[int],
        *,
        last_relu: bool,
        dtype: str = "float32",
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        numbers = [require_int("MLP: each of widths", width) for width in widths]
        pairs = zip(numbers[:-1], numbers[1:], strict=True)
        self.layers = nn.ModuleList([nn.Linear(a, b, dtype=dtype) for a, b in pairs])
        inner = numbers[1:-1] if batch_norm else ()
        self.norms = nn.ModuleList([BatchNorm(width) for width in inner])
        self.last_relu = last_relu
        self.dropout = Dropout(dropout, relu=True)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """(B, widths[0]) -> (B, widths[-1])."""
        *inner, last = self.layers
        for layer, norm in zip_longest(inner, self.norms):
            x = layer(x)
            x = self.dropout(x if norm is None else norm(x))
        x = last(x)
        return nn.op.relu(x) if self.last_relu else x
