# SPDX-License-Identifier: Apache-2.0
"""Training step of several ranks: rows come from their owners, gradients go back once.

A batch of B rows is cut into K parts, of which each rank computes some. Rows are exchanged once a
step, and so are gradients, summed over a rank's parts before. Dense parameters are replicated, and
every rank updates them alike; of tables each updates its own rows. What is not finite anywhere is
known everywhere before the first write.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from sparsetrain import runtime
from sparsetrain.ad.gradient import LOSS_SCALE, gradient
from sparsetrain.compiler.program import GradientProgram
from sparsetrain.data import Batch
from sparsetrain.data.batch import micro_batches
from sparsetrain.optim import StepResult
from sparsetrain.optim.gradients import global_norm, nonfinite
from sparsetrain.optim.result import skip_step
from sparsetrain.optim.update.apply import apply_
from sparsetrain.optim.update.check_kernel import which_nonfinite
from sparsetrain.parallel.comm import tree
from sparsetrain.parallel.cut import Lookups, cut_gradient
from sparsetrain.parallel.shards import Shards
from sparsetrain.parallel.sums import DenseSums, exact_norm
from sparsetrain.runtime import NDArray
from sparsetrain.training.step import scale_of, step_inputs


class _Part(NamedTuple):
    """Rows of a batch that are computed together: their share, and the first one's number.

    `slot` counts the parts of a rank, those without rows too.
    """

    slot: int
    batch: Batch
    share: float
    first_row: int


class ShardedStep:
    """Steps of a trainer whose tables are sharded; see `TrainingStep`."""

    def __init__(self, trainer: Any, shards: Shards) -> None:
        self._trainer, self._shards = trainer, shards
        self._compiled = False

    @cached_property
    def _cut(self) -> tuple[GradientProgram, Lookups]:
        trainer = self._trainer
        found = gradient(trainer._module, "loss", scaled=True)
        cut, lookups = cut_gradient(found, self._shards.plan)
        return GradientProgram(cut, trainer.target, trainer.policy), lookups

    def compile(self) -> None:
        """Compile the program of a step, first on one rank of each machine: others find it."""
        self._shards.in_turn(lambda: self._cut[0].machine)
        self._compiled = True

    @property
    def machines(self) -> list[Any]:
        """The virtual machines that run in a step."""
        return [self._cut[0].machine]

    @cached_property
    def _sums(self) -> list[DenseSums]:
        """A buffer for each of the rank's parts."""
        structure = self._cut[0].gradient.structure
        shapes = {n: self._shape(n) for n, template in structure.items() if template is None}
        each = self._shards.parts // self._shards.comm.size
        return [DenseSums(shapes, 1 + len(self._shards.plan)) for _ in range(each)]

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(map(int, self._trainer.params[name].shape))

    def run_(self, batch: Batch) -> tuple[NDArray, StepResult]:
        """See `TrainingStep.run_`; every rank is given the same batch."""
        if not self._compiled:
            self.compile()
        parts = self._own_parts(batch)
        lookups = self._cut[1]
        inputs = [self._trainer.model.inputs(part.batch, threads=True) for part in parts]
        rows = self._shards.fetch(self._trainer, self._trainer.params, inputs, lookups)
        with np.errstate(over="ignore", invalid="ignore"):  # of which the step says more
            sums, sparse = self._gradients(parts, inputs, rows)
            self._shards.comm.tree_sum_(sums.buffer)
        return self._apply_(sums, sparse)

    def _own_parts(self, batch: Batch) -> list[_Part]:
        """Those of the rank's parts that have rows."""
        shards, count = self._shards, len(batch)
        edges = [count * part // shards.parts for part in range(shards.parts + 1)]
        filled = [part for part in range(shards.parts) if edges[part] < edges[part + 1]]
        pieces: Iterator[Batch] = micro_batches(batch, shards.parts)
        return [
            _Part(shards.slot_of(part), piece, len(piece) / count, edges[part])
            for part, piece in zip(filled, pieces, strict=True)
            if shards.slot_of(part) in range(len(self._sums))
        ]

    def _gradients(
        self, parts: list[_Part], inputs: list[dict[str, Any]], rows: dict[str, NDArray]
    ) -> tuple[DenseSums, dict[str, list[Any]]]:
        """Dense sums of the rank's parts, and the row-sparse gradients of each part."""
        trainer, program = self._trainer, self._cut[0]
        scale = scale_of(trainer.scaling).loss_scale
        slots = len(self._sums)
        sparse: dict[str, list[Any]] = {name: [None] * slots for name in self._shards.plan}
        filled: list[DenseSums | None] = [None] * slots
        for part, given in zip(parts, inputs, strict=True):
            given |= step_inputs(trainer, part.first_row)
            given[LOSS_SCALE] = np.float32(scale * part.share)
            loss, gradients = program({**trainer.params, **rows}, given, checked=True)
            bad = which_nonfinite([gradients[name].values for name in sparse])
            flags = np.isin(np.arange(len(sparse)), bad)
            share = np.float32(part.share) * runtime.as_numpy(loss)
            filled[part.slot] = self._sums[part.slot].fill_(gradients, [share, *flags])
            for name, own in sparse.items():
                own[part.slot] = gradients[name]
        return tree(filled, DenseSums.add_) or self._sums[0].clear_(), sparse

    def _apply_(self, sums: DenseSums, sparse: dict[str, list[Any]]) -> tuple[NDArray, StepResult]:
        trainer, shards = self._trainer, self._shards
        scale = scale_of(trainer.scaling)
        loss = runtime.as_tensor(sums.numbers[0].copy())
        bad = [name for name, flag in zip(sparse, sums.numbers[1:], strict=True) if flag > 0]
        if bad:
            first = nonfinite(loss, sums.gradients)
            problem = first or f"the gradient of {bad[0]!r} is not finite"
            overflowed = scale.may_overflow and bool(np.isfinite(sums.numbers[0]))
            return loss, skip_step(trainer.state, problem, scale, overflowed)
        gradients = {**sums.gradients, **shards.give(trainer, sparse)}
        # Duplicates were added up meanwhile: on all ranks alike, before the first write.
        if shards.comm.any(bool(which_nonfinite([gradients[name].values for name in sparse]))):
            problem = "a sum of gradients is not finite"
            return loss, skip_step(trainer.state, problem, scale, scale.may_overflow)
        order = self._cut[0].gradient.structure
        norm_of = lambda g: exact_norm(g, shards.comm)  # noqa: E731
        _, result = apply_(
            trainer.optimizer,
            trainer.params,
            {name: gradients[name] for name in order},
            trainer.state,
            loss,
            scale.loss_scale,
            scale.may_overflow,
            norm_of if shards.parts > 1 else global_norm,
        )
        return loss, result
