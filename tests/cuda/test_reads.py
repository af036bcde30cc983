# SPDX-License-Identifier: Apache-2.0
"""What a step on a device reads back: its loss, a verdict, numbers of rows, and nothing as long as
a batch."""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np
import pytest
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain import runtime
from sparsetrain.compiler import argument
from sparsetrain.data import Batch
from sparsetrain.embedding import Embedding, EmbeddingBagCollection
from sparsetrain.models import Ids, Model, features
from sparsetrain.optim import ParamGroup
from sparsetrain.optim.update.check_kernel import CHUNKS
from sparsetrain.runtime.targets import device_of
from sparsetrain.runtime.tensors import to_device
from tests import small_dlrm
from tests.cuda.reads import noting_reads
from tests.cuda.test_training import assert_close, model, programs
from tests.helpers import slow_except
from tests.small_dlrm import assert_same_state

ROWS = 128  # of a batch
FEW = 16  # numbers, and of the verdict so many for each array

GROUPS = [ParamGroup("embeddings.C2.*", lr=0.01)]
OPTIONS = {
    "plain": lambda: {"optimizer": st.optim.adagrad(0.05)},
    "dense": lambda: {"optimizer": st.optim.momentum(0.05, mode="dense")},
    "dense and sparse tables": lambda: {
        "optimizer": st.optim.adagrad(0.05, groups=[ParamGroup("embeddings.C2.*", mode="dense")])
    },
    "accumulate": lambda: {"optimizer": st.optim.adagrad(0.05), "accumulate": 3},
    "accumulate dense": lambda: {
        "optimizer": st.optim.momentum(0.05, mode="dense"),
        "accumulate": 2,
    },
    "exact": lambda: {"optimizer": st.optim.adam(0.05, mode="exact")},
    "groups": lambda: {"optimizer": st.optim.adagrad(0.05, groups=GROUPS)},
    "clipped": lambda: {"optimizer": st.optim.adagrad(0.05, clip_norm=0.1)},
    "averaged": lambda: {"optimizer": st.optim.adam(0.05, average=st.optim.ema(0.9), mode="dense")},
}


class Pairs(Model):
    """Two features that look up one table, and one with a table of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.own = Embedding(50, 8), Embedding(20, 8)
        self.labels = {"click": "binary"}
        self.features = {"a": Ids("shared"), "b": Ids("shared"), "c": Ids("own")}

    def forward(self, a, b, c):
        found = self.shared.lookup(a) * self.shared.lookup(b) + self.own.lookup(c)
        return nn.op.sum(found, axis=1, keepdims=True)


@cache
def pairs() -> st.Trainer:
    """Whose programs are compiled."""
    return st.Trainer(Pairs(), st.optim.sgd(0.0), target="cuda")


def long(read: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The shapes among those read that are of more than a few numbers."""
    arrays = [shape for shape in read if prod(shape) > FEW]
    verdicts = [shape for shape in arrays if len(shape) == 2 and shape[1] == CHUNKS]
    assert len(verdicts) <= 1
    return [shape for shape in arrays if shape not in verdicts]


