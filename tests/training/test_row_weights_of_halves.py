# SPDX-License-Identifier: Apache-2.0
"""Weights of rows and of ids where tables are stored in half precision, against float64.

A step reads the stored numbers exactly and computes in float32, whose errors are bounded here from
its unit roundoff. Then it rounds each number by chance to a neighbour in the table's format, which
is less than a step of that format away.
"""

from typing import NamedTuple

import numpy as np
import pytest
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain.data import Batch, Ragged
from tests import small_dlrm
from tests.helpers import slow_except
from tests.small_dlrm import assert_same_state

ROUNDOFF = 2.0**-24  # of float32
# Format -> mantissa bits, exponent of the smallest normal number.
FORMATS = {"float32": (23, -126), "bfloat16": (7, -126), "float16": (10, -14)}
SIZE, DIM, START = 48, 8, 0.1


class Linear(st.models.ClickModel):
    """One linear layer over all features and embeddings, so that gradients can be written down."""

    def __init__(self, rows, dim=DIM, num_dense=13, **rest):
        super().__init__(rows, dim, num_dense, **rest)
        self.last = nn.Linear(num_dense + len(rows) * dim, 1)

    def forward(self, dense, embedded):
        flat = nn.op.reshape(embedded, (dense.shape[0], -1))  # (B, F * D)
        return self.last(nn.op.concat([dense, flat], dim=1))


class Bounded(NamedTuple):
    """Numbers in float64, and how far those of float32 may be from them."""

    value: np.ndarray
    error: np.ndarray


def gamma(count: int) -> float:
    """The relative error of a sum of so many float32 numbers, in any order (Higham)."""
    return count * ROUNDOFF / (1 - count * ROUNDOFF)


