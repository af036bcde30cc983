# SPDX-License-Identifier: Apache-2.0
"""`Trainer`: runs training steps, one by one or over data.

A step (`step.py`) computes the loss and the gradients (row-sparse for tables), checks that they
are finite, and updates the dense parameters and the touched rows in place. Its time and memory
depend on the ids of the batch, not on the rows of the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cached_property, partial
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np

from sparsetrain import runtime
from sparsetrain.checkpoint import Saved
from sparsetrain.compiler.precision import LossScale, Precision, Scaling
from sparsetrain.compiler.precision.arithmetic import Arithmetic
from sparsetrain.compiler.program import GradientProgram
from sparsetrain.data import Batch, Encoder
from sparsetrain.errors import ConfigError
from sparsetrain.models.model_checks import (
    model_for,
    norm_of_rows,
    require_several_rows,
    table_format_of,
)
from sparsetrain.optim import Optimizer, StepResult, averages
from sparsetrain.optim.arguments import optimizer_of
from sparsetrain.runtime.targets import resolve_target
from sparsetrain.system.argument_checks import require_int, require_type
from sparsetrain.system.locks import synchronized
from sparsetrain.tables.on_disk import OnDisk
from sparsetrain.tables.state_dict import load_arrays_, named_tables
from sparsetrain.training.chosen_items import learn_
from sparsetrain.training.find_nonfinite import first_nonfinite
from sparsetrain.training.fit.call import fit
from sparsetrain.training.gradient_program import gradient_program
from sparsetrain.training.grown_model import extended
from sparsetrain.training.named_tables import load_table, table
from sparsetrain.training.on_disk import with_disk
from sparsetrain.training.predictor import Predictor
from sparsetrain.training.processes import ALONE, fitted, together, whole
from sparsetrain.training.profile import profile
from sparsetrain.training.quantized import quantized
from sparsetrain.training.run.state import RunState
from sparsetrain.training.save import describe_trainer
from sparsetrain.training.state import rule_then
from sparsetrain.training.step import Loss, loss_inputs

Planner = Literal["auto", "host", "device"]  # where the rows of a staged batch are sorted


class Trainer(Predictor):
    """Trains a model of this package.

    Parameters
    ----------
    model : Model, class or str
        A model such as ``DLRM.for_encoder(encoder, dim=32)``; a class, or a name in
        `sparsetrain.models.MODELS`, is constructed for the encoder.
    optimizer : Optimizer or str
        From `sparsetrain.optim`, or the name of one, which then has a learning rate of 0.02.
    target : str or tvm.target.Target
        ``"cuda"``, ``"cpu"``, or ``"auto"``: the GPU if one can be used.
    seed : int
        Seed of the initial weights and of the order of the data.
    encoder : Encoder, optional
        Converts raw rows to batches; saved with the model.
    initialize : bool
        Whether to draw weights; otherwise they are undefined until a state is loaded.
    accumulate : int
        Number of parts of a batch, computed one after the other: a step needs the memory of one
        part, but updates once for the whole batch.
    precision : {"float32", "bf16", "fp16"}
        Precision of the operands of matrix products: "bf16" rounds them to bfloat16, "fp16" to
        float16 (on CUDA); both sum in float32. Parameters, gradients and updates stay float32.
    loss_scale : float, "dynamic" or LossScale, optional
        Factor of the loss in the reverse pass, so that half precision does not round small
        gradients to zero; updates divide by it. A dynamic scale falls when a gradient overflows,
        which skips the step, and rises again later. None is "dynamic" for "fp16", else no scale.
    plan : {"auto", "host", "device"}
        Where to sort the rows of a batch on CUDA; results are the same. "host" needs batches from
        `prefetch`, which `fit` uses; "auto" sorts few rows on the host, many on the device.
    parallel : from `sparsetrain.parallel`, optional
        Processes that train together, each with some rows of the tables: ``st.parallel.mpi()``.
    tables : OnDisk, optional
        Where tables larger than memory are kept on disk; by default they are in memory.
    **options
        Further arguments of the model, if its class or name is given: ``dim=32``.

    Attributes
    ----------
    scaling : Scaling or None
        The loss's scale and its counts.

    Examples
    --------
    >>> import sparsetrain as st
    >>> model = st.models.DLRM(rows=[100, 20], dim=8)
    >>> trainer = st.Trainer(model, st.optim.adagrad(0.02))
    >>> loss = trainer.step(batch)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Any,
        optimizer: Optimizer | str = "adagrad",
        *,
        target: Any = "auto",
        seed: int = 0,
        encoder: Encoder | None = None,
        initialize: bool = True,
        accumulate: int = 1,
        precision: Precision = "float32",
        loss_scale: LossScale | float | Literal["dynamic"] | None = None,
        plan: Planner = "auto",
        parallel: Any = None,
        tables: OnDisk | None = None,
        **options: Any,
    ) -> None:
        require_type("encoder", encoder, Encoder, "an Encoder, such as Encoder.fit(train)")
        own = [name for name in signature(Trainer).parameters if name != "options"]
        model = model_for(model, encoder, options, own)
        optimizer = optimizer_of(optimizer)
        self.accumulate = require_int("accumulate", accumulate)
        self.draws = getattr(model, "has_dropout", False)  # while training
        target = resolve_target(target)
        table_format_of(model).require_trainable()
        arithmetic = Arithmetic(precision, target, loss_scale)
        group = ALONE if parallel is None else parallel.joined(model, optimizer, accumulate)
        group = with_disk(group, tables, model, optimizer, target, self.accumulate)
        self.on_disk = tables
        with group.guard():
            super().__init__(
                model, target, encoder, arithmetic, seed, initialize=initialize, parallel=group
            )
            self._begin(optimizer, plan, seed, initialize)
            group.begin(self)

    def _begin(self, optimizer: Optimizer, plan: Planner, seed: int, initialize: bool) -> None:
        """Make the slots and the training step."""
        model, self.optimizer = self.model, optimizer
        self._averages: tuple[int, dict[str, runtime.NDArray]] | None = None  # by step number
        tables = named_tables(self.parallel.tables(model))
        constants = model.constants()
        self.state = optimizer.init(
            {name: w for name, w in self.params.weights.items() if name not in constants},
            tables,
            fill=initialize,
            seed=seed,
            scaled=self.scaling is not None,
            buffers=model.buffers(),
            target=self.target,
        )
        self.parallel.open_tables_(self, seed, initialize)
        self.params = self.state.tables.with_constants(map(self.params.table, constants))
        self._norm = norm_of_rows(model)
        if plan not in get_args(Planner):
            raise ConfigError(f"plan must be 'auto', 'host' or 'device', not {plan!r}")
        if plan not in self.backend.plans:
            raise ConfigError(f"plan={plan!r} needs CUDA: on a CPU, remove it")
        self.plan: Planner = plan
        self.training_step = self.parallel.training_step(self)
        self.applied: StepResult | None = None  # result of the last step: norm, whether skipped
        self.run_state: RunState | None = None  # progress of the loaded run
        # While steps are profiled, this hook runs and records each step.
        self.step_hook: Callable[[Callable[[], Loss], Batch], Loss] | None = None

    @property
    def trains(self) -> bool:
        """Whether the model trains in steps; a model without a loss only uses `learn_`."""
        return "loss" in self.model.functions

    learn_ = synchronized(learn_)

    @property
    def scaling(self) -> Scaling | None:
        """The loss scale, if there is one."""
        return self.arithmetic.scaling

    def _described(self) -> list[str]:
        return [self.optimizer.formula.name]

    @property
    def seed(self) -> int:
        """Seed of initial weights, the order of the data and the rounding of 16-bit tables."""
        return self.state.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self.state.seed = seed

    @cached_property
    def program(self) -> GradientProgram:
        """The gradient program; ``trainer.program.module`` is its IRModule before lowering."""
        return gradient_program(
            self.model,
            self._module,
            [name for name in self.state if name not in self.model.buffers()],
            target=self.target,
            precision=self.arithmetic,
            scaled=self.scaling is not None,
        )

    @together
    @synchronized
    def compile(self, *, scores: bool = False) -> None:
        """Compile the programs of a step now instead of in the first step.

        Parameters
        ----------
        scores : bool
            Also compile the functions of `evaluate` and `predict`.
        """
        if self.trains:
            self.training_step.compile()
        if scores:
            self.parallel.compile_scores(self)

    def step(self, batch: Batch) -> Loss:
        """Train on one batch and return its loss before the step.

        Raises
        ------
        DataError
            If `batch` is not a `Batch`, has no labels or does not fit the model.
        NumericalError
            If the loss or a gradient is not finite; then nothing is updated. With
            ``on_nonfinite="skip"``, the step is instead skipped and counted in
            ``trainer.state.skipped``, as is an overflow that a lower loss scale may prevent.
        """
        if self.parallel.parts or not isinstance(batch, Batch):
            return self.parallel.step(self, batch)
        return self._watched(batch, (batch,))

    def _watched(self, batch: Any, pieces: Iterable[Batch]) -> Loss:
        """Train on a batch; `pieces` are the parts that this process computes."""
        step = partial(self._step, batch, pieces)
        return step() if self.step_hook is None else self.step_hook(step, batch)

    @property
    def _parts(self) -> int:
        """Number of parts that a batch is split into."""
        return self.parallel.parts or self.accumulate

    @property
    def _step_options(self) -> dict[str, Any]:
        cut = {"accumulate": self.accumulate, "parts": self.parallel.parts}
        return {**cut, **self.arithmetic.to_dict()}

    def _rows_to_train_on(self, data: Any, opened: Any) -> Any:
        return self.parallel.rows(data, opened)

    @synchronized
    def _step(self, batch: Any, pieces: Iterable[Batch]) -> Loss:
        if self._norm is not None:
            # The last batch of an epoch may have only one row.
            is_rest = batch.position is not None and batch.position.row == 0
            if not (is_rest and self.steps):
                require_several_rows(self._norm, len(batch), self._parts)
        for piece in pieces:
            self.model.check_labelled(piece)
        self._averages = None
        loss, self.applied = self.training_step.run_(batch)
        self.steps += 1
        if self.scaling is not None:
            self.scaling.count_step(self.applied.overflowed, self.applied.skipped is None)
        return Loss(loss)

    def prefetch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the same batches, prepared for training in this order.

        On a GPU, a background thread checks the next batches, copies them to the device and may
        sort their rows; on a CPU, batches are unchanged. `fit` calls this itself.

        Examples
        --------
        >>> for batch in trainer.prefetch(batches):  # doctest: +SKIP
        ...     trainer.step(batch)
        """
        staged: Iterator[Batch] = self.backend.stage(self, iter(batches))
        return staged

    @whole
    @synchronized
    def first_nonfinite(self, batch: Batch) -> str | None:
        """Return a description of the gradient program's first non-finite value, or None.

        Runs the program on `batch` again, compiled to return every value.
        """
        inputs = loss_inputs(self, batch)
        weights = self.params.rows(self.model.rows_read(inputs))
        return first_nonfinite(self.program, weights, inputs)

    fit = fitted(fit)
    profile = whole(profile)
    extended = together(synchronized(extended))
    quantized = together(synchronized(quantized))
    table = whole(table)
    load_table = whole(synchronized(load_table))

    @together
    def save(self, folder: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """Write model, optimizer and encoder to a folder; see `sparsetrain.checkpoint`.

        Raises
        ------
        NumericalError
            If a parameter or a slot is not finite; then nothing is written.
        """
        with describe_trainer(self, extra or {}) as saved:
            self.parallel.write(folder, *saved)

    @synchronized
    def load_state_dict(
        self, arrays: Mapping[str, np.ndarray], counts: Mapping[str, Any] | None = None
    ) -> None:
        """Copy arrays named as in `state_dict` into the parameters and slots.

        Parameters
        ----------
        arrays : mapping of str to array
        counts : mapping, optional
            The counts from `snapshot`, if they are to be restored too.

        Raises
        ------
        CheckpointError
            If a name is missing or unknown, a shape or dtype differs, or the rows of a table in
            exact mode are from different steps; nothing is written then.
        """
        with self._writing() as target:
            load_arrays_(target, arrays, self.params.check_saved)
        if counts is not None:
            self._recount(counts)
        self._restored()

    @synchronized
    def restore_(self, saved: Saved) -> None:
        """See `Predictor.restore_`."""
        super().restore_(saved)
        self._restored(saved.manifest, saved.read, partial(rule_then, saved.manifest))

    def _writing(self) -> AbstractContextManager[dict[str, np.ndarray]]:
        self._averages = None
        return super()._writing()

    def _weights(
        self, read: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, runtime.NDArray]:
        """Return averaged weights, computed once per step, if the optimizer keeps averages."""
        if self.optimizer.average is None:
            return super()._weights(read)
        if self._averages is None or self._averages[0] != self.state.step:
            self._averages = None  # free the old averages before computing new ones
            self._averages = self.state.step, averages(super()._weights(), self.state)
        return self._averages[1]

    def _counts(self) -> dict[str, Any]:
        return {**super()._counts(), "skipped": self.state.skipped, **self.arithmetic.counts}

    def _recount(self, counts: Mapping[str, Any]) -> None:
        super()._recount(counts)
        self.state.skipped = int(counts["skipped"])
        self.arithmetic.restore(counts)

    @property
    def _count(self) -> runtime.NDArray | None:
        return self.state.count if self.optimizer.counts_steps else None

    @property
    def _updates(self) -> int:
        return self.steps - self.state.skipped

    @property
    def _bytes(self) -> int:
        """Size of all parameters and slots in bytes: the least size of a checkpoint."""
        return sum(table.nbytes for table in self.params.each()) * self.parallel.size

    def _restored(self, *before: Any) -> None:
        """Continue the optimizer from arrays that were just loaded; see `Tables.restored`."""
        if not self.optimizer.counts_steps:
            self.state.step = self._updates
        self.params.restored(*before)
