# SPDX-License-Identifier: Apache-2.0
"""Training on CUDA: the weights of the CPU, the same bits in every run and every order."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from tvm import relax, tirx

import sparsetrain as st
from sparsetrain import runtime
from sparsetrain.backends.cuda import Cuda
from sparsetrain.compiler.program import Program
from sparsetrain.data import Batch
from sparsetrain.errors import CheckpointError, ConfigError, DataError, NumericalError
from sparsetrain.optim import ParamGroup
from sparsetrain.runtime import targets
from sparsetrain.runtime.targets import device_of, resolve_target
from sparsetrain.runtime.tensors import to_device
from sparsetrain.training.profile import recorder
from tests import shared_tables, small_dlrm
from tests.cuda import device, emulator
from tests.cuda.device import on_gpu
from tests.helpers import slow_except
from tests.optim.formulas import OPTIMIZERS
from tests.small_dlrm import assert_same_state

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
STEPS = 3
# What an optimizer may be asked to do beside its formula.
VARIANTS = {
    **{name: OPTIMIZERS[name] for name in ("adagrad", "rowwise_adagrad", "mixed")},
    "exact": st.optim.adam(0.01, mode="exact"),
    "capped": st.optim.adamw(0.01, weight_decay=0.1, mode="exact", max_replayed_steps=1),
    "closed": st.optim.momentum(0.01, weight_decay=0.1, mode="closed", max_replayed_steps=1),
    "dense": st.optim.momentum(0.01, mode="dense"),
    "clipped": st.optim.adagrad(0.1, clip_norm=0.1, clip_value=0.05),
    "groups": st.optim.adagrad(0.1, groups=[ParamGroup("embeddings.C2.*", lr=0.01)]),
}


def model(kind: str = "single") -> st.models.DLRM:
    """Tables of every kind, and layers as small as can be: products are tested by themselves."""
    return st.models.DLRM(
        rows=small_dlrm.ROWS, dim=8, bottom=(), top=(), num_dense=13, **small_dlrm.KINDS[kind]
    )


@cache
def programs(kind: str, target: str):
    """Programs do not depend on the optimizer: compile them once."""
    made = st.Trainer(model(kind), st.optim.sgd(0.0), target=target)
    return made.program, made._logits


def trained(optimizer, target: str, kind: str = "single", order: int = 0, **options) -> st.Trainer:
    trainer = st.Trainer(model(kind), optimizer, target=target, **options)
    trainer.program, trainer._logits = programs(kind, target)
    with device.threads_in_order(order):
        for step in range(STEPS):
            float(trainer.step(small_dlrm.batch(37 + step, seed=step, kind=kind)))
    return trainer


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, err_msg=name, **CLOSE)


@pytest.mark.parametrize("name", slow_except(["exact"], VARIANTS))
def test_every_optimizer_gives_the_weights_of_the_cpu(cuda, name):
    found = trained(VARIANTS[name], "cuda").state_dict()
    assert_close(found, trained(VARIANTS[name], "cpu").state_dict())


def test_weighted_bags_give_the_weights_of_the_cpu(cuda):
    optimizer = st.optim.adagrad(0.05)
    found = trained(optimizer, "cuda", "weighted").state_dict()
    assert_close(found, trained(optimizer, "cpu", "weighted").state_dict())


@pytest.mark.parametrize("kind", ["single", "weighted"])
@pytest.mark.slow
def test_features_that_share_a_table_give_its_weights_on_the_cpu(cuda, kind):
    states = []
    for target in ("cuda", "cpu"):
        optimizer = st.optim.adam(0.01, mode="exact")
        trainer = st.Trainer(shared_tables.model(kind), optimizer, target=target)
        for seed in range(STEPS):
            trainer.step(shared_tables.batch(37, seed, kind))
        states.append(trainer.state_dict())
    assert_close(*states)


@pytest.mark.parametrize(("name", "order"), [("adagrad", 11), ("exact", 1)])
def test_two_runs_have_the_same_bits_whoever_runs_first(cuda, name, order):
    first, again = (trained(VARIANTS[name], "cuda", order=o) for o in (0, order))
    assert_same_state(again.state_dict(), first.state_dict())


def test_parameters_slots_and_gradients_stay_on_the_device(cuda):
    trainer = trained(st.optim.adagrad(0.05), "cuda")
    slots = [slot for slots in trainer.state.values() for slot in slots.values()]
    assert all(on_gpu(tensor) for tensor in [*trainer.params.values(), *slots])
    inputs = trainer.model.inputs(small_dlrm.batch(5))
    loss, gradients = trainer.program(trainer.params, inputs)
    leaves = [leaf for g in gradients.values() for leaf in getattr(g, "leaves", [g])]
    assert all(on_gpu(tensor) for tensor in [loss, *leaves])


def test_parts_of_a_batch_add_up_to_the_step_of_the_whole(cuda):
    optimizer = st.optim.adagrad(0.05)
    found = trained(optimizer, "cuda", accumulate=3).state_dict()
    assert_close(found, trained(optimizer, "cpu").state_dict())


def test_what_one_target_saved_the_other_loads(cuda, tmp_path):
    optimizer = st.optim.adam(0.01)
    trained(optimizer, "cuda").save(tmp_path / "a")
    loaded = st.load(tmp_path / "a", target="cpu")
    assert not on_gpu(next(iter(loaded.params.values())))
    loaded.save(tmp_path / "b")
    back = st.load(tmp_path / "b", target="cuda")
    assert_same_state(back.state_dict(), trained(optimizer, "cuda").state_dict())


def test_a_loop_on_a_device_goes_on_from_what_it_saved(cuda, tmp_path):
    """`save` and `load_` of an optimizer, over the tensors of a trainer."""
    optimizer = VARIANTS["exact"]
    first = trained(optimizer, "cuda")
    optimizer.save(tmp_path / "loop", first.params, first.state)
    second = trained(optimizer, "cuda", seed=5)
    before = second.state_dict()
    with pytest.raises(CheckpointError, match="saved by the optimizer"):
        st.optim.ftrl(0.1).load_(tmp_path / "loop", second.params, second.state)
    assert_same_state(second.state_dict(), before)
    optimizer.load_(tmp_path / "loop", second.params, second.state)
    assert all(on_gpu(tensor) for tensor in second.params.values())
    for trainer in (first, second):
        trainer.step(small_dlrm.batch(40, seed=8))
    assert_same_state(second.state_dict(), first.state_dict())


def test_scores_are_those_of_the_cpu(cuda):
    batch = small_dlrm.batch(50, seed=9)
    scores = [trained(st.optim.adagrad(0.05), t).predict([batch]) for t in ("cuda", "cpu")]
    np.testing.assert_allclose(*scores, **CLOSE)


def test_an_id_outside_its_table_is_refused_before_it_reaches_the_device(cuda):
    trainer = trained(st.optim.adagrad(0.05), "cuda")
    good = small_dlrm.batch(4)
    ids = good.ids.copy()
    ids[1, 2] = small_dlrm.ROWS[2]
    with pytest.raises(DataError, match="outside"):
        trainer.step(Batch(good.dense, ids, good.labels))


def test_a_step_that_is_not_finite_writes_nothing(cuda):
    trainer = st.Trainer(model(), st.optim.sgd(1e30), target="cuda")
    trainer.program, trainer._logits = programs("single", "cuda")
    trainer.step(small_dlrm.batch(4))
    before = trainer.state_dict()
    with pytest.raises(NumericalError, match="in step 2: nothing was updated"):
        trainer.step(small_dlrm.batch(4))
    assert_same_state(trainer.state_dict(), before)
    assert "not finite" in trainer.first_nonfinite(small_dlrm.batch(4))


def test_a_gpu_is_used_by_auto(cuda):
    targets._best_target.cache_clear()
    assert resolve_target("auto").kind.name == "cuda"
    targets._best_target.cache_clear()
    assert device.is_real() or emulator.missing() is None


def test_a_profile_waits_for_every_kernel_before_it_reads_the_clock(cuda, monkeypatch):
    trainer, events = trained(st.optim.adagrad(0.05), "cuda"), []
    before = trainer.state_dict()
    monkeypatch.setattr(Cuda, "synchronize", lambda _self: events.append("wait"))
    clock = SimpleNamespace(perf_counter=lambda: events.append("clock") or len(events))
    monkeypatch.setattr(recorder, "time", clock)
    profile = trainer.profile(small_dlrm.batch(9), steps=2)
    assert "clock" in events
    assert all(events[n - 1] == "wait" for n, event in enumerate(events) if event == "clock")
    assert "on cuda, with launches that wait for each other" in str(profile)
    names = {kernel.name for kernel in profile.kernels}
    assert names >= {"interaction", "lookup of rows", "short plan", "update of touched rows"}
    assert_same_state(trainer.state_dict(), before)


def test_no_ids_give_no_rows(cuda):
    table = relax.Var("table", relax.TensorType((5, 4), "float32"))
    ids = relax.Var("ids", relax.TensorType((tirx.Var("N", "int64"),), "int32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [ids, table], attrs={"num_input": 1}):
        with builder.dataflow():
            rows = builder.emit(relax.op.take(table, ids, axis=0))
            out = builder.emit_output(relax.op.exp(rows))
        builder.emit_func_output(out)
    program = Program(builder.get(), "main", "cuda")
    params = {"table": np.ones((5, 4), "f4")}
    for ids in ([2, 4], [], [1]):
        assert program(params, {"ids": np.array(ids, "i4")}).shape == (len(ids), 4)


# --- Loops of one's own -------------------------------------------------------------------------


def looped(target: str) -> dict[str, runtime.NDArray]:
    """Parameters after three steps of a loop as in docs/models.md."""
    dlrm, optimizer = model(), st.optim.adam(0.01)
    program = programs("single", target)[0]
    params = program.place(dlrm.initialize(0))
    state = optimizer.init(params)
    for seed in range(3):
        loss, gradients = program(params, dlrm.inputs(small_dlrm.batch(37, seed)))
        optimizer.apply_(params, gradients, state, loss=loss)
    return params


def test_a_loop_with_placed_parameters_gives_the_weights_of_the_cpu(cuda):
    found, expected = looped("cuda"), looped("cpu")
    assert all(map(on_gpu, found.values()))
    arrays = ({n: runtime.as_numpy(p) for n, p in params.items()} for params in (found, expected))
    assert_close(*arrays)


@pytest.mark.parametrize("what", ["gradient", "slot 'sum'"])
def test_parameters_that_lie_elsewhere_are_named_with_the_way_out(cuda, what):
    optimizer = st.optim.adagrad(0.1)
    params = {"w": runtime.zeros((3,), "float32")}
    there = {"w": to_device(params["w"], device_of(cuda))}
    state = optimizer.init(params)
    if what == "slot 'sum'":
        params = there
    message = (
        rf"'w' is on .*, but its {what} is on .*program\.place\(params\) before optimizer\.init"
    )
    with pytest.raises(ConfigError, match=message):
        optimizer.apply_(params, there, state)


def test_what_lies_beside_the_program_is_not_copied(target):
    program = programs("single", target)[1]
    given = {"a": np.arange(3.0, dtype="f4"), "b": st.runtime.zeros((2,), "float32")}
    placed = program.place(given)
    assert list(placed) == ["a", "b"]
    assert all(on_gpu(tensor) == (target == "cuda") for tensor in placed.values())
    np.testing.assert_array_equal(runtime.as_numpy(placed["a"]), given["a"])
    again = program.place(placed)
    assert all(again[name] is placed[name] for name in given)
    assert isinstance(given["a"], np.ndarray)
