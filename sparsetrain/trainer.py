# SPDX-License-Identifier: Apache-2.0
"""`Trainer`: parameters, optimizer state and the step that changes them.

A step is three calls: `Program` gives the loss and the gradients (row-sparse for tables), all are
checked to be finite, `Optimizer.apply_` writes the dense parameters and the touched rows. Cost and
memory depend on the ids of the batch, not on the rows of the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sparsetrain import runtime, saved
from sparsetrain.build import GradientProgram, Program, value_and_grad
from sparsetrain.checkpoint import Saved
from sparsetrain.data import Batch, Dataset, Encoder
from sparsetrain.data.split import split
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.fit import EarlyStopping, Fit, Plan, Record, State, begin, fingerprint_of
from sparsetrain.inlined import InlinedProgram, InlinedStep
from sparsetrain.metrics import ClickMetrics
from sparsetrain.numerics import first_nonfinite
from sparsetrain.optim import Applied, Optimizer, accumulate_
from sparsetrain.pools import single_blas
from sparsetrain.precision import Precision, policy_for
from sparsetrain.profile import RECORDED, WARM, StepProfile, Watch
from sparsetrain.run import Run
from sparsetrain.state import check_kinds, load_arrays_, named_arrays, named_tables, writable_arrays


class Loss:
    """Mean loss of a batch, before the step; ``float(loss)`` reads it."""

    def __init__(self, tensor: runtime.NDArray) -> None:
        self._tensor = tensor

    def __float__(self) -> float:
        return float(runtime.as_numpy(self._tensor))

    def __repr__(self) -> str:
        return f"Loss({float(self):.6f})"


class Trainer:
    """Trains a model of this package.

    Parameters
    ----------
    model : DLRM or another class of `sparsetrain.models`
        Gives the Relax module, the initial parameters and the inputs of a batch.
    optimizer : Optimizer
        From `sparsetrain.optim`.
    target : str or tvm.target.Target
        ``"cuda"``, ``"cpu"``, or ``"auto"``: the GPU if there is one that can be used.
    seed : int
        Decides initial weights and the order of the data.
    encoder : Encoder, optional
        How raw rows become batches; kept with the saved model.
    initialize : bool
        Whether weights are drawn; without, they are undefined until a state is loaded.
    accumulate : int
        Parts in which a batch is computed; the memory of one part, the step of the whole.
    dense_update : {"apart", "inlined"}
        Whether dense parameters are updated by kernels of the optimizer or in the gradient program;
        the bits are the same.
    precision : {"float32", "bf16"}
        What products of matrices read: "bf16" rounds their operands to bfloat16 and sums in
        float32. Parameters, gradients and updates are float32 all the same.

    Examples
    --------
    >>> import sparsetrain as st
    >>> model = st.models.DLRM(rows=[100, 20], dim=8)
    >>> trainer = st.Trainer(model, optimizer=st.optim.adagrad(0.02))
    >>> loss = trainer.step(batch)  # doctest: +SKIP
    """

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
        dense_update: Literal["apart", "inlined"] = "apart",
        precision: Precision = "float32",
    ) -> None:
        if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
            raise ConfigError(f"accumulate must be a whole number from 1, not {accumulate!r}")
        if dense_update not in ("apart", "inlined"):
            raise ConfigError(f"dense_update is 'apart' or 'inlined', not {dense_update!r}")
        self.accumulate = accumulate
        self.dense_update = dense_update
        self.model = model
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(
                "optimizer is a value such as sparsetrain.optim.adagrad(0.02), "
                f"not a {type(optimizer).__name__}"
            )
        self.optimizer = optimizer
        self.encoder = encoder
        self.seed = seed
        self.steps = 0
        self.epochs = 0
        self.target = runtime.resolve_target(target)
        if dense_update == "inlined" and runtime.gpu.is_cuda(self.target):
            raise ConfigError("dense_update='inlined' is for the CPU; on CUDA use 'apart'")
        self.precision = precision
        self._policy = policy_for(precision, self.target)
        self.params = self._on_device(model.initialize(seed, fill=initialize))
        self.state = optimizer.init(self.params, named_tables(model.tables()), fill=initialize)
        self.applied: Applied | None = None  # what the last step did: norm, skipped or not
        self._module = model.export()
        self._inlined: InlinedProgram | None = None
        self._watch: Watch | None = None  # records steps, while they are profiled
        self._state: State | None = None  # where the run stood that this trainer was loaded from

    def _on_device(self, params: dict[str, runtime.NDArray]) -> dict[str, runtime.NDArray]:
        """Parameters where the target wants them; empties `params`, so that no two copies stay."""
        device = runtime.device_of(self.target)
        return {
            name: runtime.moved(params.pop(name), device, f"parameter {name!r}")
            for name in list(params)
        }

    @cached_property
    def program(self) -> GradientProgram:
        """The gradient program; ``trainer.program.module`` is its IRModule before lowering."""
        return value_and_grad(self._module, "loss", target=self.target, precision=self._policy)

    @cached_property
    def _logits(self) -> Program:
        return Program(self._module, "logits", self.target, self._policy)

    def step(self, batch: Batch) -> Loss:
        """Train on one batch and return its loss, as it was before the step.

        Raises
        ------
        DataError
            If the batch has no labels or does not fit the model.
        NumericalError
            If the loss or a gradient is not finite; nothing is updated then. With
            ``on_nonfinite="skip"`` the step is left out, counted in ``trainer.state.skipped``.
        """
        if self._watch is None:
            return self._step(batch)
        lookups = partial(self._lookups, batch)
        loss: Loss = self._watch.step(partial(self._step, batch), len(batch), lookups)
        return loss

    def _step(self, batch: Batch) -> Loss:
        if batch.labels is None:
            raise DataError("a batch to train on needs labels: Batch(dense, ids, labels)")
        loss, self.applied = self._steps[self.dense_update](self, batch)
        self.steps += 1
        return Loss(loss)

    def _step_apart(self, batch: Batch) -> tuple[runtime.NDArray, Applied]:
        gradients_of = self._accumulated if self.accumulate > 1 else self._gradients
        loss, gradients = gradients_of(batch)
        return loss, self.optimizer.apply_(self.params, gradients, self.state, loss=loss)

    def _step_inlined(self, batch: Batch) -> tuple[runtime.NDArray, Applied]:
        parts = list(split(batch, self.accumulate))
        inputs = self._inputs(parts[0])
        program = self._inlined_program()
        step = InlinedStep(program, self.params, self.optimizer, self.state, len(parts))
        step.run_(inputs, len(parts[0]) / len(batch))
        for part in parts[1:]:
            step.run_(self._inputs(part), len(part) / len(batch))
        return step.loss, step.applied

    _steps = {"apart": _step_apart, "inlined": _step_inlined}

    def _inlined_program(self) -> InlinedProgram:
        """The program for the rules in force; another optimizer's rules make another one."""
        if self._inlined is None or self._inlined.ranges is not self.state.ranges:
            self._inlined = InlinedProgram(
                self.program.gradient, self.state, self.target, self._policy
            )
        return self._inlined

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        """The program's inputs; the rows that it will read are current."""
        inputs: dict[str, Any] = self.model.inputs(batch)
        self.optimizer.catch_up_(self.params, self.model.rows_read(inputs), self.state)
        return inputs

    def _gradients(self, batch: Batch) -> tuple[runtime.NDArray, Mapping[str, Any]]:
        return self.program(self.params, self._inputs(batch))

    def _accumulated(self, batch: Batch) -> tuple[runtime.NDArray, Mapping[str, Any]]:
        total, acc = np.float64(0), dict[str, Any]()
        for part in split(batch, self.accumulate):
            loss, gradients = self._gradients(part)
            share = len(part) / len(batch)
            total += share * float(Loss(loss))
            accumulate_(gradients, acc, share)
        return runtime.as_tensor(np.float32(total)), acc

    def fit(
        self,
        train: Any,
        *,
        validation: Any = None,
        epochs: int = 1,
        batch_size: int = 128,
        shuffle: bool = True,
        progress: Any = "auto",
        stop: Callable[[], bool] | None = None,
        run: Run | str | Path | None = None,
        resume: bool = False,
        validate_every: int | None = None,
        early_stopping: EarlyStopping | None = None,
        check_numerics: bool = False,
        allow_changed: Collection[str] = (),
        profile: bool = False,
    ) -> dict[str, Any]:
        """Train for some epochs.

        Parameters
        ----------
        train, validation : parquet paths, Arrow tables, pandas frames or iterables of Batch
            Whatever `sparsetrain.data.open_source` takes.
        epochs : int
            Passes over `train`; with `resume`, of the whole run.
        batch_size : int
            Rows per step; the last, smaller batch is trained on too.
        shuffle : bool
            Mix the rows, by the trainer's seed and the epoch's number.
        progress : "auto", None or Progress
            What is shown meanwhile, see `sparsetrain.progress`.
        stop : callable, optional
            Asked after every batch, and between those of a validation; True ends training there.
        run : Run or path, optional
            The folder in which checkpoints and a log of every metric are kept.
        resume : bool
            Go on where the checkpoint was that this trainer was loaded from, to the bits that an
            uninterrupted run would have had.
        validate_every : int, optional
            Steps between validations; by default there is one after each epoch.
        early_stopping : EarlyStopping, optional
            When to end, by validation scores.
        check_numerics : bool
            If a step is not finite, find the first value of the program that is not.
        allow_changed : collection of str
            What may differ from the run that is resumed: ``"data"`` or an argument's name.
        profile : bool
            Record the kernels of some early steps; their results stay the same.

        Returns
        -------
        dict
            ``rows``, ``seconds``, ``rows_per_s`` (of training alone, in this call), ``loss`` (mean
            of the last epoch), ``epochs`` (of the whole run, a dict each, with ``valid`` if there
            is validation), ``stopped``, ``stopped_early``, ``best`` (step and value of the best
            validation); with `profile`, ``profile`` (`StepProfile`, or None after too few steps).

        Raises
        ------
        ConfigError
            If `epochs` or `batch_size` is below 1.
        CheckpointError
            If data or an argument differs from the resumed run's, or the run cannot be written.
        NumericalError
            As `step`; the batches before stay trained on.
        ResourceError
            If memory or disk is used up; the last checkpoint stays.
        """
        if epochs < 1:
            raise ConfigError(f"epochs is {epochs}; it must be 1 or more")
        plan = Plan(
            until=epochs if resume else self.epochs + epochs,
            batch_size=batch_size,
            seed=self.seed if shuffle else None,
            validate_every=validate_every,
            early_stopping=early_stopping or EarlyStopping(),
            check_numerics=check_numerics,
            accumulate=self.accumulate,
            precision=str(self.precision),
        )
        dataset = self._dataset(train)
        data = fingerprint_of(train) if run is not None or resume else None
        state = begin(self, plan, data, resume, allow_changed)
        folder = Run(run) if isinstance(run, (str, Path)) else run
        watch = Watch(self._machines) if profile else None
        with ExitStack() as stack:
            stack.enter_context(single_blas())
            if folder:
                stack.enter_context(folder.writing(fresh=not resume))
            if watch:
                stack.enter_context(self._watched(watch))
            history = Fit(
                self,
                dataset,
                None if validation is None else self._dataset(validation),
                plan,
                state,
                Record(folder),
                progress,
                stop or (lambda: False),
            ).run()
        return {**history, "profile": watch.result()} if watch else history

    def profile(self, batch: Batch, *, steps: int = RECORDED) -> StepProfile:
        """Find where a step spends its time: ``print(trainer.profile(batch))``.

        Each step trains on `batch` like any other: the weights change. Its rows stay in the caches
        from step to step; ``fit(..., profile=True)`` records steps over ever new rows.

        Parameters
        ----------
        batch : Batch
            With labels.
        steps : int
            Recorded after some unrecorded ones; at least 2.

        Returns
        -------
        StepProfile
            Per kernel: name, calls, seconds, GFLOP/s or GB/s, and what is outside kernels.

        Raises
        ------
        ConfigError
            If `steps` is below 2, or the target is CUDA.
        NumericalError
            As `step`.
        """
        if steps < 2:
            raise ConfigError(f"profile: steps is {steps}; it must be 2 or more")
        with self._watched(Watch(self._machines, steps=steps)) as watch:
            for _ in range(WARM + steps):
                float(self.step(batch))
        result = watch.result()
        assert result is not None
        return result

    @contextmanager
    def _watched(self, watch: Watch) -> Iterator[Watch]:
        """Let `watch` record the steps that are taken meanwhile."""
        if runtime.gpu.is_cuda(self.target):
            raise ConfigError("profile: on CUDA a call returns before its kernel ends; use nsys")
        self._watch = watch
        try:
            yield watch
        finally:
            self._watch = None

    def _machines(self) -> list[Any]:
        """The virtual machines of a step."""
        return [
            self._inlined_program().machine
            if self.dense_update == "inlined"
            else self.program.machine
        ]

    def _lookups(self, batch: Batch) -> dict[int, int]:
        """Rows of each storage -> how many rows a step on `batch` looks up in it."""
        rows_read = self.model.rows_read(self.model.inputs(batch))
        return {int(self.params[name].shape[0]): int(rows.size) for name, rows in rows_read.items()}

    def evaluate(self, data: Any, *, batch_size: int = 4096) -> dict[str, Any]:
        """Score labelled data.

        Returns
        -------
        dict
            ``auc`` and its error bound ``auc_bound``, ``logloss``, ``ne`` (normalised entropy),
            ``calibration``, ``rows``, and beside them ``constant_logloss`` and ``positive_rate``.
        """
        scores = self._evaluate(self._dataset(data), batch_size=batch_size)
        assert scores is not None
        return scores

    def _evaluate(
        self, dataset: Dataset, *, batch_size: int, stop: Callable[[], bool] | None = None
    ) -> dict[str, Any] | None:
        """Return the scores, or None if `stop`, asked between two batches, ended it."""
        self._flush()
        metrics = ClickMetrics()
        for number, batch in enumerate(dataset.batches(batch_size)):
            if number and stop is not None and stop():
                return None
            if batch.labels is None:
                raise DataError("data to evaluate on needs labels")
            metrics.update(self._score(batch), batch.labels)
        return metrics.result()

    def predict(self, data: Any, *, batch_size: int = 4096) -> np.ndarray:
        """Click probabilities (rows,) float32, in the order of the rows; labels are not needed."""
        self._flush()
        dataset = self._dataset(data, require_label=False)
        logits = [self._score(batch) for batch in dataset.batches(batch_size)]
        scores = np.concatenate(logits) if logits else np.empty(0, np.float32)
        with np.errstate(over="ignore"):  # exp of a large number is infinite, its inverse 0
            return (1 / (1 + np.exp(-scores.astype(np.float64)))).astype(np.float32)

    def _score(self, batch: Batch) -> np.ndarray:
        inputs = self.model.inputs(batch)
        return runtime.as_numpy(self._logits(self.params, inputs))[:, 0]

    def _dataset(self, data: Any, require_label: bool = True) -> Dataset:
        if isinstance(data, Dataset):
            return data
        return Dataset(data, self.encoder, require_label=require_label)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and slots, by name.

        Tables appear one by one, ``embeddings.C1.weight``, however they are stored; a slot as
        ``embeddings.C1.weight:sum``.
        """
        return {name: array.copy() for name, array in self._arrays().items()}

    def load_state_dict(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Copy arrays named as in `state_dict` into the parameters and slots.

        Raises
        ------
        CheckpointError
            If a name is missing or unknown, or a shape or dtype differs; nothing is written then.
        """
        with self._writing() as target:
            load_arrays_(target, arrays)
        self._restored()

    def _read(self, checkpoint: Saved, names: Collection[str]) -> None:
        """Fill parameters and slots from an open checkpoint; undefined after an error."""
        with self._writing() as target:
            check_kinds(target, {name: checkpoint.kinds[name] for name in names})
            checkpoint.fill(target)
        self._restored()

    def _arrays(self, *, current: bool = True) -> dict[str, np.ndarray]:
        if current:
            self._flush()
        return self._with_count(named_arrays(self.params, self.state, self.model.tables()))

    @contextmanager
    def _writing(self) -> Iterator[dict[str, np.ndarray]]:
        with writable_arrays(self.params, self.state, self.model.tables()) as arrays:
            yield self._with_count(arrays, writable=True)

    def _with_count(
        self, arrays: dict[str, np.ndarray], *, writable: bool = False
    ) -> dict[str, np.ndarray]:
        if self.optimizer.counts_steps:
            arrays["optimizer:step"] = runtime.as_numpy(self.state.count, writable=writable)
        return arrays

    def _flush(self) -> None:
        """Make every row current before it is read; only exact mode has something to do."""
        self.optimizer.flush_(self.params, self.state)

    def _restored(self) -> None:
        """Let the optimizer go on from arrays that were just loaded."""
        if not self.optimizer.counts_steps:
            self.state.step = self.steps
        self.optimizer.restored_(self.state)

    def save(self, folder: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """Write model, optimizer and encoder to a folder; see `sparsetrain.checkpoint`."""
        saved.save(self, folder, extra)

    def _snapshot(
        self, extra: Mapping[str, Any], state: dict[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Views of all arrays, and a manifest; `state` is where the run stands."""
        return saved.snapshot(self, extra, state)

    def first_nonfinite(self, batch: Batch) -> str | None:
        """Say which value of the gradient program is the first that is not finite, if one is.

        Runs the program on `batch` once more, compiled so that every value shows.
        """
        arguments = self.program.arguments.bind(self.params, self.model.inputs(batch))
        program = self.program
        return first_nonfinite(program.module, program.function, arguments)


def load(
    folder: str | Path,
    *,
    which: str = "latest",
    target: Any = "auto",
    optimizer: Optimizer | None = None,
    precision: Precision | None = None,
) -> Trainer:
    """Read a trainer that `Trainer.save` or `Trainer.fit` wrote.

    Parameters
    ----------
    folder : path
        What was saved, or the folder of a run.
    which : {"latest", "best"}
        Of a run, which checkpoint.
    target : str or tvm.target.Target
        Where to run.
    optimizer : Optimizer, optional
        Needed only if the run was trained by a formula that is not part of this package.
    precision : {"float32", "bf16"}, optional
        By default the one that it was saved with.

    Raises
    ------
    CheckpointError
        If the folder is damaged or is no saved trainer.
    """
    return saved.load(
        Trainer, folder, which=which, target=target, optimizer=optimizer, precision=precision
    )
