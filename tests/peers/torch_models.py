# SPDX-License-Identifier: Apache-2.0
"""The models over fields in PyTorch, with weights by the names of `Trainer.state_dict`.

Equations are written on a dictionary of parameters, so that one class serves all models.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class TorchModel(nn.Module):
    """A model of some kind; parameters are copied from `state`.

    Parameters
    ----------
    kind : str
        As in `sparsetrain.models.MODELS`.
    state : mapping of str to ndarray
        From `Trainer.state_dict`.
    config : mapping
        From the model's `config`.
    """

    def __init__(self, kind: str, state: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        super().__init__()
        self.kind, self.settings, self.names = kind, config, {}
        for name, array in state.items():
            if ":" not in name:
                self.names[name] = name.replace(".", "/")
                tensor = torch.tensor(array)
                if "running_" in name:
                    self.register_buffer(self.names[name], tensor)
                else:
                    self.register_parameter(self.names[name], nn.Parameter(tensor))

    def __getitem__(self, name: str) -> torch.Tensor:
        return getattr(self, self.names[name])

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        bias = self[f"{name}.bias"] if f"{name}.bias" in self.names else None
        return F.linear(x, self[f"{name}.weight"], bias)

    def mlp(self, name: str, x: torch.Tensor, last_relu: bool = False) -> torch.Tensor:
        count = sum(n.startswith(f"{name}.layers.") and n.endswith("weight") for n in self.names)
        for layer in range(count):
            x = self.linear(f"{name}.layers.{layer}", x)
            norm = f"{name}.norms.{layer}"
            if f"{norm}.weight" in self.names:
                of = [self[f"{norm}.{each}"] for each in ("running_mean", "running_var")]
                affine = self[f"{norm}.weight"], self[f"{norm}.bias"]
                x = F.batch_norm(x, *of, *affine, training=self.training)
            if layer < count - 1:
                x = F.dropout(F.relu(x), self.settings.get("dropout", 0.0), self.training)
        return F.relu(x) if last_relu else x

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """(B, num_dense), (B, F) -> (B,)."""
        columns = zip(self.settings["names"], ids.T, strict=True)
        e = [F.embedding(column, self[f"embeddings.{n}.weight"]) for n, column in columns]
        if self.kind == "dlrm":
            x = self.mlp("bottom", dense, last_relu=True)
            return self.mlp("top", torch.cat([x, *e], dim=1))[:, 0]
        fields = torch.stack(e, dim=1)
        if "dense_fields" in self.names:
            fields = torch.cat([dense[:, :, None] * self["dense_fields"], fields], dim=1)
        total, vectors = torch.zeros(len(ids)), fields
        if "bias" in self.names:
            total, vectors = fields[:, :, 0].sum(1) + self["bias"], fields[:, :, 1:]
        x = vectors.flatten(1)
        if "mlp.layers.0.weight" in self.names and self.settings.get("structure") != "stacked":
            total = total + self.mlp("mlp", x)[:, 0]
        own = getattr(self, f"_{self.kind}", None)
        return total if own is None else total + own(vectors, x)

    def _fm(self, vectors: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (vectors.sum(1) ** 2 - (vectors**2).sum(1)).sum(1) / 2

    _deepfm = _fm

    def _fwfm(self, vectors: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        pairs = sorted(combinations(range(vectors.shape[1]), 2), key=lambda pair: pair[::-1])
        left, right = zip(*pairs, strict=True)
        dots = (vectors[:, list(left)] * vectors[:, list(right)]).sum(2)
        return self.linear("pairs", dots)[:, 0]

    def _dcn(self, vectors: torch.Tensor, x0: torch.Tensor) -> torch.Tensor:
        x = x0
        for layer in range(self.settings["cross_layers"]):
            x = x0 * self.linear(f"cross.{layer}.weight", x) + self[f"cross.{layer}.bias"] + x
        return self.linear("crossed", x)[:, 0]

    def _dcnv2(self, vectors: torch.Tensor, x0: torch.Tensor) -> torch.Tensor:
        x, experts = x0, self.settings["experts"]
        for layer in range(self.settings["cross_layers"]):
            name, mixed = f"cross.layers.{layer}", x
            if self.settings["cross_rank"] is not None:
                mixed = self.linear(f"{name}.v", x)
            if experts > 1:
                gates = F.softmax(self.linear(f"{name}.gate", x), dim=1)
                low = torch.tanh(mixed).reshape(len(x), experts, -1)
                low = torch.tanh(torch.einsum("bkr,krs->bks", low, self[f"{name}.c"]))
                mixed = (gates[:, :, None] * low).flatten(1)
            x = x0 * self.linear(f"{name}.w", mixed) + x
        if self.settings["structure"] == "stacked":
            return self.mlp("mlp", x)[:, 0]
        return self.linear("crossed", x)[:, 0]

    def _xdeepfm(self, vectors: torch.Tensor, x0: torch.Tensor) -> torch.Tensor:
        x, sums = vectors, []
        for layer, maps in enumerate(self.settings["cin"]):
            products = torch.einsum("bid,bjd->bdij", x, vectors).flatten(2)  # (B, D, H M)
            x = self.linear(f"network.layers.{layer}", products).transpose(1, 2)
            assert x.shape[1] == maps
            sums.append(x.sum(2))
        return self.linear("compressed", torch.cat(sums, dim=1))[:, 0]

    def _autoint(self, vectors: torch.Tensor, x0: torch.Tensor) -> torch.Tensor:
        x, heads = vectors, self.settings["heads"]
        for layer in range(self.settings["attention_layers"]):
            name = f"attention.{layer}"
            q, k, v = (
                self.linear(f"{name}.{each}", x).unflatten(2, (heads, -1)).transpose(1, 2)
                for each in ("query", "key", "value")
            )
            mixed = F.scaled_dot_product_attention(q, k, v, scale=1.0).transpose(1, 2).flatten(2)
            x = F.relu(mixed + self.linear(f"{name}.residual", x))
        return self.linear("attended", x.flatten(1))[:, 0]

    def _finalmlp(self, vectors: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        a, b = (self.mlp(name, x, last_relu=True) for name in ("first", "second"))
        heads = self.settings["heads"]
        split = (each.unflatten(1, (heads, -1)) for each in (a, b))
        both = torch.einsum("bhl,hlr,bhr->b", next(split), self["fusion.weight"], next(split))
        ends = self.linear("fusion.of_left", a) + self.linear("fusion.of_right", b)
        return ends[:, 0] + both


class TorchOfLabels(TorchModel):
    """MMoE and ESMM, whose logits are those of several labels, and DIN."""

    def forward(self, dense: torch.Tensor, ids: Any) -> torch.Tensor:
        """(B, num_dense), (B, F) -> (B, T); of DIN bags: the item of each row and its history."""
        if self.kind == "din":
            return self._din(*ids)
        columns = zip(self.settings["names"], ids.T, strict=True)
        e = [F.embedding(column, self[f"embeddings.{n}.weight"]) for n, column in columns]
        x = torch.cat([dense, *e], dim=1)
        return self._mmoe(x) if self.kind == "mmoe" else self._esmm(x)

    def _mmoe(self, x: torch.Tensor) -> torch.Tensor:
        count = self.settings["experts"]
        experts = [self.mlp(f"experts.{n}", x, last_relu=True) for n in range(count)]
        stacked, logits = torch.stack(experts, dim=1), []
        for label in range(2):
            shares = F.softmax(self.linear(f"gates.{label}", x), dim=1)
            logits.append(self.mlp(f"towers.{label}", (stacked * shares[:, :, None]).sum(1)))
        return torch.cat(logits, dim=1)

    def _esmm(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.mlp("click", x), self.mlp("conversion", x)
        whole = torch.logsumexp(torch.cat([a, b, torch.zeros_like(a)], dim=1), 1, keepdim=True)
        return torch.cat([a, a + b - whole], dim=1)

    def _din(self, items: Any, histories: Any) -> torch.Tensor:
        table, rows = self["item.weight"], torch.tensor(histories.rows())
        wanted, each = table[torch.tensor(items.ids)], table[torch.tensor(histories.ids)]
        one = wanted[rows]
        weights = self.mlp("attention", torch.cat([each, one, each - one, each * one], dim=1))
        interest = torch.zeros_like(wanted).index_add(0, rows, each * weights)
        return self.mlp("top", torch.cat([wanted, interest], dim=1))
