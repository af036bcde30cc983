# SPDX-License-Identifier: Apache-2.0
"""Training steps have the bits of a gradient program followed by `apply_`, and the same checks."""

from itertools import product

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain import optim
from sparsetrain.data.batch import micro_batches
from sparsetrain.errors import DataError, NumericalError
from sparsetrain.optim.update.program import UpdateStep
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.sparse_tensor import RowSparse
from tests import small_dlrm
from tests.helpers import assert_same_bits, slow_except
from tests.optim.formulas import OPTIMIZERS
from tests.small_dlrm import assert_same_state

LR = 0.01 * optim.warmup(3) * optim.cosine(20)
ON_A_CPU = pytest.mark.cpu("on CUDA updates are kernels of their own")
FAULTS = {
    "dense": ("w", "gradient of 'w' is not finite"),
    "rows": ("t", "gradient of 't' is not finite"),
    "loss": ("loss", "the loss is nan"),
    "outside": ("ids", "1 row indices lie outside the 6 rows of 't'"),
}


@pytest.mark.parametrize(
    ("name", "fault"), slow_except([("mixed", f) for f in FAULTS], product(OPTIMIZERS, FAULTS))
)
def test_nothing_is_written_if_anything_is_wrong(name, fault):
    where, message = FAULTS[fault]
    optimizer = OPTIMIZERS[name]
    arrays = {"w": np.ones((3, 4), "f4"), "t": np.ones((6, 4), "f4")}
    params = {key: as_tensor(array) for key, array in arrays.items()}
    state = optimizer.init(params)
    values = {key: np.ones((3, 4), "f4") for key in arrays}
    ids = as_tensor(np.array([4, 7 if where == "ids" else 6, 4], np.int32))  # 6 is padding
    if where in values:
        values[where][2, 1] = np.inf
    gradients = {
        "w": as_tensor(values["w"]),
        "t": RowSparse(ids, as_tensor(values["t"]), 6),
    }
    loss = as_tensor(np.float32(np.nan if where == "loss" else 1))
    before = {key: as_numpy(slot).copy() for key, slot in state["t"].items()}
    with pytest.raises((NumericalError, DataError), match=message):
        optimizer.apply_(params, gradients, state, loss=loss)
    for key, array in arrays.items():
        assert_same_bits(params[key], array)
    for key, array in before.items():
        assert_same_bits(state["t"][key], array)
    assert state.step == 0


# What a step of a model can be; each compiles a program.
CASES = {
    "rowwise_adagrad, bags": (optim.rowwise_adagrad(LR, update="sparse"), "weighted"),
    "adam, bfloat16 tables of several rules": (
        optim.adam(
            LR,
            weight_decay=1e-2,
            clip_value=0.01,
            groups=[
                optim.ParamGroup("*.bias", scale=0.5, weight_decay=0.0),
                optim.ParamGroup("embeddings.C2.weight", lr=0.1),
            ],
        ),
        "bfloat16",
    ),
}


def trainer_of(optimizer, kind: str = "single", **options) -> st.Trainer:
    made = st.Trainer(small_dlrm.model(kind), optimizer, **options)
    return small_dlrm.share_programs(made, kind)


class Loop:
    """A loop of one's own: the gradient program, then `apply_`."""

    def __init__(self, optimizer, kind: str = "single", accumulate: int = 1) -> None:
        self.trainer, self.accumulate = trainer_of(optimizer, kind), accumulate

    def step(self, batch: st.Batch) -> float:
        t, total, summed = self.trainer, 0.0, {}
        for part in micro_batches(batch, self.accumulate):
            inputs = t.model.inputs(part)
            t.optimizer.catch_up_(t.params, t.model.rows_read(inputs), t.state)
            loss, gradients = t.program(t.params, inputs)
            share = len(part) / len(batch)
            total += share * float(as_numpy(loss))
            if self.accumulate == 1:
                summed = gradients
            else:
                optim.accumulate_(gradients, summed, share, coalesce=False)
        t.applied = t.optimizer.apply_(t.params, summed, t.state)
        t.steps += 1
        return float(np.float32(total))


