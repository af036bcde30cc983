# SPDX-License-Identifier: Apache-2.0
"""Batches that are sent ahead: copies as late as they may come, and the bits of those that wait.

The emulated stream copies when the computation waits for it and not before; until then the device
holds what nobody wrote. It notes what it is told to wait for, so that an overwriting too early
shows.
"""

from __future__ import annotations

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain import runtime
from sparsetrain.backends.cuda import prefetch as device_prefetch
from sparsetrain.backends.cuda import staging, streams
from sparsetrain.backends.cuda.sparse import coalesce as cuda_coalesce
from sparsetrain.backends.cuda.staging import StagingRing
from sparsetrain.data import Batch
from sparsetrain.errors import ConfigError, DataError, ResourceError
from sparsetrain.runtime.tensors import editable_numpy, intercept_kernels
from tests import small_dlrm
from tests.cuda import device, emulator
from tests.cuda.device import on_gpu
from tests.cuda.test_training import VARIANTS, model, programs
from tests.helpers import slow_except
from tests.small_dlrm import assert_same_state

SIZES = (37, 38, 39, 5, 60)

pytestmark = pytest.mark.skipif(device.is_real(), reason="the stream of copies is an emulated one")


def batches(kind: str = "single"):
    return [small_dlrm.batch(size, seed=size, kind=kind) for size in SIZES]


def trainer(kind: str = "single", optimizer=None, **options) -> st.Trainer:
    made = st.Trainer(model(kind), optimizer or st.optim.adagrad(0.05), target="cuda", **options)
    made.program, made._logits = programs(kind, "cuda")
    return made


@pytest.mark.parametrize("plan", ["host", "device"])
@pytest.mark.parametrize("kind", ["single", pytest.param("weighted", marks=pytest.mark.slow)])
def test_sent_ahead_or_not_the_weights_have_the_same_bits(cuda, kind, plan, monkeypatch):
    made = []
    monkeypatch.setattr(
        device_prefetch, "make_plan", lambda *a, **k: made.append(1) or st_plan(*a, **k)
    )
    sent, waited = trainer(kind, plan=plan), trainer(kind)
    losses = [float(sent.step(batch)) for batch in sent.prefetch(batches(kind))]
    assert losses == [float(waited.step(batch)) for batch in batches(kind)]
    assert_same_state(sent.state_dict(), waited.state_dict())
    assert len(made) == (len(SIZES) if plan == "host" else 0)


st_plan = device_prefetch.make_plan


def test_the_plan_of_the_host_is_the_one_that_is_used(cuda, monkeypatch):
    def refuse(*_arguments):
        raise AssertionError("the device sorted")

    made = trainer(plan="host")
    monkeypatch.setattr(cuda_coalesce.DeviceSort, "begin", refuse)
    for batch in made.prefetch(batches()):
        made.step(batch)
    with pytest.raises(AssertionError, match="the device sorted"):
        made.step(batches()[0])


def test_steps_of_one_size_sort_where_the_last_one_did(cuda, monkeypatch):
    sizes, init = [], cuda_coalesce.DeviceSort.__init__

    def noted(self, indices, num_rows):
        sizes.append(int(indices.shape[0]))
        init(self, indices, num_rows)

    monkeypatch.setattr(cuda_coalesce.DeviceSort, "__init__", noted)
    first, second, other = (small_dlrm.batch(size, seed=n) for n, size in enumerate((9, 9, 5)))
    steps = [first, second, second, other, first]
    kept, alone = trainer(plan="device"), []
    for batch in steps:
        kept.step(batch)
    assert sizes == [9 * len(small_dlrm.ROWS), 5 * len(small_dlrm.ROWS), 9 * len(small_dlrm.ROWS)]
    for batch in steps:
        state = alone[-1].state_dict() if alone else None
        alone.append(trainer(plan="device"))
        if state is not None:
            alone[-1].load_state_dict(state)
        alone[-1].step(batch)
    assert_same_state(kept.state_dict(), alone[-1].state_dict())


def test_ids_that_were_sent_are_not_read_back(cuda, monkeypatch):
    read, as_numpy = [], runtime.as_numpy

    def noted(tensor, **options):
        if on_gpu(tensor):
            read.append(tuple(tensor.shape))
        return as_numpy(tensor, **options)

    monkeypatch.setattr(runtime, "as_numpy", noted)
    made = trainer(plan="device")
    for batch in made.prefetch(batches()):
        made.step(batch)
    assert (2,) in read  # how many rows there are
    assert not {batch.ids.shape for batch in batches()} & {*read}


def test_a_step_reads_nothing_before_all_that_it_reads_is_on_its_way(cuda, monkeypatch):
    events, as_numpy = [], runtime.as_numpy

    def read(tensor, **options):
        if on_gpu(tensor):
            events.append("read")
        return as_numpy(tensor, **options)

    def launch(name, run, arguments):
        events.append(name)
        return run(*arguments)

    monkeypatch.setattr(runtime, "as_numpy", read)
    made = trainer(plan="device")
    for batch in made.prefetch(batches()[:1]):
        with intercept_kernels(launch):
            made.step(batch)
    assert events[:2] == ["short_plan", "check for NaN and infinity"]
    assert events[2:5] == ["read"] * 3  # finiteness, number of rows, loss
    assert set(events[5:]) == {"dense updates", "chunk_sums", "update of touched rows"}


def test_by_itself_the_host_plans_few_lookups_and_the_device_many():
    planner = device_prefetch.DevicePrefetcher(trainer_on_cpu(), "auto")
    assert planner._on_host(device_prefetch.HOST_LOOKUPS)
    assert not planner._on_host(device_prefetch.HOST_LOOKUPS + 1)
    assert not planner._on_host(0)