def trained(target: str, kind: str, ahead: bool, optimizer, **options):
    """A trainer after three steps, and what the last of them read."""
    if kind == "pairs":
        trainer = st.Trainer(Pairs(), optimizer, target=target, **options)
        trainer.program = pairs().program
    else:
        trainer = st.Trainer(model(kind), optimizer, target=target, **options)
        trainer.program, trainer._logits = programs(kind, target)
    data = "single" if kind == "pairs" else kind
    batches = [small_dlrm.batch(ROWS, seed=seed, kind=data) for seed in range(3)]
    for batch in trainer.prefetch(batches) if ahead else batches:
        with noting_reads() as read:
            float(trainer.step(batch))
    return trainer, read


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("kind", ["single", pytest.param("weighted", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_step_reads_back_a_few_numbers(cuda, name, kind, ahead):
    _, read = trained("cuda", kind, ahead, **OPTIONS[name]())
    assert read and not long(read)


@pytest.mark.parametrize("name", slow_except(["dense and sparse tables"], OPTIONS))
def test_options_give_the_weights_of_the_cpu(cuda, name):
    states = [trained(t, "single", False, **OPTIONS[name]())[0] for t in ("cuda", "cpu")]
    assert_close(*(trainer.state_dict() for trainer in states))


def test_a_dense_gradient_of_several_ranges_is_updated_where_it_lies(cuda):
    """Of a table in exact mode too, which notes that all rows are current."""
    groups = [ParamGroup("b", lr=0.5)]
    rng = np.random.default_rng(0)
    arrays = {"table": rng.normal(size=(40, 3)).astype("f4")}
    tables = {"table": {"a": slice(0, 17), "b": slice(17, 40)}}
    states = []
    for device in (device_of(cuda), runtime.tensors.HOST):
        optimizer = st.optim.adam(0.1, mode="exact", groups=groups)
        params = {n: to_device(runtime.as_tensor(a), device) for n, a in arrays.items()}
        state = optimizer.init(params, tables)
        for seed in range(3):
            own = np.random.default_rng(seed).normal(size=(40, 3)).astype("f4")
            gradients = {"table": to_device(runtime.as_tensor(own), device)}
            with noting_reads() as read:
                optimizer.apply_(params, gradients, state)
            assert not long(read)
        slots = {n: runtime.as_numpy(s) for n, s in state["table"].items()}
        states.append({"table": runtime.as_numpy(params["table"]), **slots})
    assert_close(*states)


def test_the_norm_of_many_gradients_is_read_as_one_array(cuda):
    rng = np.random.default_rng(0)
    arrays = {f"w{n}": rng.normal(size=(1024 * n + 5,)).astype("f4") for n in range(300, 303)}
    gradients = {n: to_device(runtime.as_tensor(a), device_of(cuda)) for n, a in arrays.items()}
    with noting_reads() as read:
        found = st.optim.global_norm(gradients)
    assert read == [(3,)]
    expected = np.sqrt(sum(np.sum(np.square(a, dtype="f8")) for a in arrays.values()))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_coalesced_gradient_is_updated_where_it_lies(cuda):
    device = device_of(cuda)
    optimizer = st.optim.sgd(1.0)
    params = {"table": to_device(runtime.zeros((40, 2), "float32"), device)}
    state = optimizer.init(params)
    rows = np.arange(1, 40, 2)
    made = st.RowSparse.from_numpy(np.repeat(rows, 2), np.ones((40, 2), "f4"), 40)
    there = made.with_leaves(tuple(to_device(leaf, device) for leaf in made.leaves))
    with noting_reads() as read:
        optimizer.apply_(params, {"table": there.coalesce()}, state)
    assert not long(read)
    expected = np.zeros((40, 2), "f4")
    expected[rows] = -2
    np.testing.assert_array_equal(runtime.as_numpy(params["table"]), expected)


@pytest.mark.parametrize("kind", ["single", "pairs"])
@pytest.mark.parametrize("mode", ["dense", "exact"])
def test_dense_and_exact_steps_give_the_same_bits_sent_ahead_or_not(cuda, mode, kind):
    states = []
    for ahead in (False, True):
        optimizer = st.optim.adam(0.05, mode=mode)
        trainer, read = trained("cuda", kind, ahead, optimizer)
        assert not long(read)
        states.append(trainer.state_dict())
    assert_same_state(*states)


# Ids by name that are not sent ahead are looked at by NumPy, which takes half as long for so few.
@pytest.mark.parametrize(
    "kind, ahead",
    [(kind, ahead) for kind in ("single", "weighted") for ahead in (False, True)]
    + [("pairs", True)],
)
def test_no_ids_are_located_or_searched_by_numpy(cuda, monkeypatch, kind, ahead):
    def refuse(*_arguments):
        raise AssertionError("a pass over ids by NumPy")

    monkeypatch.setattr(EmbeddingBagCollection, "locate", refuse)
    monkeypatch.setattr(Batch, "check_rows", refuse)
    monkeypatch.setattr(features, "_check", refuse)
    monkeypatch.setattr(argument, "_check_ids", refuse)
    trainer, _ = trained("cuda", kind, ahead, st.optim.adagrad(0.05))
    assert trainer.steps == 3


def test_the_host_plans_the_rows_of_tables_with_one_feature(cuda):
    """Those of more are side by side in the gradient alone."""
    trainer = st.Trainer(Pairs(), st.optim.adagrad(0.05), target="cuda", plan="host")
    trainer.program = pairs().program
    planned = []
    run = trainer.training_step._apply_
    trainer.training_step._apply_ = lambda *a: planned.append([*trainer.state.plans]) or run(*a)
    for batch in trainer.prefetch([small_dlrm.batch(ROWS)]):
        trainer.step(batch)
    assert planned == [["own.weight"]]
