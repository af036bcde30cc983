# SPDX-License-Identifier: Apache-2.0
"""Prefetching of batches to a device while it computes: they are checked, copied and sorted.

A separate thread turns batches into the program's inputs and sends them to the device
(`StagingRing`). It may also sort the batch's rows and send the resulting plan; otherwise the device
makes the plan. Both plans give the same bits and differ only in time.

By default the host sorts batches of at most `HOST_LOOKUPS` ids, in parallel with the running step;
the device would sort between computing gradients and updates. For 53,248 ids, the sort took 0.5 ms
on the host, which may be longer than a step, and 0.04 ms on an H200.

This thread ignores errors in a batch: the step on this batch raises them again, with their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from sparsetrain import runtime
from sparsetrain.backends.cuda.staging import StagedBatch, StagingRing, StagingSlot
from sparsetrain.data import Batch
from sparsetrain.data.stream.threads import prefetched
from sparsetrain.errors import SparsetrainError
from sparsetrain.optim import StepResult
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.tensors import reshape_view
from sparsetrain.sparse_tensor.coalesce import CoalescePlan, make_plan
from sparsetrain.training.step import Trainable, TrainingStep, step_inputs
from sparsetrain.training.trainer import Planner, Trainer

HOST_LOOKUPS = 16_384  # with the plan "auto", the host sorts batches of at most this many ids
_PLAN = ("rows", "order", "offsets")


class Ready(NamedTuple):
    """A batch, and its inputs, which are being copied to the device."""

    batch: Batch
    rows: Mapping[str, str]  # parameter read by rows -> name of the array with the row ids
    stage: StagingRing
    staged: StagedBatch
    planned: Mapping[str, str]  # parameter with a plan -> name of the input that the plan sorts

    def plan(self, name: str, indices: runtime.NDArray) -> CoalescePlan | None:
        """Return the plan of a parameter's rows if it sorts `indices`, else None."""
        tensors = self.staged.tensors
        source = tensors.get(self.planned.get(name, ""))
        if source is None or source.data_ptr() != indices.data_ptr():
            return None
        plan = CoalescePlan(*(tensors[f"{name}:{part}"] for part in _PLAN))
        return plan if plan.order.shape[0] == indices.shape[0] else None