def trainer_on_cpu(**options) -> st.Trainer:
    return st.Trainer(model(), st.optim.sgd(0.1), target="cpu", **options)


@pytest.mark.parametrize("name", slow_except(["exact"], ["exact", "clipped"]))
def test_rows_that_are_caught_up_or_clipped_are_planned_where_they_were(cuda, name):
    optimizer = VARIANTS[name]
    sent, waited = trainer(optimizer=optimizer, plan="host"), trainer(optimizer=optimizer)
    for batch in sent.prefetch(batches()[:3]):
        sent.step(batch)
    for batch in batches()[:3]:
        waited.step(batch)
    assert_same_state(sent.state_dict(), waited.state_dict())


def test_a_bad_batch_stops_training_at_its_place_and_those_before_count(cuda):
    good, rest = batches()[:2], batches()[2:]
    ids = good[1].ids.copy()
    ids[0, 0] = small_dlrm.ROWS[0]
    bad = Batch(good[1].dense, ids, good[1].labels)
    made = trainer()
    with pytest.raises(DataError, match="outside"):
        for batch in made.prefetch([good[0], bad, *rest]):
            made.step(batch)
    assert made.steps == 1


def test_leaving_early_ends_the_thread_and_closes_the_source(cuda):
    closed = []

    def source():
        try:
            yield from batches()
        finally:
            closed.append(True)

    made = trainer()
    stream = made.prefetch(source())
    made.step(next(stream))
    stream.close()
    assert closed == [True]
    assert made.training_step._ahead.ready(batches()[0]) is None


def test_a_stream_that_was_left_does_not_disturb_the_next(cuda):
    made, waited = trainer(), trainer()
    left = made.prefetch(batches())
    next(left)
    for number, batch in enumerate(made.prefetch(batches())):
        if number == 1:
            left.close()  # as the garbage collector does, whenever it likes
        made.step(batch)
        waited.step(batch)
    assert_same_state(made.state_dict(), waited.state_dict())


def test_a_batch_larger_than_those_before_gets_a_larger_slot(cuda):
    stage = StagingRing(slots=1)
    for size in (3, 1000, 0):
        staged = stage.send(stage.take(), {"x": np.arange(size, dtype="f4"), "n": np.array([size])})
        tensors = stage.use(staged)
        np.testing.assert_array_equal(tensors["x"].numpy(), np.arange(size, dtype="f4"))
        assert tensors["n"].numpy() == [size]
        stage.release(staged)


def test_what_was_written_into_a_slot_is_sent_from_there(cuda):
    stage = StagingRing(slots=1)
    slot = stage.take()
    placed = slot.room("x", (2, 3), "int32")
    assert not on_gpu(placed)
    with editable_numpy(placed) as numbers:
        numbers[...] = np.arange(6).reshape(2, 3)
    array = runtime.as_numpy(placed)
    tensors = stage.use(stage.send(slot, {"x": array, "y": array + 1}))
    np.testing.assert_array_equal(tensors["x"].numpy(), array)
    np.testing.assert_array_equal(tensors["y"].numpy(), array + 1)


def test_room_outlives_the_block_that_it_was_of(cuda):
    slot = StagingRing(slots=1).take()
    first = slot.room("x", (4,), "float32")
    with editable_numpy(first) as numbers:
        numbers[...] = 7
    slot.room("x", (4000,), "float32")
    assert runtime.as_numpy(first).tolist() == [7] * 4


def test_a_slot_that_was_not_used_is_free_again(cuda):
    stage = StagingRing(slots=1)
    slot = stage.take()
    stage.drop(slot)
    assert stage.take() is slot
    stage.close()
    assert stage.take() is None


def test_a_copy_into_a_slot_waits_for_what_reads_it(cuda):
    stage = StagingRing(slots=1)
    first = stage.send(stage.take(), {"x": np.zeros(3)})
    stage.use(first)
    assert stage._stream.ordered_after_compute == 0
    stage.release(first)
    stage.send(stage.take(), {"x": np.ones(3)})
    assert stage._stream.ordered_after_compute == 1


def test_what_cuda_refuses_is_an_error_in_one_line(cuda, monkeypatch):
    monkeypatch.setattr(streams, "_library", lambda: emulator.Refusing())
    tensor = runtime.empty((4,), "uint8")
    with pytest.raises(ResourceError, match="CUDA failed to copy a batch of 4 bytes: error 700"):
        streams.CopyStream().copy_(tensor, tensor, 4)


def test_fit_sends_ahead(cuda, monkeypatch):
    sent = []
    send = staging.StagingRing.send
    monkeypatch.setattr(staging.StagingRing, "send", lambda *a: sent.append(1) or send(*a))
    made, waited = trainer(), trainer()
    made.fit(batches(), shuffle=False, progress=None)
    for batch in batches():
        waited.step(batch)
    assert len(sent) == len(SIZES)
    assert_same_state(made.state_dict(), waited.state_dict())


def test_a_planner_is_refused_where_it_means_nothing():
    with pytest.raises(ConfigError, match="plan must be 'auto', 'host' or 'device', not 'gpu'"):
        trainer_on_cpu(plan="gpu")
    with pytest.raises(ConfigError, match="plan='host' needs CUDA"):
        trainer_on_cpu(plan="host")


def test_a_missing_runtime_of_cuda_is_named_with_the_way_out(monkeypatch):
    monkeypatch.setattr(streams, "_RUNTIMES", ("libcudart.so.none",))
    with pytest.raises(
        ResourceError, match="cannot load any of libcudart.so.none .* LD_LIBRARY_PATH"
    ):
        streams._library.__wrapped__()
