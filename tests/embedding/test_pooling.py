# SPDX-License-Identifier: Apache-2.0
"""Bags of ids pooled by name, and the gradients of their tables."""

import numpy as np
import pytest
from tvm.relax import op
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain import ad
from sparsetrain.embedding import Embedding
from sparsetrain.errors import ConfigError
from sparsetrain.models import Model, Sequence
from sparsetrain.verify.widen import widen_function
from tests.helpers import UNOPTIMIZED

ENDS = np.array([3, 3, 4, 9])
POOLED = {"bag": ("sum", "mean", "sqrtn", "max"), "weighed": ("sum", "mean", "sqrtn")}


class Pools(Model):
    """The sum of all pooled numbers, each times its cosine."""

    def __init__(self):
        super().__init__()
        self.table = Embedding(7, 3)
        self.features = {"bag": Sequence("table"), "weighed": Sequence("table", weighted=True)}

    def loss(self, **bags):
        found = [self.table.pool(bags[name], by) for name in POOLED for by in POOLED[name]]
        y = nn.op.concat(found, dim=1)
        cosine = nn.wrap_nested(op.cos(y._expr), "cosine")
        return nn.wrap_nested(op.sum((y * cosine)._expr), "loss")


def pooled(table, ids, weights, by):
    rows = []
    for begin, end in zip([0, *ENDS], ENDS, strict=False):
        w = weights[begin:end, None]
        vectors = table[ids[begin:end]] * w
        divisor = {"mean": w.sum(), "sqrtn": np.sqrt((w * w).sum())}.get(by, 1.0) or 1.0
        top = vectors.max(axis=0, initial=-np.inf) if len(w) else np.zeros(3)
        rows.append(top if by == "max" else vectors.sum(axis=0) / divisor)
    return np.array(rows)


def test_pooled_bags_and_their_gradients_are_those_of_float64():
    rng = np.random.default_rng(0)
    widened = widen_function(Pools().export(), "loss")
    program = st.value_and_grad(widened, "loss", target=UNOPTIMIZED)
    table, ids = rng.normal(size=(7, 3)), rng.integers(0, 7, 9).astype(np.int32)
    weights = {"bag": np.ones(9), "weighed": rng.normal(size=9)}
    weights["weighed"][3] = 0  # the only one of its bag
    inputs = {name: ids for name in POOLED} | {f"{name}_ends": ENDS for name in POOLED}
    inputs["weighed_weights"] = weights["weighed"]
    params = {"table.weight": table}
    y = np.array([pooled(table, ids, weights[n], by) for n in POOLED for by in POOLED[n]])
    loss, _ = program(params, inputs)
    assert float(loss.numpy()) == pytest.approx((y * np.cos(y)).sum(), rel=1e-12)
    weights["weighed"][3] = 0.5  # at 0 the divisor is 1
    ad.check_grads(program, params, inputs)


class Refused(Model):
    """A table pooled in a way that there is not."""

    def __init__(self, by, weighted):
        super().__init__()
        self.table, self.by = Embedding(7, 1), by
        self.features = {"bag": Sequence("table", weighted=weighted)}
        self.labels = {"click": "binary"}

    def forward(self, bag):
        return self.table.pool(bag, self.by)


@pytest.mark.parametrize(
    ("by", "weighted", "message"),
    [
        ("median", False, "by must be 'sum', 'mean', 'sqrtn' or 'max', not 'median'"),
        ("max", True, "by='max' takes no weights"),
    ],
)
def test_other_pooling_is_refused(by, weighted, message):
    with pytest.raises(ConfigError, match=message):
        st.Trainer(Refused(by, weighted), st.optim.sgd(0.1))
