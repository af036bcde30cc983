# SPDX-License-Identifier: Apache-2.0
"""PyTorch's arms of `sequences.py`: models of padded sequences, and DeepFM.

Sequences are padded to the longest of their batch. Optimizers are fused where gradients are dense;
where they are sparse, Adam is lazy, as ours is.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sequences import COLUMNS, HIDDEN, ITEMS, LENGTH, VALUES
from torch import Tensor, nn
from torch.nn import functional as F

DIM, ATTENTION, TOP = 16, 36, (200, 80)  # DIN's, and DeepFM's width


def peer(model: str, threads: int, compiled: bool) -> Callable[[Any], None]:
    """Return a step of PyTorch, eager or with its dense part compiled."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    made: Any = {"deepfm": DeepFM, "din": DIN}.get(model)
    net = Encoder(model == "sasrec") if made is None else made()
    optimizers = _optimizers(net, adam=made is None)
    if compiled:
        net.compile(dynamic=made is not DeepFM)
    loss_of = {"sasrec": _sasrec, "bert4rec": _bert4rec, "din": _din, "deepfm": _deepfm}[model]
    rng = np.random.default_rng(2)

    def step(batch: Any) -> None:
        loss = loss_of(net, batch, rng)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        loss.item()

    return step


def _optimizers(net: nn.Module, adam: bool) -> list[torch.optim.Optimizer]:
    """One of the tables whose gradients are sparse, if there are any, and one of the rest."""
    tables = [m.weight for m in net.modules() if isinstance(m, nn.Embedding) and m.sparse]
    others = [p for p in net.parameters() if all(p is not table for table in tables)]
    if adam:
        lazy = [torch.optim.SparseAdam(tables, 1e-3)] if tables else []
        return [*lazy, torch.optim.Adam(others, 1e-3, fused=True)]
    return [torch.optim.Adagrad(tables, 0.02), torch.optim.Adagrad(others, 0.02, fused=True)]


class Encoder(nn.Module):
    """A transformer over padded sequences of items: SASRec's if `causal`, else BERT4Rec's."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal, self.length = causal, LENGTH if causal else LENGTH + 1
        rate = 0.5 if causal else 0.2
        # With padding and a mask. BERT4Rec's softmax over all items has a dense gradient.
        self.item = nn.Embedding(ITEMS + 2, 50, padding_idx=0, sparse=causal)
        self.place, self.drop = nn.Embedding(self.length, 50), nn.Dropout(rate)
        layer = nn.TransformerEncoderLayer(
            50, 1 if causal else 2, 50, rate, "relu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(50)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, L) of at most `length` items -> (B, L, 50)."""
        steps = ids.shape[1]
        x = self.drop(self.item(ids) * 50**0.5 + self.place.weight[:steps])
        ones = torch.ones(steps, steps, dtype=torch.bool)
        hidden = torch.triu(ones, 1) if self.causal else None
        padded = None if self.causal else ids == 0  # rows are padded at the end: causal needs none
        return self.norm(self.encoder(x, mask=hidden, src_key_padding_mask=padded))


class DIN(nn.Module):
    """Deep interest network over padded histories."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(ITEMS + 1, DIM, sparse=True)
        self.attention = _mlp(4 * DIM, (ATTENTION,))
        self.top = _mlp(2 * DIM, TOP)

    def embed(self, history: Tensor, item: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.item(history), self.item(item), history != 0

    def forward(self, each: Tensor, wanted: Tensor, there: Tensor) -> Tensor:
        """(B, length, D), (B, D) and which items are not padding -> (B,) logits."""
        one = wanted[:, None].expand_as(each)
        weights = self.attention(torch.cat([each, one, each - one, each * one], dim=2))
        interest = (each * (weights * there[:, :, None])).sum(1)
        return self.top(torch.cat([wanted, interest], dim=1))[:, 0]


class DeepFM(nn.Module):
    """Weights and vectors of all columns in one table each, whose gradients are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(COLUMNS * VALUES, 1 + DIM, sparse=True)
        self.bias, self.mlp = nn.Parameter(torch.zeros(1)), _mlp(COLUMNS * DIM, HIDDEN)
        self.register_buffer("first", torch.arange(COLUMNS) * VALUES)

    def embed(self, ids: Tensor) -> Tensor:
        return self.table(ids + self.first)

    def forward(self, fields: Tensor) -> Tensor:
        """(B, F, 1 + D) -> (B,) logits."""
        linear, vectors = fields[:, :, 0].sum(1) + self.bias, fields[:, :, 1:]
        pairs = (vectors.sum(1) ** 2 - (vectors**2).sum(1)).sum(1) / 2
        return linear + pairs + self.mlp(vectors.flatten(1))[:, 0]


def _mlp(width: int, hidden: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in zip((width, *hidden), hidden, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], 1))


def _padded(parts: list[np.ndarray]) -> np.ndarray:
    out = np.zeros((len(parts), max(map(len, parts))), np.int64)
    for row, ids in zip(out, parts, strict=True):
        row[: len(ids)] = ids
    return out


def _sasrec(net: Any, users: list[np.ndarray], rng: np.random.Generator) -> Tensor:
    ends = [ids[:-1] for ids in users], [ids[1:] for ids in users]
    history, wanted = (torch.from_numpy(_padded(part)) for part in ends)
    negative = torch.from_numpy(rng.integers(1, ITEMS + 1, history.shape))
    x = net(history)
    yes, no = ((x * net.item(ids)).sum(-1)[wanted != 0] for ids in (wanted, negative))
    loss = F.binary_cross_entropy_with_logits
    return loss(yes, torch.ones_like(yes)) + loss(no, torch.zeros_like(no))


def _bert4rec(net: Any, users: list[np.ndarray], rng: np.random.Generator) -> Tensor:
    ids = _padded(users)
    chosen = (rng.random(ids.shape) < 0.2) & (ids != 0)
    x = net(torch.from_numpy(np.where(chosen, ITEMS + 1, ids)))[torch.from_numpy(chosen)]
    return F.cross_entropy(x @ net.item.weight.T, torch.from_numpy(ids[chosen]))


def _din(net: Any, batch: Any, rng: np.random.Generator) -> Tensor:
    users, clicks = batch
    history = torch.from_numpy(_padded([ids[:-1] for ids in users]))
    item = torch.from_numpy(np.array([ids[-1] for ids in users]))
    logits = net(*net.embed(history, item))
    return F.binary_cross_entropy_with_logits(logits, torch.from_numpy(clicks))


def _deepfm(net: Any, batch: Any, rng: np.random.Generator) -> Tensor:
    ids, clicks = (torch.from_numpy(array) for array in batch)
    return F.binary_cross_entropy_with_logits(net(net.embed(ids)), clicks)
