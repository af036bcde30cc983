# SPDX-License-Identifier: Apache-2.0
"""What a step on a device reads back: its loss, a verdict, numbers of rows, and nothing as long as
a batch."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain import runtime
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


def long(read: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The shapes among those read that are of more than a few numbers."""
    arrays = [shape for shape in read if prod(shape) > FEW]
    verdicts = [shape for shape in arrays if len(shape) == 2 and shape[1] == CHUNKS]
    assert len(verdicts) <= 1
    return [shape for shape in arrays if shape not in verdicts]


def trained(target: str, kind: str, ahead: bool, optimizer, **options):
    """A trainer after three steps, and what the last of them read."""
    trainer = st.Trainer(model(kind), optimizer, target=target, **options)
    trainer.program, trainer._logits = programs(kind, target)
    batches = [small_dlrm.batch(ROWS, seed=seed, kind=kind) for seed in range(3)]
    for batch in trainer.ahead(batches) if ahead else batches:
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


@pytest.mark.parametrize("mode", ["dense", "exact"])
def test_dense_and_exact_steps_give_the_same_bits_sent_ahead_or_not(cuda, mode):
    states = []
    for ahead in (False, True):
        optimizer = st.optim.adam(0.05, mode=mode)
        states.append(trained("cuda", "single", ahead, optimizer)[0].state_dict())
    assert_same_state(*states)