def spacing(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """From a number to the next in a format."""
    mantissa, smallest = FORMATS[dtype]
    exponent = np.frexp(np.maximum(np.abs(numbers), 1e-300))[1] - 1
    return np.exp2(np.maximum(exponent, smallest) - mantissa)


def made(dtype: str, kind: str, optimizer: st.optim.Optimizer, **options) -> st.Trainer:
    given = {**small_dlrm.KINDS[kind], "table_dtype": dtype}
    return st.Trainer(Linear(small_dlrm.ROWS, row_weights=True, **given), optimizer, **options)


def drawn(kind: str, weights: np.ndarray | None = None) -> Batch:
    batch = small_dlrm.batch(SIZE, seed=1, kind=kind)
    if weights is None:
        weights = np.random.default_rng(2).gamma(1.0, size=SIZE)
        weights[::7] = 0
    return Batch(batch.dense, batch.ids, batch.labels, np.asarray(weights, np.float32))


def shares(batch: Batch, feature: int, rows: int, kind: str) -> np.ndarray:
    """(B, V): by what each row of the batch multiplies each row of a table."""
    found, ids = np.zeros((SIZE, rows)), batch.ids
    if not isinstance(ids, tuple):
        found[np.arange(SIZE), ids[:, feature]] = 1
        return found
    bags: Ragged = ids[feature]
    lengths = np.diff(bags.offsets)
    owner = np.repeat(np.arange(SIZE), lengths)
    each = np.ones(len(bags.ids)) if bags.weights is None else bags.weights.astype("f8")
    each = each / lengths[owner] if kind == "mean" else each
    np.add.at(found, (owner, bags.ids), each)
    return found


def oracle(state: dict[str, np.ndarray], batch: Batch, kind: str) -> tuple:
    """Loss, and for each table its gradient."""
    tables = [state[f"embeddings.C{n}.weight"].astype("f8") for n in (1, 2, 3)]
    of = [shares(batch, n, len(table), kind) for n, table in enumerate(tables)]
    weight, bias = state["last.weight"][0].astype("f8"), state["last.bias"].astype("f8")
    x = np.hstack([batch.dense, *(share @ table for share, table in zip(of, tables, strict=True))])
    sizes = [np.abs(share) @ np.abs(table) for share, table in zip(of, tables, strict=True)]
    z = x @ weight + bias
    # A bag of at most 5 entries, then a product and a sum of all columns and the bias.
    terms = np.hstack([np.abs(batch.dense), *sizes]) @ np.abs(weight) + np.abs(bias)
    off = gamma(5 + x.shape[1] + 3) * terms
    w = batch.weights.astype("f8")
    each = np.logaddexp(0, z) - z * batch.labels
    # A logistic loss changes by no more than its logit; some operations and a sum follow.
    loss = (w * each).mean()
    loss_off = (w * (off + 8 * ROUNDOFF * (1 + np.abs(z)))).mean() + gamma(SIZE + 3) * loss
    slope = w * (1 / (1 + np.exp(-z)) - batch.labels) / SIZE
    slope_off = w / SIZE * (off / 4 + 8 * ROUNDOFF)
    gradients = []
    for n, share in enumerate(of):
        part = weight[13 + n * DIM : 13 + (n + 1) * DIM]
        most = np.abs(share).T @ np.abs(slope)
        error = np.abs(share).T @ slope_off + gamma(5 * SIZE + 3) * most
        gradients.append(Bounded(np.outer(share.T @ slope, part), np.outer(error, np.abs(part))))
    return Bounded(loss, loss_off), gradients


LR = {"sgd": 24.0, "adagrad": 6.0, "rowwise_adagrad": 6.0}
OPTIMIZERS = {
    "sgd": st.optim.sgd(LR["sgd"]),
    "adagrad": st.optim.adagrad(LR["adagrad"], initial=START),
    "rowwise_adagrad": st.optim.rowwise_adagrad(LR["rowwise_adagrad"], initial=START),
}


def moved(gradient: Bounded, name: str) -> Bounded:
    """What the first step of an optimizer subtracts."""
    g, error = gradient
    if name == "sgd":
        return Bounded(LR[name] * g, LR[name] * error)
    square = g * g if name == "adagrad" else (g * g).mean(axis=1, keepdims=True)
    step = LR[name] * g / np.sqrt(START + square)
    # d(g / sqrt(s + g²)) <= dg / sqrt(s); of a row's mean, dg of all elements counts once more.
    both = error + (0 if name == "adagrad" else error.max(axis=1, keepdims=True))
    return Bounded(step, LR[name] * both / np.sqrt(START) + gamma(DIM + 8) * np.abs(step))


CASES = [
    *((dtype, kind, "sgd") for dtype in FORMATS for kind in ("single", "weighted", "mean")),
    *((dtype, "weighted", name) for dtype in FORMATS for name in ("adagrad", "rowwise_adagrad")),
]

FURTHER = [("bfloat16", "single"), pytest.param("float16", "weighted", marks=pytest.mark.slow)]


QUICK = {("bfloat16", "mean", "sgd")}
QUICK |= {(dtype, "weighted", "adagrad") for dtype in FORMATS}


@pytest.mark.parametrize(("dtype", "kind", "name"), slow_except(QUICK, CASES))
def test_a_step_is_that_of_float64_within_a_step_of_the_format(dtype, kind, name):
    trainer, batch = made(dtype, kind, OPTIMIZERS[name], seed=3), drawn(kind)
    before = trainer.state_dict()
    expected, gradients = oracle(before, batch, kind)
    assert abs(float(trainer.step(batch)) - expected.value) <= expected.error
    after = trainer.state_dict()
    chances, steps = [], []
    for n, gradient in enumerate(gradients, 1):
        table = f"embeddings.C{n}.weight"
        old, new = before[table].astype("f8"), after[table].astype("f8")
        step = moved(gradient, name)
        exact = old - step.value
        apart = spacing(np.maximum(np.abs(exact), np.abs(new)), dtype)
        error = step.error + 2 * ROUNDOFF * (np.abs(old) + np.abs(step.value))
        assert (np.abs(new - exact) <= apart + error).all()
        touched = step.value != 0
        assert before[table][~touched].tobytes() == after[table][~touched].tobytes()
        chances.append(((new - exact) / apart)[touched])
        steps.append((np.abs(step.value) / apart)[touched])
    assert np.median(np.concatenate(steps)) > 4  # spacings, so that a wrong weight would show
    found = np.concatenate(chances)
    if dtype != "float32":  # which rounds to nearest; chance has no side
        assert abs(found.mean()) < 5 * 0.5 / np.sqrt(found.size)


@pytest.mark.parametrize(("dtype", "kind"), FURTHER)
def test_rows_that_weigh_nothing_leave_tables_as_they_are(dtype, kind):
    trainer = made(dtype, kind, OPTIMIZERS["sgd"])
    before = trainer.state_dict()
    assert float(trainer.step(drawn(kind, np.zeros(SIZE)))) == 0
    assert_same_state(trainer.state_dict(), before)


@pytest.mark.parametrize(("dtype", "kind"), FURTHER)
def test_a_batch_in_parts_has_the_gradient_of_the_whole(dtype, kind):
    batch = drawn(kind)
    whole, parts = (made(dtype, kind, OPTIMIZERS["sgd"], accumulate=n) for n in (1, 3))
    _, gradients = oracle(whole.state_dict(), batch, kind)
    whole.step(batch), parts.step(batch)
    one, other = whole.state_dict(), parts.state_dict()
    for n, gradient in enumerate(gradients, 1):
        a, b = (state[f"embeddings.C{n}.weight"].astype("f8") for state in (one, other))
        # Both are rounded by the same chance, so they differ where float32 does.
        apart = spacing(np.maximum(np.abs(a), np.abs(b)), dtype)
        assert (np.abs(a - b) <= apart + 2 * LR["sgd"] * gradient.error).all()
