# SPDX-License-Identifier: Apache-2.0
"""The dense part of a DLRM in PyTorch, for the arms that differ in their embeddings."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from harness.configs import EPSILON, LEARNING_RATES, Config
from harness.weights import cross_layers, linear_layers


class DenseDLRM(nn.Module):
    """Bottom MLP, interaction and top MLP; embeddings come from outside."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.bottom = _mlp(config.bottom_widths, "bottom", last_relu=True)
        self.interaction = CrossLayers(config) if config.cross_layers else Pairs(config)
        self.top = _mlp(config.top_widths, "top", last_relu=False)

    def forward(self, dense: Tensor, embeddings: Sequence[Tensor]) -> Tensor:
        """(B, 13) and tensors that hold (B, F * D) side by side -> (B,) logits."""
        x = self.bottom(dense)  # (B, D)
        together = torch.cat([x, *embeddings], dim=1)  # (B, (F + 1) * D)
        return self.top(self.interaction(x, together)).squeeze(1)


class Pairs(nn.Module):
    """The dot interaction."""

    places: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        vectors = config.features + 1
        rows, columns = torch.tril_indices(vectors, vectors, offset=-1)
        # One flat index: `index_select` has a faster derivative than indexing with two tensors.
        self.register_buffer("places", rows * vectors + columns)

    def forward(self, x: Tensor, together: Tensor) -> Tensor:
        """(B, D), (B, (F + 1) * D) -> (B, D + F * (F + 1) / 2)."""
        vectors = together.view(len(x), -1, x.shape[1])  # (B, F + 1, D)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return torch.cat([x, products.index_select(1, self.places)], dim=1)


class CrossLayers(nn.Module):
    """The cross interaction, as TorchRec's `LowRankCrossNet` computes it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        layers = cross_layers(config)
        self.v = nn.ModuleList(_linear(v, None) for v, _, _ in layers)
        self.w = nn.ModuleList(_linear(w, bias) for _, w, bias in layers)

    def forward(self, x: Tensor, together: Tensor) -> Tensor:
        """(B, D), (B, (F + 1) * D) -> (B, (F + 1) * D)."""
        x = together
        for v, w in zip(self.v, self.w, strict=True):
            x = torch.addcmul(x, together, w(v(x)))
        return x


def make_optimizer(
    name: str, parameters: list[nn.Parameter], *, fused: bool = False
) -> torch.optim.Optimizer:
    """PyTorch's own; it has no row-wise Adagrad, so that one is Adagrad here.

    `fused` is for dense gradients.
    """
    if name == "sgd":
        return torch.optim.SGD(parameters, LEARNING_RATES[name], fused=fused)
    return torch.optim.Adagrad(parameters, LEARNING_RATES[name], eps=EPSILON, fused=fused)


def _mlp(widths: tuple[int, ...], name: str, last_relu: bool) -> nn.Sequential:
    modules: list[nn.Module] = []
    for weight, bias in linear_layers(widths, name):
        modules += [_linear(weight, bias), nn.ReLU()]
    return nn.Sequential(*(modules if last_relu else modules[:-1]))


def _linear(weight: np.ndarray, bias: np.ndarray | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(weight))
        if bias is not None:
            linear.bias.copy_(torch.from_numpy(bias))
    return linear
