# SPDX-License-Identifier: Apache-2.0
"""The dense part of a DLRM in PyTorch, for the arms that differ in their embeddings."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from harness.configs import EPSILON, LEARNING_RATES, Config
from harness.weights import linear_layers


class DenseDLRM(nn.Module):
    """Bottom MLP, dot interaction and top MLP; embeddings come from outside."""

    pairs: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.bottom = _mlp(config.bottom_widths, "bottom", last_relu=True)
        self.top = _mlp(config.top_widths, "top", last_relu=False)
        vectors = config.features + 1
        rows, columns = torch.tril_indices(vectors, vectors, offset=-1)
        # One flat index: `index_select` has a faster derivative than indexing with two tensors.
        self.register_buffer("pairs", rows * vectors + columns)

    def forward(self, dense: Tensor, embeddings: Sequence[Tensor]) -> Tensor:
        """(B, 13) and tensors that hold (B, F * D) side by side -> (B,) logits."""
        x = self.bottom(dense)  # (B, D)
        vectors = torch.cat([x, *embeddings], dim=1).view(len(x), -1, x.shape[1])  # (B, F + 1, D)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        chosen = products.index_select(1, self.pairs)
        return self.top(torch.cat([x, chosen], dim=1)).squeeze(1)


def dense_optimizer(name: str, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """PyTorch's own; it has no row-wise Adagrad, so that one is Adagrad here."""
    if name == "sgd":
        return torch.optim.SGD(parameters, LEARNING_RATES[name])
    return torch.optim.Adagrad(parameters, LEARNING_RATES[name], eps=EPSILON)


def _mlp(widths: tuple[int, ...], name: str, last_relu: bool) -> nn.Sequential:
    modules: list[nn.Module] = []
    for weight, bias in linear_layers(widths, name):
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weight))
            linear.bias.copy_(torch.from_numpy(bias))
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*(modules if last_relu else modules[:-1]))
