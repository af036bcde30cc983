# SPDX-License-Identifier: Apache-2.0
"""Training step of several ranks: table rows come from their owners, gradients go back to them.

A batch of B rows is cut into K parts; each rank computes some of the parts. A step exchanges rows
once, and gradients, summed over a rank's parts, once. Dense parameters are replicated, and every
rank updates them in the same way; a table row is updated by its owner. All ranks learn of any NaN
or infinity before the first write.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.ad.gradient import gradient
from sparsetrain.compiler.dead_rows import eliminate_dead_rows
from sparsetrain.compiler.program import GradientProgram
from sparsetrain.optim import StepResult
from sparsetrain.optim.gradients import nonfinite, problem_of
from sparsetrain.optim.result import skip_step
from sparsetrain.optim.update.apply import apply_
from sparsetrain.optim.update.check_kernel import which_nonfinite
from sparsetrain.parallel.comm import tree
from sparsetrain.parallel.cut import Lookups, cut_gradient
from sparsetrain.parallel.shards import Shards
from sparsetrain.parallel.shared_rows import Share
from sparsetrain.parallel.sums import DenseSums, exact_norm
from sparsetrain.runtime import NDArray
from sparsetrain.training.step import TrainingStep, loss_inputs


class ShardedStep:
    """Steps of a trainer with sharded tables; see `TrainingStep`."""

    def __init__(self, trainer: Any, shards: Shards) -> None:
        self._trainer, self._shards = trainer, shards
        self._compiled = False

    @cached_property
    def _cut(self) -> tuple[GradientProgram, Lookups]:
        trainer = self._trainer
        with trainer.target:
            module, spared = eliminate_dead_rows(trainer._module, "loss", trains=True)
        found = gradient(
            module,
            "loss",
            [*trainer.state] if trainer.model.constants() else None,
            densify=trainer.model.densify,
            scaled=True,
            buffers=trainer.model.buffers(),
        )
        cut, lookups = cut_gradient(found, self._shards.plan)
        return GradientProgram(cut, trainer.target, trainer.arithmetic, spared), lookups

    def compile(self) -> None:
        """Compile the step's program, first on one rank per machine, which fills the cache."""
        self._shards.in_turn(lambda: self._cut[0].machine)
        self._compiled = True

    @property
    def machines(self) -> list[Any]:
        """The virtual machines that run in a step."""
        return [self._cut[0].machine]

    @cached_property
    def _sums(self) -> list[DenseSums]:
        """A buffer of dense sums for each of the rank's parts."""
        structure = self._cut[0].gradient.structure
        shapes = {n: self._shape(n) for n, template in structure.items() if template is None}
        return [DenseSums(shapes) for _ in self._shards.own_parts]

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(map(int, self._trainer.params.weights[name].shape))

    def run_(self, batch: Any) -> tuple[NDArray, StepResult]:
        """See `TrainingStep.run_`; each rank passes its share of the same batch."""
        if not self._compiled:
            self.compile()
        inputs = {
            part: loss_inputs(self._trainer, own, batch.first_row(part), threads=True)
            for part, own in batch.parts.items()
        }
        lookups = self._cut[1]
        weights = self._shards.fetch(self._trainer.params.rows, [*inputs.values()], lookups)
        with np.errstate(over="ignore", invalid="ignore"):  # the step reports overflows itself
            sums, sparse = self._gradients(batch, inputs, weights)
            self._shards.comm.tree_sum_(sums.buffer)
        return self._apply_(sums, sparse)

    def _gradients(
        self, batch: Share, inputs: dict[int, dict[str, Any]], weights: dict[str, NDArray]
    ) -> tuple[DenseSums, dict[str, list[Any]]]:
        """Return dense sums over the rank's parts, and the row-sparse gradients of each part."""
        trainer, program = self._trainer, self._cut[0]
        scale = trainer.arithmetic.loss.scale
        own, buffers = self._shards.own_parts, trainer.state.buffers
        sparse: dict[str, list[Any]] = {name: [None] * len(own) for name in self._shards.plan}
        filled: list[DenseSums | None] = [None] * len(own)
        for part, given in inputs.items():
            share, slot = batch.sizes[part] / len(batch), part - own.start
            scaled = {**given, **scale.inputs(share)}
            loss, gradients = program(weights, scaled, checked=True)
            number = np.float32(share) * runtime.as_numpy(loss)
            # Buffers are values, not gradients, so the loss scale is not in them.
            shares = dict.fromkeys(buffers, np.float32(share))
            filled[slot] = self._sums[slot].fill_(gradients, number, shares)
            for name, values in sparse.items():
                values[slot] = gradients[name]
        return tree(filled, DenseSums.add_) or self._sums[0].clear_(), sparse

    def _apply_(self, sums: DenseSums, sparse: dict[str, list[Any]]) -> tuple[NDArray, StepResult]:
        trainer, shards = self._trainer, self._shards
        scale = trainer.arithmetic.loss.scale
        loss = runtime.as_tensor(sums.number[0].copy())
        gradients = {**sums.gradients, **shards.give(sparse)}
        if bad := self._nonfinite_anywhere([gradients[name].values for name in sparse]):
            problem = nonfinite(loss, sums.gradients) or problem_of(bad[0], None, sparse)
            return loss, skip_step(trainer.state, problem, scale, loss)
        order = self._cut[0].gradient.structure
        _, result = apply_(
            trainer.optimizer,
            trainer.params,
            {name: gradients[name] for name in order},
            trainer.state,
            loss,
            scale,
            lambda found: exact_norm(found, shards.comm),
        )
        return loss, result

    def _nonfinite_anywhere(self, arrays: list[NDArray]) -> list[int]:
        """Return, on every rank, the positions of arrays with NaN or infinity on any rank."""
        comm = self._shards.comm
        flags = np.zeros(len(arrays), np.int64)
        flags[which_nonfinite(arrays)] = 1
        return np.flatnonzero(comm.swap(np.tile(flags, (comm.size, 1))).any(axis=0)).tolist()


class LocalStep(TrainingStep):
    """Steps of one rank and one part: nothing is exchanged."""

    def run_(self, batch: Any) -> tuple[NDArray, StepResult]:
        """See `TrainingStep.run_`."""
        (part,) = batch.parts.values()
        return super().run_(part)
