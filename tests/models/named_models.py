# SPDX-License-Identifier: Apache-2.0
"""Models of the field as subclasses of `Model`, each in some twenty lines."""

import numpy as np
from tvm.relax.frontend import nn

from sparsetrain.data import Ragged
from sparsetrain.embedding import Embedding
from sparsetrain.models import (
    MLP,
    Ids,
    Model,
    Places,
    Positions,
    Sequence,
    TransformerBlock,
    losses,
)

ITEMS = 40


def dot(a, b):
    return nn.op.sum(a * b, axis=-1)


def column(x):
    return nn.op.reshape(x, (x.shape[0], 1))


class DIN(Model):
    """Zhou et al. 2018, arXiv:1706.06978."""

    def __init__(self, users, items, dim=8, length=20):
        super().__init__()
        self.user, self.item = Embedding(users, dim), Embedding(items, dim)
        self.relevance = MLP([4 * dim, 8, 1], last_relu=False)
        self.top = MLP([3 * dim, 16, 1], last_relu=False)
        self.features = {
            "user": Ids("user"),
            "item": Ids("item"),
            "history": Sequence("item", length),
        }
        self.labels = {"click": "binary"}

    def forward(self, user, item, history):
        wanted, seen = self.item(item), self.item(history)
        one, each = seen.expand(wanted), seen.values
        weights = self.relevance(nn.op.concat([each, one, each - one, each * one], dim=1))
        interest = seen.replace(each * weights).sum()
        return self.top(nn.op.concat([self.user(user), wanted, interest], dim=1))


class MMoE(Model):
    """Ma et al. 2018, https://doi.org/10.1145/3219819.3220007."""

    def __init__(self, users, items, dim=8, experts=3):
        super().__init__()
        self.user, self.item = Embedding(users, dim), Embedding(items, dim)
        self.experts = nn.ModuleList([MLP([2 * dim, 8], last_relu=True) for _ in range(experts)])
        self.gates = nn.ModuleList([nn.Linear(2 * dim, experts) for _ in range(2)])
        self.towers = nn.ModuleList([MLP([8, 1], last_relu=False) for _ in range(2)])
        self.features = {"user": Ids("user"), "item": Ids("item")}
        self.labels = {"click": "binary", "stars": "real"}

    def forward(self, user, item):
        x = nn.op.concat([self.user(user), self.item(item)], dim=1)
        each = [nn.op.reshape(expert(x), (x.shape[0], 1, 8)) for expert in self.experts]
        mixed = nn.op.concat(each, dim=1)
        logits = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            shares = nn.op.reshape(nn.op.softmax(gate(x)), (x.shape[0], len(each), 1))
            logits.append(tower(nn.op.sum(mixed * shares, axis=1)))
        return nn.op.concat(logits, dim=1)


class TwoTowers(Model):
    """Yi et al. 2019, https://doi.org/10.1145/3298689.3346996, without sampling correction."""

    target, seen = "item", "history"

    def __init__(self, users, items, dim=8):
        super().__init__()
        self.user, self.item = Embedding(users, dim), Embedding(items, dim)
        self.of_user, self.of_item = nn.Linear(2 * dim, dim), nn.Linear(dim, dim)
        self.features = {"user": Ids("user"), "history": Sequence("item"), "item": Ids("item")}

    def query(self, user, history):
        recent = self.item.pool(history, "mean")
        return self.of_user(nn.op.concat([self.user(user), recent], dim=1))

    def items(self):
        return self.of_item(self.item.weight)

    def loss(self, user, history, item):
        vectors = self.of_item(self.item(item))
        return losses.mean(losses.in_batch_softmax(self.query(user, history), vectors, ids=item))


class MatrixFactorization(Model):
    """Rendle et al. 2009, arXiv:1205.2618."""

    target = "item"
    prepared = {"negative": Ids("item")}

    def __init__(self, users, items, dim=8):
        super().__init__()
        self.user, self.item = Embedding(users, dim), Embedding(items, dim)
        self.features = {"user": Ids("user"), "item": Ids("item")}

    def prepare(self, features, draws):
        return {"negative": draws.integers("negative", self.item.rows, like=features["item"])}

    def query(self, user):
        return self.user(user)

    def items(self):
        return self.item.weight

    def loss(self, user, item, negative):
        one = self.user(user)
        return losses.mean(losses.bpr(dot(one, self.item(item)), dot(one, self.item(negative))))


