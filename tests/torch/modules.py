# SPDX-License-Identifier: Apache-2.0
"""Modules as PyTorch's users write them, each with a batch and a loss."""

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

ROWS, DIM, LENGTH, BATCH = 40, 8, 6, 12


class Case(NamedTuple):
    """A module, what its inputs and labels are, and the loss of its result."""

    make: type
    draw: object  # -> inputs
    label: object  # -> labels
    loss: object
    densify: tuple = ()


class BagMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.EmbeddingBag(ROWS, DIM, mode="mean")
        self.words = nn.EmbeddingBag(ROWS, DIM, mode="sum")
        self.mlp = nn.Sequential(nn.Linear(2 * DIM + 3, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense, ids, words, offsets):
        both = [dense, self.bags(ids), self.words(words, offsets)]
        return self.mlp(torch.cat(both, 1)).squeeze(1)


class DeepFM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(ROWS, DIM) for _ in range(4))
        self.wide = nn.ModuleList(nn.Embedding(ROWS, 1) for _ in range(4))
        self.deep = nn.Sequential(
            nn.Linear(4 * DIM, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 1)
        )

    def forward(self, ids):
        rows = torch.stack([table(ids[:, f]) for f, table in enumerate(self.tables)], 1)
        wide = sum(table(ids[:, f]) for f, table in enumerate(self.wide))
        pairs = 0.5 * (rows.sum(1).pow(2) - rows.pow(2).sum(1)).sum(1, keepdim=True)
        return (wide + pairs + self.deep(rows.flatten(1))).squeeze(-1)


class DIN(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ROWS, DIM, padding_idx=0)
        self.score = nn.Sequential(nn.Linear(4 * DIM, 8), nn.Sigmoid(), nn.Linear(8, 1))
        self.top = nn.Sequential(nn.Linear(2 * DIM, 8), nn.PReLU(), nn.Linear(8, 1))

    def forward(self, item, seen):
        wanted, rows = self.items(item), self.items(seen)
        one = wanted.unsqueeze(1).expand(-1, seen.shape[1], -1)
        scores = self.score(torch.cat([rows, one, rows - one, rows * one], -1)).squeeze(-1)
        shares = scores.masked_fill(seen == 0, -1e9).softmax(-1)
        interest = (shares.unsqueeze(-1) * rows).sum(1)
        return self.top(torch.cat([wanted, interest], -1)).squeeze(-1)


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(ROWS, DIM), nn.Embedding(ROWS, DIM)
        self.of_user, self.of_item = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, user, item):
        u = functional.normalize(self.of_user(self.users(user)), dim=-1)
        v = functional.normalize(self.of_item(self.items(item)), dim=-1)
        return u @ v.T / 0.1


class SASRec(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.items = nn.Embedding(ROWS, DIM, padding_idx=0)
        self.places = nn.Embedding(LENGTH, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 2, 16, dropout, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, seen, positive, negative):
        x = self.items(seen) + self.places(torch.arange(seen.shape[1]))
        x = self.blocks(x, mask=self.causal, is_causal=True)
        scores = [(x * self.items(of)).sum(-1) for of in (positive, negative)]
        return torch.stack(scores, -1)


class BERT4Rec(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.items = nn.Embedding(ROWS, DIM)
        self.places = nn.Parameter(torch.randn(LENGTH, DIM))
        self.norm = nn.LayerNorm(DIM)
        layer = nn.TransformerEncoderLayer(
            DIM, 2, 16, dropout, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.bias = nn.Parameter(torch.zeros(ROWS))

    def forward(self, seen):
        x = self.blocks(self.norm(self.items(seen) + self.places))
        return (x @ self.items.weight.T + self.bias).transpose(1, 2)


class GRU4Rec(nn.Module):
    def __init__(self, kind=nn.GRU):
        super().__init__()
        self.items = nn.Embedding(ROWS, DIM)
        self.states = kind(DIM, DIM, batch_first=True)

    def forward(self, seen, wanted):
        return (self.states(self.items(seen))[0][:, -1] * self.items(wanted)).sum(1)


class LSTM4Rec(GRU4Rec):
    def __init__(self):
        super().__init__(nn.LSTM)


class Caser(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ROWS, DIM)
        self.near = nn.Conv1d(DIM, DIM, 3, padding=1)
        self.far = nn.Conv1d(DIM, DIM, 2, stride=2, dilation=2, bias=False)
        self.top = nn.Linear(3 * DIM, 1)

    def forward(self, seen):
        x = self.items(seen).transpose(1, 2)
        near, far = self.near(x), self.far(x)
        return self.top(torch.cat([near.amax(-1), far.max(-1).values, x[:, :, -1]], 1))[:, 0]


def ids(*shape, least=0):
    return lambda: torch.randint(least, ROWS, shape)


def each(*draws):
    return lambda: tuple(draw() for draw in draws)


def bags():
    offsets = torch.sort(torch.randint(0, 3 * BATCH, (BATCH,))).values
    offsets[0] = 0
    return torch.randn(BATCH, 3), ids(BATCH, 4)(), ids(3 * BATCH)(), offsets


def clicks():
    return (torch.rand(BATCH) < 0.3).float()


def of_pair(scores, _labels):
    return functional.softplus(-scores[..., 0]).mean() + functional.softplus(scores[..., 1]).mean()


BCE = functional.binary_cross_entropy_with_logits
CASES = {
    "MLP with bags": Case(BagMLP, bags, clicks, BCE),
    "DeepFM": Case(DeepFM, each(ids(BATCH, 4)), clicks, BCE),
    "DIN": Case(DIN, each(ids(BATCH), ids(BATCH, LENGTH)), clicks, BCE),
    "GRU4Rec": Case(GRU4Rec, each(ids(BATCH, LENGTH), ids(BATCH)), clicks, BCE),
    "LSTM": Case(LSTM4Rec, each(ids(BATCH, LENGTH), ids(BATCH)), clicks, BCE),
    "convolutions": Case(Caser, each(ids(BATCH, LENGTH)), clicks, BCE),
    "two towers": Case(
        TwoTowers,
        each(ids(BATCH), ids(BATCH)),
        lambda: torch.arange(BATCH),
        functional.cross_entropy,
    ),
    "SASRec": Case(
        SASRec, each(*[ids(BATCH, LENGTH, least=1)] * 3), lambda: torch.zeros(BATCH), of_pair
    ),
    "BERT4Rec": Case(
        BERT4Rec,
        each(ids(BATCH, LENGTH)),
        ids(BATCH, LENGTH),
        functional.cross_entropy,
        ("items.weight",),
    ),
}