# Steps that need a value between gradients and updates, or rows beside the touched ones.
CASES |= {
    "norm": (optim.sgd(0.1, clip_norm=1.0), "single"),
    "exact": (optim.adam(0.1, mode="exact", update="sparse"), "single"),
    "exact, small tables": (optim.adam(0.1, mode="exact"), "bfloat16"),
    "every row": (optim.adam(0.1, mode="dense"), "sum"),
}


QUICK = [*((name, 1) for name in CASES if name != "every row"), ("norm", 2), ("exact", 2)]


@pytest.mark.parametrize(("name", "accumulate"), slow_except(QUICK, product(CASES, (1, 2))))
def test_training_steps_have_the_bits_of_a_loop_of_ones_own(name, accumulate):
    optimizer, kind = CASES[name]
    trainer = trainer_of(optimizer, kind, accumulate=accumulate)
    loop = Loop(optimizer, kind, accumulate)
    for number, size in enumerate([16, 7, 2, 16]):
        batch = small_dlrm.batch(size, number, kind)
        assert float(trainer.step(batch)) == loop.step(batch)
        assert trainer.applied == loop.trainer.applied
    assert_same_state(trainer.state_dict(), loop.trainer.state_dict())


def huge() -> st.data.Batch:
    """A batch whose loss is not finite."""
    plain = small_dlrm.batch(16)
    return st.data.Batch(np.sign(plain.dense) * np.float32(3e38), plain.ids, plain.labels)


def test_what_is_not_finite_stops_before_any_update_or_skips_the_step():
    trainer = trainer_of(optim.adam(0.1))
    trainer.step(small_dlrm.batch(16))
    before = trainer.state_dict()
    with pytest.raises(NumericalError, match="the loss is .* in step 2: nothing was updated"):
        trainer.step(huge())
    assert_same_state(trainer.state_dict(), before)
    trainer.optimizer = optim.adam(0.1, on_nonfinite="skip")
    trainer.step(huge())
    assert_same_state(trainer.state_dict(), before)
    assert trainer.state.skipped == 1 and "loss" in trainer.applied.skipped
    trainer.step(small_dlrm.batch(16))
    assert trainer.state.step == 2


def test_another_optimizer_of_the_same_slots_takes_over():
    trainer, loop = trainer_of(optim.adagrad(0.1)), Loop(optim.adagrad(0.1))
    for optimizer in (optim.adagrad(0.2), optim.adagrad(0.2, clip_norm=0.01)):
        trainer.optimizer = loop.trainer.optimizer = optimizer
        trainer.step(small_dlrm.batch(16))
        loop.step(small_dlrm.batch(16))
    assert_same_state(trainer.state_dict(), loop.trainer.state_dict())


def test_parameters_that_were_replaced_are_the_ones_that_are_updated():
    trainer, loop = trainer_of(optim.adagrad(0.1)), Loop(optim.adagrad(0.1))
    for each, inner in ((trainer, trainer), (loop, loop.trainer)):
        each.step(small_dlrm.batch(16))
        halves = {name: as_tensor(as_numpy(tensor) / 2) for name, tensor in inner.params.items()}
        inner.params.update(inner.program.place(halves))
        each.step(small_dlrm.batch(16))
    assert_same_state(trainer.state_dict(), loop.trainer.state_dict())


@ON_A_CPU
def test_an_interrupt_before_the_program_runs_writes_nothing(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    trainer = trainer_of(optim.adam(0.1))
    before = trainer.state_dict()
    monkeypatch.setattr(UpdateStep, "_write_numbers_", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.step(small_dlrm.batch(16))
    assert_same_state(trainer.state_dict(), before)
