# SPDX-License-Identifier: Apache-2.0
"""`ShardedTrainer`: one rank's part of a trainer, called alike on all ranks.

It has the dense parameters, and of the tables the rows of this rank. What it returns (losses,
scores, history) is the same on every rank, to the bit. An error of one rank is raised on all, after
which the job has to begin anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.backend import host
from sparsetrain.checkpoint import Saved
from sparsetrain.compiler.program import Program
from sparsetrain.data import Batch
from sparsetrain.errors import ConfigError
from sparsetrain.models.model_checks import table_dtype_of
from sparsetrain.optim.check_formula import uses_count
from sparsetrain.parallel import saving
from sparsetrain.parallel.alike import arguments_of, looks_of, require_same
from sparsetrain.parallel.cut import Lookups, cut
from sparsetrain.parallel.reading import Share, SharedRows
from sparsetrain.parallel.reading import cut as cut_batch
from sparsetrain.parallel.run import SharedRun
from sparsetrain.parallel.shards import Shards
from sparsetrain.parallel.step import LocalStep, ShardedStep
from sparsetrain.parallel.traffic import Watch
from sparsetrain.runtime import NDArray
from sparsetrain.training import save
from sparsetrain.training.fit import History
from sparsetrain.training.run import Run
from sparsetrain.training.step import Loss
from sparsetrain.training.trainer import Trainer


class ShardedTrainer(Trainer):
    """A `Trainer` whose tables lie on the ranks of ``parallel``; see there for the parameters.

    Attributes
    ----------
    parallel : Shards
        With ``rank``, ``size``, ``parts`` and ``plan``; printed, it says where tables lie.
    """

    parallel: Shards

    def __init__(self, model: Any, optimizer: Any, **options: Any) -> None:
        group, accumulate = options["parallel"], options.get("accumulate", 1)
        self._comm = group.comm
        with self._comm.guard():
            if accumulate > 1 and group.parts is not None:
                raise ConfigError(
                    "accumulate and parts both say how often a batch is cut: drop accumulate"
                )
            if table_dtype_of(model) != "float32":
                raise ConfigError("parallel: tables are float32; half tables train in one process")
            if model.densify or "logits" not in model.functions:
                whole = ", ".join(model.densify) or "all item vectors"
                raise ConfigError(
                    f"parallel: {type(model).__name__} reads {whole} as a whole, whose rows would "
                    "lie on several ranks: train it in one process"
                )
            if uses_count(optimizer.formula):
                raise ConfigError(
                    f"parallel: {optimizer.formula.name} counts the ids of a batch, which ranks "
                    "send merged: train in one process"
                )
            parts = group.parts or group.comm.size * accumulate
            options["parallel"] = shards = Shards(group.comm, model, group.shard, parts)
            shards.require_memory(optimizer.full_formula.slots)
            super().__init__(model, optimizer, **options)
            if self.backend is not host():
                raise ConfigError("parallel: ranks train on CPUs; give target='cpu'")
            self._require_alike(
                {"target": str(self.target)},
                "take machines of one kind of CPU, or target='llvm' on all",
            )
            self._require_alike(
                {
                    "optimizer": re.sub(r" at 0x[0-9a-f]+", "", repr(self.optimizer)),
                    "model": self.model.config(),
                    "encoder": self.encoder and self.encoder.fingerprint,
                    "seed": self.seed,
                    **self.arithmetic.to_dict(),
                    "parts": self.parallel.parts,
                }
            )

    def _require_alike(self, own: Mapping[str, Any], fix: str = "give all ranks the same") -> None:
        """Refuse ranks that would not compute the same."""
        for rank, other in enumerate(self._comm.gather(own)):
            for name, value in own.items():
                if other[name] != saving.plain(value):
                    raise ConfigError(
                        f"parallel: {self._comm.name} has the {name} {value!r:.200}, and rank "
                        f"{rank} {other[name]!r:.200}: {fix}"
                    )

    def _tables(self) -> Mapping[str, Mapping[str, slice]]:
        return self.parallel.tables()

    def _initial(self, seed: int, fill: bool) -> dict[str, NDArray]:
        return self.parallel.initialize(seed, fill)

    def _new_step(self) -> Any:
        if self.parallel.parts == 1:
            return LocalStep(self)
        return ShardedStep(self, self.parallel)

    def step(self, batch: Any) -> Loss:
        """Train on one batch, which every rank is given whole; see `Trainer.step`."""
        with self._comm.guard():
            if isinstance(batch, Batch):
                require_same([batch], self._comm)
                batch = cut_batch(batch, self.parallel.parts, self.parallel.own_parts)
            elif not isinstance(batch, Share):
                return super().step(batch)  # which refuses it
            take: Any = self.watch or (lambda step, batch: step())
            loss: Loss = take(partial(self._step, batch), batch)
            return loss

    def _check(self, batch: Any) -> None:
        for part in batch.parts.values():
            super()._check(part)

    def _rows_to_train_on(self, data: Any) -> Any:
        shards, dataset = self.parallel, super()._rows_to_train_on(data)
        self._require_alike({"rows": dataset.num_rows, "data": looks_of(data, dataset)})
        return SharedRows(dataset, self._comm, shards.parts, shards.own_parts)

    @cached_property
    def _cut_logits(self) -> tuple[Program, Lookups]:
        module, lookups = cut(self._module, "logits", self.parallel.plan)
        return Program(module, "logits", self.target, self.arithmetic), lookups

    def compile(self, *, scores: bool = False) -> None:
        """See `Trainer.compile`; on all ranks."""
        with self._comm.guard():
            self.training_step.compile()
            if scores:
                self.parallel.in_turn(lambda: self._cut_logits[0].machine)

    def _scored(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, np.ndarray]]:
        left = iter(batches)
        while scored := self._scored_together(left):
            yield from scored

    def _scored_together(self, left: Iterator[Batch]) -> list[tuple[Batch, np.ndarray]]:
        """Score the next batches, one on each rank; return all with their scores."""
        with self._comm.guard():
            group = list(islice(left, self._comm.size))
            require_same(group, self._comm)
            if not group:
                return []
            own = group[self._comm.rank] if self._comm.rank < len(group) else None
            scores = self._comm.gather_rows(self._scores_of(own), list(map(len, group)))
            return list(zip(group, scores, strict=False))

    def _scores_of(self, batch: Batch | None) -> np.ndarray:
        """Logits of a batch, and rows for those that other ranks score."""
        program, lookups = self._cut_logits
        inputs = [] if batch is None else [self.model.inputs(batch)]
        with self._lock:
            weights = self.parallel.fetch(self._weights, inputs, lookups)
            if not inputs:
                return np.empty((0, self.model.num_logits), np.float32)
            return self._finite(runtime.as_numpy(program(weights, *inputs)))

    def save(self, folder: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """See `Trainer.save`; on all ranks, to a folder that all see."""
        with self._comm.guard(), save.describe_trainer(self, extra or {}) as (arrays, manifest):
            saving.write(self.parallel, folder, arrays, manifest)

    def restore_(self, saved: Saved) -> None:
        """See `Trainer.restore_`; on all ranks."""
        shard: Any = saving.ShardOf(saved, self.parallel)
        with self._comm.guard():
            super().restore_(shard)

    def fit(self, train: Any, **options: Any) -> Any:
        """See `Trainer.fit`; on all ranks, with the same data."""
        if options.get("check_numerics"):
            raise ConfigError("parallel: check_numerics is for one process")
        watch = Watch(self._comm) if options.pop("profile", False) else None
        with self._comm.guard():
            size, parts = options.get("batch_size", 128), self.parallel.parts
            self._require_alike(arguments_of(train, options))
            if isinstance(size, int) and size % parts:
                raise ConfigError(
                    f"batch_size is {size}, of which {parts} parts are not equal: give "
                    f"{max(size - size % parts, parts)} or another multiple of {parts}"
                )
            stop, run = options.get("stop"), options.get("run")
            if callable(stop):
                options["stop"] = lambda: self._comm.any(stop())
            if run is not None:
                options["run"] = SharedRun(run if isinstance(run, Run) else Run(run), self.parallel)
            if self._comm.rank:
                options["progress"] = options["on_log"] = None
            self.watch = watch
            try:
                history = super().fit(train, **options)
            finally:
                self.watch = None
            return history if watch is None else History(history, profile=watch.result())

    @property
    def _bytes(self) -> int:
        return super()._bytes * self._comm.size

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise ConfigError(
            "parallel: a rank has only some rows of a table: save() the model and load it in one "
            "process"
        )

    state_dict = table = load_table = extended = quantized = profile = _refuse
    first_nonfinite = _refuse
