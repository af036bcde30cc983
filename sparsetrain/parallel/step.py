# SPDX-License-Identifier: Apache-2.0
"""Training step of several ranks: rows come from their owners, gradients go back once.

A batch of B rows is cut into K parts, of which each rank computes some. Rows are exchanged once a
step, and so are gradients, summed over a rank's parts before. Dense parameters are replicated, and
every rank updates them alike; of tables each updates its own rows. What is not finite anywhere is
known everywhere before the first write.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.ad.gradient import LOSS_SCALE, gradient
from sparsetrain.compiler.program import GradientProgram
from sparsetrain.optim import StepResult
from sparsetrain.optim.gradients import global_norm, nonfinite
from sparsetrain.optim.result import skip_step
from sparsetrain.optim.update.apply import apply_
from sparsetrain.optim.update.check_kernel import which_nonfinite
from sparsetrain.parallel.comm import tree
from sparsetrain.parallel.cut import Lookups, cut_gradient
from sparsetrain.parallel.reading import Share
from sparsetrain.parallel.shards import Shards
from sparsetrain.parallel.sums import DenseSums, exact_norm
from sparsetrain.runtime import NDArray
from sparsetrain.training.step import loss_inputs, scale_of


class ShardedStep:
    """Steps of a trainer whose tables are sharded; see `TrainingStep`."""

    def __init__(self, trainer: Any, shards: Shards) -> None:
        self._trainer, self._shards = trainer, shards
        self._compiled = False

    @cached_property
    def _cut(self) -> tuple[GradientProgram, Lookups]:
        trainer = self._trainer
        found = gradient(trainer._module, "loss", scaled=True, buffers=trainer.model.buffers())
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
        return [DenseSums(shapes, 1 + len(self._shards.plan)) for _ in self._shards.own_parts]

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(map(int, self._trainer.params[name].shape))

    def run_(self, batch: Share) -> tuple[NDArray, StepResult]:
        """See `TrainingStep.run_`; every rank is given its share of the same batch."""
        if not self._compiled:
            self.compile()
        inputs = {
            part: loss_inputs(self._trainer, own, batch.first_row(part), threads=True)
            for part, own in batch.parts.items()
        }
        lookups = self._cut[1]
        rows = self._shards.fetch(self._trainer, self._trainer.params, [*inputs.values()], lookups)
        with np.errstate(over="ignore", invalid="ignore"):  # of which the step says more
            sums, sparse = self._gradients(batch, inputs, rows)
            self._shards.comm.tree_sum_(sums.buffer)
        return self._apply_(sums, sparse)

    def _gradients(
        self, batch: Share, inputs: dict[int, dict[str, Any]], rows: dict[str, NDArray]
    ) -> tuple[DenseSums, dict[str, list[Any]]]:
        """Dense sums of the rank's parts, and the row-sparse gradients of each part."""
        trainer, program = self._trainer, self._cut[0]
        scale = scale_of(trainer.scaling).loss_scale
        own, buffers = self._shards.own_parts, trainer.state.buffers
        sparse: dict[str, list[Any]] = {name: [None] * len(own) for name in self._shards.plan}
        filled: list[DenseSums | None] = [None] * len(own)
        for part, given in inputs.items():
            share, slot = batch.sizes[part] / len(batch), part - own.start
            given[LOSS_SCALE] = np.float32(scale * share)
            loss, gradients = program({**trainer.params, **rows}, given, checked=True)
            bad = which_nonfinite([gradients[name].values for name in sparse])
            flags = np.isin(np.arange(len(sparse)), bad)
            numbers = [np.float32(share) * runtime.as_numpy(loss), *flags]
            # Buffers are values and no gradients of the loss, so that its scale is not in them.
            shares = dict.fromkeys(buffers, np.float32(share))
            filled[slot] = self._sums[slot].fill_(gradients, numbers, shares)
            for name, values in sparse.items():
                values[slot] = gradients[name]
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
