# SPDX-License-Identifier: Apache-2.0
"""Multilayer perceptron: linear layers with ReLU, and dropout if wanted, between them."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.relax.frontend import nn

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
    """

    def __init__(
        self,
        widths: Sequence[int],
        *,
        last_relu: bool,
        dtype: str = "float32",
        dropout: float = 0.0,
    ) -> None:
        numbers = [require_int("MLP: each of widths", width) for width in widths]
        pairs = zip(numbers[:-1], numbers[1:], strict=True)
        self.layers = nn.ModuleList([nn.Linear(a, b, dtype=dtype) for a, b in pairs])
        self.last_relu = last_relu
        self.dropout = Dropout(dropout, relu=True)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """(B, widths[0]) -> (B, widths[-1])."""
        for position, layer in enumerate(self.layers, 1):
            x = layer(x)
            if position < len(self.layers):
                x = self.dropout(x)
            elif self.last_relu:
                x = nn.op.relu(x)
        return x
