# SPDX-License-Identifier: Apache-2.0
"""The same DLRM in PyTorch, with `EmbeddingBag(sparse=True)` and weights copied in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsetrain.data import Batch

torch.sparse.check_sparse_tensor_invariants.enable()  # PyTorch warns unless this is decided

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.05, eps=1e-10),
    "adagrad that starts above 0": lambda params: torch.optim.Adagrad(
        params, lr=0.05, eps=1e-8, initial_accumulator_value=0.1
    ),
    "adagrad that starts at 1": lambda params: torch.optim.Adagrad(
        params, lr=0.02, eps=1e-8, initial_accumulator_value=1.0
    ),
}


class TorchDLRM(nn.Module):
    """A DLRM whose parameters start as those of a `sparsetrain.Trainer`.

    Parameters
    ----------
    state : mapping of str to ndarray
        From `Trainer.state_dict`.
    config : mapping
        From `DLRM.config`.
    """

    def __init__(self, state: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> None:
        super().__init__()
        self.bottom = _mlp(state, "bottom", len(config["bottom"]) + 1)
        self.bottom.append(nn.ReLU())
        self.cross = _cross(state, config.get("cross_layers") or 0)
        self.top = _mlp(state, "top", len(config["top"]) + 1)
        self.names = config["names"]
        mode = config["pooling"] or "sum"  # a single id is a bag of one
        self.tables = nn.ModuleList(
            _table(_tensor(state[f"embeddings.{name}.weight"]), mode) for name in self.names
        )

    def loss(self, batch: Batch) -> torch.Tensor:
        x = self.bottom(_tensor(batch.dense))  # (B, D)
        looked_up = [table(*bags) for table, bags in zip(self.tables, _bags(batch), strict=True)]
        vectors = torch.stack([x, *looked_up], dim=1)  # (B, F + 1, D)
        met = self._crossed(vectors) if self.cross else torch.cat([x, _pairs(vectors)], dim=1)
        logits = self.top(met)[:, 0]  # (B,)
        return nn.functional.binary_cross_entropy_with_logits(logits, _tensor(batch.labels))

    def _crossed(self, vectors: torch.Tensor) -> torch.Tensor:
        x = x0 = vectors.flatten(1)  # (B, (F + 1) D)
        for layer in self.cross:
            x = x0 * layer["w"](layer["v"](x)) + x
        return x

    def stepper(self, make: Callable[[Any], torch.optim.Optimizer]) -> Callable[[Batch], float]:
        """Return the function that trains on a batch and gives its loss."""
        optimizer = make(self.parameters())

        def step(batch: Batch) -> float:
            optimizer.zero_grad()
            loss = self.loss(batch)
            loss.backward()
            optimizer.step()
            return loss.item()

        return step

    def arrays(self) -> dict[str, np.ndarray]:
        """Weights under the names of `Trainer.state_dict`."""
        tables = zip(self.names, self.tables, strict=True)
        found = {f"embeddings.{name}.weight": table.weight for name, table in tables}
        for part in ("bottom", "top"):
            layers = [m for m in getattr(self, part) if isinstance(m, nn.Linear)]
            for index, layer in enumerate(layers):
                found[f"{part}.layers.{index}.weight"] = layer.weight
                found[f"{part}.layers.{index}.bias"] = layer.bias
        found |= {f"interaction.layers.{n}": p for n, p in self.cross.named_parameters()}
        return {name: tensor.detach().numpy() for name, tensor in found.items()}


def _pairs(vectors: torch.Tensor) -> torch.Tensor:
    gram = vectors @ vectors.transpose(1, 2)  # (B, F + 1, F + 1)
    rows, columns = torch.tril_indices(vectors.shape[1], vectors.shape[1], offset=-1)
    return gram[:, rows, columns]  # (B, F (F + 1) / 2)


def _cross(state: Mapping[str, np.ndarray], count: int) -> nn.ModuleList:
    layers = []
    for name in (f"interaction.layers.{n}" for n in range(count)):
        rank, width = state[f"{name}.v.weight"].shape
        layer = nn.ModuleDict(
            {"v": nn.Linear(width, rank, bias=False), "w": nn.Linear(rank, width)}
        )
        layer.load_state_dict({n: _tensor(state[f"{name}.{n}"]) for n in layer.state_dict()})
        layers.append(layer)
    return nn.ModuleList(layers)


def _mlp(state: Mapping[str, np.ndarray], prefix: str, count: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index in range(count):
        weight = _tensor(state[f"{prefix}.layers.{index}.weight"])
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data = weight
        layer.bias.data = _tensor(state[f"{prefix}.layers.{index}.bias"])
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _table(weight: torch.Tensor, mode: str) -> nn.EmbeddingBag:
    return nn.EmbeddingBag.from_pretrained(
        weight, freeze=False, mode=mode, sparse=True, include_last_offset=True
    )


def _bags(batch: Batch) -> list[tuple[torch.Tensor | None, ...]]:
    """Arguments of each table: ids, offsets, weights."""
    if isinstance(batch.ids, np.ndarray):
        offsets = torch.arange(len(batch) + 1)
        return [(_tensor(column), offsets, None) for column in batch.ids.T]
    return [
        (
            _tensor(bags.ids),
            _tensor(bags.offsets),
            None if bags.weights is None else _tensor(bags.weights),
        )
        for bags in batch.ids
    ]


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(array))  # a copy: ours are read-only or shared