class Ratings(Model):
    """Biased matrix factorisation, Koren et al. 2009, https://doi.org/10.1109/MC.2009.263."""

    def __init__(self, users, items, dim=8):
        super().__init__()
        self.user, self.item = Embedding(users, dim), Embedding(items, dim)
        self.user_bias, self.item_bias = Embedding(users, 1), Embedding(items, 1)
        self.mean = nn.Parameter((1,), "float32")
        self.features = {"user": Ids("user"), "item": Ids("item")}
        self.labels = {"stars": "real"}

    def forward(self, user, item):
        fit = column(dot(self.user(user), self.item(item)))
        return fit + self.user_bias(user) + self.item_bias(item) + self.mean


class SASRec(Model):
    """Kang and McAuley 2018, arXiv:1808.09781."""

    target, seen = "item", "history"
    prepared = {name: Sequence("item", like="history") for name in ("wanted", "negative")}

    def __init__(self, items, dim=8, blocks=2, length=20, dropout=0.2):
        super().__init__()
        self.item, self.positions = Embedding(items, dim, deviation=0.1), Positions(length, dim)
        self.blocks = nn.ModuleList(
            [TransformerBlock(dim, causal=True, dropout=dropout) for _ in range(blocks)]
        )
        self.norm = nn.LayerNorm(dim)
        self.features = {"history": Sequence("item", length), "item": Ids("item")}

    def prepare(self, features, draws):
        history = features["history"].append(features["item"])
        wanted = history.without_first()
        negative = draws.integers("negative", self.item.rows, like=wanted)
        return {"history": history.without_last(), "wanted": wanted, "negative": negative}

    def encode(self, history):
        x = self.positions(self.item(history))
        for block in self.blocks:
            x = block(x)
        return x.map(self.norm)

    def query(self, history):
        return self.encode(history).last()

    def items(self):
        return self.item.weight

    def loss(self, history, wanted, negative):
        x = self.encode(history).values
        yes, no = dot(x, self.item(wanted.values)), dot(x, self.item(negative.values))
        each = losses.binary_cross_entropy(yes, 1.0) + losses.binary_cross_entropy(no, 0.0)
        return losses.mean(each)


class BERT4Rec(Model):
    """Sun et al. 2019, arXiv:1904.06690; the row behind the items stands for a masked one."""

    target, seen = "item", "history"
    densify = ("item.weight",)
    prepared = {
        "history": Sequence("item"),
        "places": Places(),
        "wanted": Sequence("item", like="places"),
    }

    def __init__(self, items, dim=8, blocks=2, heads=2, length=20, dropout=0.1):
        super().__init__()
        self.mask = items
        self.item, self.positions = Embedding(items + 1, dim), Positions(length + 1, dim)
        self.blocks = nn.ModuleList(
            [TransformerBlock(dim, heads, dropout=dropout) for _ in range(blocks)]
        )
        self.norm = nn.LayerNorm(dim)
        self.features = {"history": Sequence("item", length), "item": Ids("item")}

    def prepare(self, features, draws):
        history = features["history"].append(features["item"])
        masked = draws.uniform("mask", like=history).ids < 0.2
        places = history.where(masked)
        hidden = Ragged(np.where(masked, self.mask, history.ids), history.offsets)
        return {"history": hidden, "places": places, "wanted": history.at(places)}

    def prepare_scores(self, features):
        return {"history": features["history"].append(self.mask)}

    def encode(self, history):
        x = self.positions(self.item(history))
        for block in self.blocks:
            x = block(x)
        return x.map(self.norm)

    def query(self, history):
        return self.encode(history).last()

    def items(self):
        return self.item.weight

    def loss(self, history, places, wanted):
        hidden = self.encode(history).take(places).values
        return losses.mean(losses.full_softmax(hidden, self.item.weight, wanted.values))
