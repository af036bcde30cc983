# SPDX-License-Identifier: Apache-2.0
"""`TrainedModel`: a model with parameters, slots and counts: steps, and copies of its state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial
from math import prod
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np

from sparsetrain import runtime
from sparsetrain.ad.gradient import Unreached
from sparsetrain.checkpoint import Saved
from sparsetrain.compiler.precision import LossScale, Precision, Scaling
from sparsetrain.compiler.precision.arithmetic import Arithmetic
from sparsetrain.compiler.program import GradientProgram, value_and_grad
from sparsetrain.data import Batch, Encoder
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.kernels.table_formats import check_trainable, numpy_dtype
from sparsetrain.models.model_checks import (
    norm_of_rows,
    require_several_rows,
    table_dtype_of,
    unused_parameters_error,
)
from sparsetrain.optim import Optimizer, StepResult, averages
from sparsetrain.runtime.targets import resolve_target
from sparsetrain.system.argument_checks import require_int
from sparsetrain.system.locks import synchronized
from sparsetrain.tables.state_dict import COUNT, load_arrays_, named_tables
from sparsetrain.training.chosen_items import chosen_items
from sparsetrain.training.find_nonfinite import first_nonfinite
from sparsetrain.training.predictor import Predictor, fill_
from sparsetrain.training.run.state import RunState
from sparsetrain.training.step import Loss, loss_inputs

Planner = Literal["auto", "host", "device"]  # who sorts the rows of a batch that is staged


class TrainedModel(Predictor):
    """What a `Trainer` trains; see there for the parameters."""

    def __init__(
        self,
        model: Any,
        optimizer: Optimizer,
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
    ) -> None:
        self.parallel = parallel
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(
                "optimizer is a value such as sparsetrain.optim.adagrad(0.02), "
                f"not a {type(optimizer).__name__}"
            )
        self.accumulate = require_int("accumulate", accumulate)
        self.draws = getattr(model, "has_dropout", False)  # while training
        target = resolve_target(target)
        check_trainable(table_dtype_of(model))
        arithmetic = Arithmetic(precision, target, loss_scale)
        super().__init__(model, target, encoder, arithmetic, seed, initialize=initialize)
        self.optimizer = optimizer
        self._averages: tuple[int, dict[str, runtime.NDArray]] | None = None  # of a step
        tables = named_tables(self._tables())
        constants = model.constants()
        self.state = optimizer.init(
            {name: w for name, w in self.params.weights.items() if name not in constants},
            tables,
            fill=initialize,
            seed=seed,
            scaled=self.scaling is not None,
            buffers=model.buffers(),
            target=target,
        )
        held = [self.params.table(name) for name in constants]
        self.params = self.state.tables.with_constants(held)
        self._norm = norm_of_rows(model)
        if plan not in get_args(Planner):
            raise ConfigError(f"plan is 'auto', 'host' or 'device', not {plan!r}")
        if plan not in self.backend.plans:
            raise ConfigError(f"plan={plan!r} is for CUDA; on a CPU leave it out")
        self.plan: Planner = plan
        self.training_step = self._new_step()
        self.applied: StepResult | None = None  # of the last step: norm, skipped or not
        self.run_state: RunState | None = None  # where the run stood that was loaded
        # Takes a step, and records it, while steps are profiled.
        self.watch: Callable[[Callable[[], Loss], Batch], Loss] | None = None

    def _new_step(self) -> Any:
        """What takes the steps."""
        return self.backend.training_step(self)

    @property
    def trains(self) -> bool:
        """Whether there are steps; what a model without a loss learns comes from `learn_`."""
        return "loss" in self.model.functions

    @synchronized
    def learn_(self, dataset: Any) -> None:
        """Give constant parameters the values that all rows of a dataset give at once."""
        learnt = self.model.learn(chosen_items(self.model, dataset))
        with self._writing() as target:
            for name, array in learnt.items():
                target[name][...] = array

    @property
    def scaling(self) -> Scaling | None:
        """The scale of the loss, if it has one."""
        return self.arithmetic.scaling

    def _described(self) -> list[str]:
        return [self.optimizer.formula.name]

    @property
    def seed(self) -> int:
        """Decides initial weights, the order of the data and the rounding of half tables."""
        return self.state.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self.state.seed = seed

    @cached_property
    def program(self) -> GradientProgram:
        """The gradient program; ``trainer.program.module`` is its IRModule before lowering."""
        try:
            trained = [name for name in self.state if name not in self.model.buffers()]
            program = value_and_grad(
                self._module,
                "loss",
                trained if self.model.constants() else None,
                densify=self.model.densify,
                target=self.target,
                precision=self.arithmetic,
                scaled=self.scaling is not None,
                buffers=self.model.buffers(),
            )
        except Unreached as error:
            raise unused_parameters_error(self.model, error.names) from None
        sparse = {n for n, g in program.gradient.structure.items() if g is not None}
        if undeclared := sorted(sparse - self.model.tables().keys()):
            raise ConfigError(
                f"{type(self.model).__name__}: {undeclared[0]!r} is looked up by ids of no "
                "feature: name the table in Ids or Sequence, or put ad.densify around it"
            )
        if program.gradient.others:
            raise ConfigError(
                f"the loss of {type(self.model).__name__} returns a tuple: a Trainer needs the "
                "loss alone"
            )
        return program

    @synchronized
    def compile(self, *, scores: bool = False) -> None:
        """Compile what a step runs now, rather than in the first step.

        Parameters
        ----------
        scores : bool
            What `evaluate` and `predict` run as well.
        """
        if self.trains:
            self.training_step.compile()
        if scores:
            for function in {*self.model.functions} - {"loss", "logits"}:
                self._program(function).compile()
            if "logits" in self.model.functions:
                self._logits.compile()

    def step(self, batch: Batch) -> Loss:
        """Train on one batch and return its loss, as it was before the step.

        Raises
        ------
        DataError
            If it is not a batch, has no labels or does not fit the model.
        NumericalError
            If the loss or a gradient is not finite; nothing is updated then. With
            ``on_nonfinite="skip"`` the step is left out, counted in ``trainer.state.skipped``; so
            is one in which a gradient overflows while the loss's scale can fall.
        """
        if not isinstance(batch, Batch):
            raise DataError(
                f"step takes a Batch, not a {type(batch).__name__}; encoder.encode(table) makes "
                "one of a table, Batch(dense, ids, labels) of arrays"
            )
        if self.watch is None:
            return self._step(batch)
        return self.watch(partial(self._step, batch), batch)

    @property
    def _parts(self) -> int:
        """Into how many parts a batch is cut."""
        return self.accumulate if self.parallel is None else int(self.parallel.parts)

    def _check_rows(self, batch: Any) -> None:
        """Refuse batches whose parts have one row, unless it is what an epoch has left over."""
        is_rest = batch.position is not None and batch.position.row == 0
        if not (is_rest and self.steps):
            require_several_rows(self._norm, len(batch), self._parts)

    def _check(self, batch: Batch) -> None:
        """Refuse a batch that cannot be trained on."""
        if self.model.all_labels:
            if batch.labels is None:
                raise DataError("a batch to train on needs labels: Batch(dense, ids, labels)")
            self.model.all_labels.check(batch.labels)
        if self.model.row_weights and batch.weights is None:
            raise DataError(
                "the batch has no weights of rows, but the model's row_weights is True: "
                "Batch(..., weights=w), or an encoder that was fitted with weights=COLUMN"
            )
        if not self.model.row_weights and batch.weights is not None:
            raise DataError(
                "the batch has weights of rows, which this model would not read: make it with "
                "row_weights=True"
            )

    @synchronized
    def _step(self, batch: Any) -> Loss:
        if self._norm is not None:
            self._check_rows(batch)
        self._check(batch)
        self._averages = None
        loss, self.applied = self.training_step.run_(batch)
        self.steps += 1
        if self.scaling is not None:
            self.scaling.note(self.applied.overflowed, self.applied.skipped is None)
        return Loss(loss)

    def ahead(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches, to be trained on one after another.

        On a GPU a thread checks those that follow, copies them to the device and may sort their
        rows meanwhile; on a CPU they come as they are. `fit` does this by itself.

        Examples
        --------
        >>> for batch in trainer.ahead(batches):  # doctest: +SKIP
        ...     trainer.step(batch)
        """
        staged: Iterator[Batch] = self.backend.stage(self, iter(batches))
        return staged

    @synchronized
    def first_nonfinite(self, batch: Batch) -> str | None:
        """Say which value of the gradient program is the first that is not finite, if one is.

        Runs the program on `batch` once more, compiled so that every value shows.
        """
        program = self.program
        inputs = loss_inputs(self, batch)
        arguments = program.arguments.bind(self.params.rows(self.model.rows_read(inputs)), inputs)
        return first_nonfinite(program.module, program.function, arguments)

    @synchronized
    def load_state_dict(
        self, arrays: Mapping[str, np.ndarray], counts: Mapping[str, Any] | None = None
    ) -> None:
        """Copy arrays named as in `state_dict` into the parameters and slots.

        Parameters
        ----------
        arrays : mapping of str to array
        counts : mapping, optional
            Those of `snapshot`, if they are to be restored too.

        Raises
        ------
        CheckpointError
            If a name is missing or unknown, a shape or dtype differs, or rows of a table in exact
            mode are not all of one step; nothing is written then.
        """
        with self._writing() as target:
            load_arrays_(target, arrays, self.params.check_saved)
        if counts is not None:
            self._recount(counts)
        self._restored()

    @contextmanager
    def _taken_back(self) -> Iterator[None]:
        """Restore the state after the block, even if it raises; other threads wait for its end."""
        with self.snapshot() as state:
            arrays = {name: array.copy() for name, array in state.arrays.items()}
            applied = self.applied
            try:
                yield
            finally:
                self.load_state_dict(arrays, state.counts)
                self.applied = applied

    def table(self, name: str) -> np.ndarray:
        """A copy of an embedding table, (V, D) float32; `name` is that of one of its columns.

        Row by row it belongs to ``trainer.encoder.values(name)``.

        Raises
        ------
        ConfigError
            If there is no such table.
        """
        with self.snapshot() as state:
            return state.arrays[self._table_name(name)].astype(np.float32)

    @synchronized
    def load_table(self, name: str, rows: np.ndarray) -> None:
        """Write an embedding table, such as one that was trained elsewhere; its slots stay.

        A table that shall stay as it is has the group ``ParamGroup("embeddings.NAME.*", lr=0)``.

        Parameters
        ----------
        name : str
            That of a column; columns that share a table have one.
        rows : (V, D) floats
            Rounded to what the table is stored in.

        Raises
        ------
        ConfigError
            If there is no such table, the shape is another one, or a number is not finite.
        """
        full, rows = self._table_name(name), np.asarray(rows)
        self.params.current()
        with self._writing() as target:
            table = target[full]
            if rows.shape != table.shape or rows.dtype.kind != "f" and rows.dtype != table.dtype:
                raise ConfigError(
                    f"load_table: {name} is {table.shape} floats, not {rows.shape} {rows.dtype}"
                )
            with np.errstate(over="ignore"):
                stored = rows.astype(np.float32).astype(table.dtype)
            if not np.isfinite(stored).all():
                raise ConfigError(
                    f"load_table: {name} has numbers that are not finite in {table.dtype}"
                )
            table[...] = stored

    def _table_names(self) -> list[str]:
        return [full for parts in named_tables(self.model.tables()).values() for full in parts]

    def _table_name(self, name: str) -> str:
        tables = self._table_names()
        full = self.model.table_of(name)
        if full not in tables:
            known = ", ".join(t.removeprefix("embeddings.").rpartition(".")[0] for t in tables)
            raise ConfigError(f"there is no table {name!r}; there are {known}")
        return full

    @synchronized
    def restore_(self, saved: Saved) -> None:
        """See `Predictor.restore_`."""
        super().restore_(saved)
        self._restored(set(map(str, saved.manifest["exact"])))

    def _fill_(self, target: dict[str, np.ndarray], saved: Saved, names: Collection[str]) -> None:
        """Also let an optimizer that counts steps, such as one with a schedule, take over.

        From one that does not, or the reverse: the trainer's own counts say as much.
        """
        counted = None if COUNT in names else target.pop(COUNT, None)
        fill_(target, saved, {*names} if COUNT in target else {*names} - {COUNT})
        if counted is not None:
            counted[...] = self.steps - self.state.skipped

    def _writing(self) -> AbstractContextManager[dict[str, np.ndarray]]:
        self._averages = None
        return super()._writing()

    def _weights(
        self, read: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, runtime.NDArray]:
        """Averages, if the optimizer keeps them: made once a step."""
        if self.optimizer.average is None:
            return super()._weights(read)
        if self._averages is None or self._averages[0] != self.state.step:
            self._averages = None  # before there are others
            self._averages = self.state.step, averages(self.params.current(), self.state)
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
    def _bytes(self) -> int:
        """Bytes of all parameters and slots: what a checkpoint holds at least."""
        return sum(
            prod(map(int, tensor.shape)) * numpy_dtype(str(tensor.dtype)).itemsize
            for tensor in (*self.params.weights.values(), *self.state.tensors())
        )

    def _restored(self, exact: Collection[str] | None = None) -> None:
        """Let the optimizer go on from arrays that were just loaded.

        `exact` names the tables that were in exact mode then, if others may have been.
        """
        if not self.optimizer.counts_steps:
            self.state.step = self.steps - self.state.skipped
        self.params.restored(exact)