class DevicePrefetcher:
    """Copies the inputs of the next batches to a trainer's device.

    Parameters
    ----------
    trainer : Trainer
        The trainer whose program reads the inputs.
    planner : {"auto", "host", "device"}
        Whether the host or the device sorts the rows of a batch.
    """

    def __init__(self, trainer: Trainable, planner: Planner) -> None:
        self._trainer = trainer
        self.planner: Planner = planner
        self._ready: Ready | None = None

    def batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the same batches, with inputs prepared ahead and kept until the next request."""
        stage = StagingRing()
        items = prefetched(lambda: self._prepared(batches, stage), depth=2)
        try:
            for batch, ready in items:
                self._ready = ready
                yield batch
                self._release(ready)
        finally:
            stage.close()  # before joining the thread, which may wait for a slot
            items.close()  # type: ignore[attr-defined]
            stage.finish()
            # The batch may belong to a newer iterator with its own ring.
            if self._ready is not None and self._ready.stage is stage:
                self._ready = None

    def ready(self, batch: Batch) -> Ready | None:
        """Return the prepared inputs of a batch, or None."""
        return self._ready if self._ready is not None and self._ready.batch is batch else None

    def tensors(self, ready: Ready) -> dict[str, runtime.NDArray]:
        """Return the inputs on the device, for kernels launched from now on."""
        return ready.stage.use(ready.staged)

    def _release(self, ready: Ready | None) -> None:
        """Release a batch's memory once all kernels that read it are launched."""
        if ready is not None:
            ready.stage.release(ready.staged)
        if self._ready is ready:
            self._ready = None

    def _prepared(
        self, batches: Iterator[Batch], stage: StagingRing
    ) -> Iterator[tuple[Batch, Ready | None]]:
        try:
            for batch in batches:
                try:
                    yield batch, self._prepare(batch, stage)
                except SparsetrainError:
                    yield batch, None
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def _prepare(self, batch: Batch, stage: StagingRing) -> Ready | None:
        trainer = self._trainer
        if batch.labels is None or trainer.accumulate > 1 or trainer.model.prepared:
            return None
        slot = stage.take()
        if slot is None:
            return None
        try:
            return self._sent(batch, stage, slot)
        except BaseException:
            stage.drop(slot)
            raise

    def _sent(self, batch: Batch, stage: StagingRing, slot: StagingSlot) -> Ready:
        trainer = self._trainer
        inputs = trainer.model.inputs(batch, room=slot.room, function="loss")
        arguments = trainer.program.arguments
        names = list(arguments.by_name)
        bound = arguments.bind(trainer.params.weights, inputs | step_inputs(trainer), checked=True)
        arrays = {
            name: runtime.as_numpy(tensor)
            for name, tensor in zip(names, bound, strict=True)
            if name in inputs  # excludes parameters and the step's own inputs
        }
        rows = trainer.model.rows_read(inputs)
        sources = {name: _name_of(inputs, read) or f"{name}:ids" for name, read in rows.items()}
        for name in (name for name in rows if trainer.params.table(name).lags):
            arrays.setdefault(sources[name], runtime.as_numpy(_flat(rows[name])))
        plans = self._plans({n: read for n, read in rows.items() if sources[n] in inputs})
        for name, plan in plans.items():
            arrays |= {f"{name}:{part}": runtime.as_numpy(getattr(plan, part)) for part in _PLAN}
        planned = {name: sources[name] for name in plans}
        return Ready(batch, sources, stage, stage.send(slot, arrays), planned)

    def _plans(self, rows: Mapping[str, Any]) -> dict[str, CoalescePlan]:
        """Sort rows on the host into plans; make none if the step coalesces in a different way."""
        trainer = self._trainer
        if trainer.optimizer.clip_norm is not None or trainer.params.lagging:
            return {}
        return {
            name: make_plan(_flat(read), int(trainer.params.weights[name].shape[0]), parallel=False)
            for name, read in rows.items()
            if self._on_host(prod(read.shape))
        }

    def _on_host(self, lookups: int) -> bool:
        return self.planner == "host" or (self.planner == "auto" and 0 < lookups <= HOST_LOOKUPS)


def _flat(rows: Any) -> runtime.NDArray:
    """Return row ids as a flat tensor; ids in a tensor are not copied."""
    if isinstance(rows, runtime.NDArray):
        return reshape_view(rows, (prod(rows.shape),))
    return runtime.as_tensor(np.ravel(rows))


def _name_of(inputs: Mapping[str, Any], rows: Any) -> str | None:
    """Return the name of the input that shares the memory of `rows`, in any shape, or None."""
    memory = _memory(rows)
    arrays = {n: a for n, a in inputs.items() if isinstance(a, np.ndarray | runtime.NDArray)}
    return next((name for name, array in arrays.items() if _memory(array) == memory), None)


def _memory(array: Any) -> tuple[int, int]:
    """Return an array's address and number of elements."""
    if isinstance(array, runtime.NDArray):
        return array.data_ptr(), prod(array.shape)
    return array.ctypes.data, array.size


class DeviceTrainingStep(TrainingStep):
    """A training step on a GPU: runs the gradient program, then launches the update kernels."""

    trusts = True

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        self._ahead = DevicePrefetcher(trainer, trainer.plan)

    def prefetch(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the same batches; their inputs are prepared ahead."""
        return self._ahead.batches(batches)

    @property
    def _reads_gradients(self) -> bool:
        return True

    def run_(self, batch: Batch) -> tuple[NDArray, StepResult]:
        """See `TrainingStep.run_`."""
        ready = self._ahead.ready(batch)
        if ready is None:
            return super().run_(batch)
        trainer = self._trainer
        inputs = self._ahead.tensors(ready) | step_inputs(trainer)
        rows = {name: inputs[array] for name, array in ready.rows.items() if array in inputs}
        weights = trainer.params.rows(rows)
        loss, gradients = trainer.program(weights, inputs, checked=True)
        for name in ready.planned:
            plan = ready.plan(name, gradients[name].indices)
            if plan is not None:
                trainer.state.plans[name] = gradients[name], plan
        try:
            return self._apply_(loss, gradients)
        finally:
            trainer.state.plans.clear()
