# SPDX-License-Identifier: Apache-2.0
"""`Ranks`: several processes that train one model, and this rank's share of the model.

A rank has all dense parameters and its own rows of the tables. The trainers of all ranks return the
same losses, scores and history, bit for bit. An error on one rank is raised on all, and the job
must be started again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
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
from sparsetrain.optim.check_formula import uses_count
from sparsetrain.parallel import saving
from sparsetrain.parallel.alike import arguments_of, looks_of, require_same
from sparsetrain.parallel.cut import Lookups, cut
from sparsetrain.parallel.run import SharedRun
from sparsetrain.parallel.sharded_step import LocalStep, ShardedStep
from sparsetrain.parallel.sharding_plan import DEALT
from sparsetrain.parallel.shards import Shards
from sparsetrain.parallel.shared_rows import Share, SharedRows
from sparsetrain.parallel.shared_rows import cut as cut_batch
from sparsetrain.parallel.traffic import TrafficRecorder
from sparsetrain.tables.growth import last_step
from sparsetrain.training.equal_rows import distinct_inputs, rows_of
from sparsetrain.training.fit import History
from sparsetrain.training.processes import OneProcess
from sparsetrain.training.run import Run
from sparsetrain.training.scores import finite


def joined(
    comm: Any, model: Any, optimizer: Any, shard: Any, parts: int | None, accumulate: int
) -> Ranks:
    """Return the ranks of a model; every rank must call this.

    Raises
    ------
    ConfigError
        If the model or the optimizer cannot be trained on several ranks.
    """
    with comm.guard():
        if accumulate > 1 and parts is not None:
            raise ConfigError(
                "accumulate and parts both set the number of parts of a batch: drop accumulate"
            )
        if model.learned_constants or model.defines("score_items"):
            raise ConfigError(
                f"parallel: {type(model).__name__} learns from all rows at once, or scores by "
                "parameters as a whole: train it in one process"
            )
        if uses_count(optimizer.formula):
            raise ConfigError(
                f"parallel: {optimizer.formula.name} counts how often a batch has an id, but ranks "
                "send repeated ids once: train in one process"
            )
        ranks = Ranks(comm, model, shard, parts or comm.size * accumulate)
        ranks.require_memory(optimizer.full_formula.slots)
        return ranks


class Ranks(Shards, OneProcess):
    """The ranks that train a model; `OneProcess` documents the interface."""

    parts: int
    most_missed = 0  # a rank does not know how many steps other ranks' rows missed

    def joined(self, model: Any, optimizer: Any, accumulate: int) -> Ranks:
        """Return the ranks for a new model with the same placement of tables."""
        tables = [table for plan in self.plan.values() for table in plan.tables]
        shard = {t.name: "row" if t.owner == DEALT else t.owner for t in tables}
        return joined(self.comm, model, optimizer, shard, self.parts, 1)

    def known(
        self, arrays: Mapping[str, np.ndarray], tables: Iterable[str], row: int
    ) -> tuple[dict[str, np.ndarray], int]:
        """See `OneProcess.known`."""
        own = saving.rows_of(self, arrays, row)
        found = self.comm.gather([{name: r.tolist() for name, r in own.items()}, last_step(arrays)])
        rows = {name: np.array(r, arrays[name].dtype) for of, _ in found for name, r in of.items()}
        return rows, max(step for _, step in found)

    def open_tables_(self, trainer: Any, seed: int, fill: bool) -> None:
        """Tell each table which rows of the whole table this rank has."""
        for storage, plan in self.plan.items():
            trainer.state.tables.table(storage).be_part(plan.numbers(self.rank))

    def guard(self) -> AbstractContextManager[Any]:
        """See `OneProcess.guard`."""
        return self.comm.guard()

    def begin(self, trainer: Any) -> None:
        """Refuse ranks with different settings, which would compute different results."""
        if trainer.backend is not host():
            raise ConfigError("parallel: ranks train on CPUs; give target='cpu'")
        self._require_alike(
            {"target": str(trainer.target)},
            "use machines with the same kind of CPU, or target='llvm' on all",
        )
        self._require_alike(
            {
                "optimizer": re.sub(r" at 0x[0-9a-f]+", "", repr(trainer.optimizer)),
                "model": trainer.model.config(),
                "encoder": trainer.encoder and trainer.encoder.fingerprint,
                "seed": trainer.seed,
                **trainer.arithmetic.to_dict(),
                "parts": self.parts,
            }
        )

    def _require_alike(self, own: Mapping[str, Any], fix: str = "give all ranks the same") -> None:
        for rank, other in enumerate(self.comm.gather(own)):
            for name, value in own.items():
                if other[name] != saving.plain(value):
                    raise ConfigError(
                        f"parallel: {self.comm.name} has the {name} {value!r:.200}, but rank "
                        f"{rank} has {other[name]!r:.200}: {fix}"
                    )

    def training_step(self, trainer: Any) -> Any:
        """See `OneProcess.training_step`."""
        return LocalStep(trainer) if self.parts == 1 else ShardedStep(trainer, self)

    def rows(self, data: Any, dataset: Any) -> Any:
        """See `OneProcess.rows`."""
        self._require_alike({"rows": dataset.num_rows, "data": looks_of(data, dataset)})
        return SharedRows(dataset, self.comm, self.parts, self.own_parts)

    def step(self, trainer: Any, batch: Any) -> Any:
        """Train on a whole batch, the same on every rank, or on this rank's share of one."""
        with self.comm.guard():
            if not isinstance(batch, Batch | Share):
                return super().step(trainer, batch)
            if isinstance(batch, Batch):
                require_same([batch], self.comm)
                batch = cut_batch(batch, self.parts, self.own_parts)
            return trainer._watched(batch, batch.parts.values())

    def compile_scores(self, trainer: Any) -> None:
        """See `OneProcess.compile_scores`; one rank of each machine compiles first."""

        def compile_all() -> None:
            for function in {*trainer.model.functions} - {"loss", "items"}:
                _ = self._cut_program(trainer, function)[0].machine
            if "items" in trainer.model.functions:
                trainer._program("items").compile()

        self.in_turn(compile_all)

    @cached_property
    def _cut(self) -> dict[str, tuple[Program, Lookups]]:
        return {}

    def _cut_program(self, predictor: Any, function: str) -> tuple[Program, Lookups]:
        if function not in self._cut:
            module, lookups = cut(predictor._module, function, self.plan)
            program = Program(module, function, predictor.target, predictor.arithmetic)
            self._cut[function] = program, lookups
        return self._cut[function]

    def vectors(self, predictor: Any, function: str, batch: Batch | None = None) -> np.ndarray:
        """See `OneProcess.vectors`; every rank computes all vectors, from the same batch.

        Vectors of all items need the memory of their whole table during the call.
        """
        with self.comm.guard():
            inputs, numbers = distinct_inputs(predictor.model, function, batch)
            if batch is None:
                program = predictor._program(function)
                with predictor._lock:
                    weights = self.whole(predictor._weights({}), program.arguments.by_name)
            else:
                require_same([batch], self.comm)
                program, lookups = self._cut_program(predictor, function)
                with predictor._lock:
                    weights = self.fetch(predictor._weights, [inputs], lookups)
            return rows_of(runtime.as_numpy(program(weights, inputs)), numbers)

    def scored(
        self, predictor: Any, batches: Iterable[Batch]
    ) -> Iterator[tuple[Batch, np.ndarray]]:
        """Yield each batch with its scores, computed by one rank."""
        left = iter(batches)
        while scored := self._scored_together(predictor, left):
            yield from scored

    def _scored_together(
        self, trainer: Any, left: Iterator[Batch]
    ) -> list[tuple[Batch, np.ndarray]]:
        """Score the next batches, one on each rank; return all with their scores."""
        with self.comm.guard():
            group = list(islice(left, self.comm.size))
            require_same(group, self.comm)
            if not group:
                return []
            own = group[self.comm.rank] if self.comm.rank < len(group) else None
            scores = self.comm.gather_rows(self._scores_of(trainer, own), list(map(len, group)))
            return list(zip(group, scores, strict=False))

    def _scores_of(self, trainer: Any, batch: Batch | None) -> np.ndarray:
        """Compute the logits of a batch, and send the table rows that other ranks need."""
        program, lookups = self._cut_program(trainer, "logits")
        inputs = [] if batch is None else [trainer.model.inputs(batch)]
        with trainer._lock:
            weights = self.fetch(trainer._weights, inputs, lookups)
            if not inputs:
                return np.empty((0, trainer.model.num_logits), np.float32)
            return finite(trainer, runtime.as_numpy(program(weights, *inputs)))

    def write(
        self, folder: str | Path, arrays: dict[str, np.ndarray], manifest: dict[str, Any]
    ) -> None:
        """Write a checkpoint to a folder that all ranks can access."""
        saving.write(self, folder, arrays, manifest)

    def opened(self, saved: Saved) -> Saved:
        """Return an open checkpoint that reads only this rank's rows."""
        shard: Any = saving.ShardOf(saved, self)
        return shard

    def fit(self, trainer: Any, fit: Callable[..., Any], train: Any, options: Any) -> Any:
        """Call `Trainer.fit`; every rank must call this, with the same data."""
        if options.get("check_numerics"):
            raise ConfigError("parallel: check_numerics works in one process only")
        recorder = TrafficRecorder(self.comm) if options.pop("profile", False) else None
        with self.comm.guard():
            size, parts = options.get("batch_size", 128), self.parts
            self._require_alike(arguments_of(fit, train, options))
            if isinstance(size, int) and size % parts:
                raise ConfigError(
                    f"batch_size is {size}, which does not split into {parts} equal parts: give "
                    f"{max(size - size % parts, parts)} or a different multiple of {parts}"
                )
            stop, run = options.get("stop"), options.get("run")
            if callable(stop):
                options["stop"] = lambda: self.comm.any(stop())
            if run is not None:
                options["run"] = SharedRun(run if isinstance(run, Run) else Run(run), self)
            if self.comm.rank:
                options["progress"] = options["on_log"] = None
            trainer.step_hook = recorder
            try:
                history = fit(train, **options)
            finally:
                trainer.step_hook = None
            return history if recorder is None else History(history, profile=recorder.result())

    def require_whole(self) -> None:
        """Refuse uses that need all rows of all tables.

        Raises
        ------
        ConfigError
            Always.
        """
        raise ConfigError(
            "parallel: a rank has only some rows of a table: save() the model and load it in one "
            "process"
        )
