# SPDX-License-Identifier: Apache-2.0
"""`Trainer`: takes steps, one by one or over a run of data.

A step (`step.py`) computes the loss and the gradients (row-sparse for tables), checks that they
are finite, and updates the dense parameters and the touched rows in place. Its time and memory
depend on the ids of the batch, not on the rows of the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sparsetrain.ad.gradient import Unreached
from sparsetrain.compiler.precision import LossScale, Precision
from sparsetrain.compiler.program import GradientProgram, value_and_grad
from sparsetrain.data import Batch, Encoder
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.kernels.table_formats import target_word
from sparsetrain.models.model_checks import unused_parameters_error
from sparsetrain.optim import Optimizer, StepResult
from sparsetrain.runtime import gpu
from sparsetrain.runtime.targets import resolve_target
from sparsetrain.system.argument_checks import require_int, require_type
from sparsetrain.system.blas_threads import single_threaded_blas
from sparsetrain.system.locks import synchronized
from sparsetrain.training import save
from sparsetrain.training.device_prefetch import DevicePrefetcher
from sparsetrain.training.device_step import DeviceTrainingStep
from sparsetrain.training.find_nonfinite import first_nonfinite
from sparsetrain.training.fit import (
    EarlyStopping,
    Fit,
    Plan,
    ReduceLROnPlateau,
    RunState,
    Seen,
    begin,
    check_fit_arguments,
    seen_of,
)
from sparsetrain.training.groups import check_group_feature
from sparsetrain.training.grow_tables import copy_grown_, grown_model
from sparsetrain.training.predictor import table_dtype_of
from sparsetrain.training.profile import RECORDED, WARM, StepProfile, Watch
from sparsetrain.training.run import Run
from sparsetrain.training.step import Loss, TrainingStep, loss_inputs
from sparsetrain.training.trained_model import TrainedModel


class Trainer(TrainedModel):
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
    precision : {"float32", "bf16", "fp16"}
        What products of matrices read: "bf16" rounds their operands to bfloat16, "fp16" to float16
        (on CUDA), and both sum in float32. Parameters, gradients and updates are float32 all the
        same.
    loss_scale : float, "dynamic" or LossScale, optional
        What the loss is multiplied by in the reverse pass, so that half precision does not round
        small gradients to zero; updates do not see it. A dynamic one falls when a gradient
        overflows, which leaves the step out, and rises again. None is what `precision` needs:
        dynamic for float16, none for the others.
    plan : {"auto", "host", "device"}
        Who sorts the rows of a batch on CUDA; the bits are the same. "host" is for batches that
        `ahead` prepares, as `fit` does; "auto" sorts few there, and many on the device.

    Attributes
    ----------
    scaling : Scaling or None
        The loss's scale and its counts.

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
        precision: Precision = "float32",
        loss_scale: LossScale | float | Literal["dynamic"] | None = None,
        plan: Literal["auto", "host", "device"] = "auto",
    ) -> None:
        self.accumulate = require_int("accumulate", accumulate)
        self.draws = getattr(model, "has_dropout", False)  # while training
        target = resolve_target(target_word(table_dtype_of(model), target))
        super().__init__(model, optimizer, target, seed, encoder, initialize, precision, loss_scale)
        self._ahead = DevicePrefetcher(self, plan)
        self._training_step = (
            DeviceTrainingStep(self, self._ahead)
            if gpu.is_cuda(self.target)
            else TrainingStep(self)
        )
        self.applied: StepResult | None = None  # of the last step: norm, skipped or not
        self._watch: Watch | None = None  # records steps, while they are profiled
        self._run_state: RunState | None = None  # where the run stood that was loaded

    @cached_property
    def program(self) -> GradientProgram:
        """The gradient program; ``trainer.program.module`` is its IRModule before lowering."""
        try:
            program = value_and_grad(
                self._module,
                "loss",
                densify=self.model.densify,
                target=self.target,
                precision=self.policy,
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
        self._training_step.compile()
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
            If it is no batch, has no labels or does not fit the model.
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
        if self._watch is None:
            return self._step(batch)
        loss: Loss = self._watch.step(partial(self._step, batch), batch)
        return loss

    @synchronized
    def _step(self, batch: Batch) -> Loss:
        if batch.labels is None and self.model.label_kinds:
            raise DataError("a batch to train on needs labels: Batch(dense, ids, labels)")
        self.model.check_labels(batch)
        self.model.check_weights(batch)
        self._averages = None
        loss, self.applied = self._training_step.run_(batch)
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
        if not gpu.is_cuda(self.target):
            return iter(batches)
        return self._ahead.batches(iter(batches))

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
        reduce_lr: ReduceLROnPlateau | None = None,
        group_by: str | None = None,
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
            What is shown meanwhile, see `sparsetrain.training.progress`.
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
            When to end, by validation scores; with patience the trainer then has the weights,
            slots and counts of the best validation. What may be resumed is the last state.
        reduce_lr : ReduceLROnPlateau, optional
            When to lower the learning rate, by validation scores.
        group_by : str, optional
            As of `evaluate`, for validations.
        check_numerics : bool
            If a step is not finite, find the first value of the program that is not.
        allow_changed : collection of str
            What may differ from the run that is resumed: ``"data"`` or an argument's name. Rows to
            validate on may not, by ``"validation"``, where the weights depend on validations.
        profile : bool
            Record the kernels of some early steps; their results stay the same.

        Returns
        -------
        dict
            ``rows``, ``seconds``, ``rows_per_s`` (of training alone, in this call), ``loss`` (mean
            of the last epoch), ``epochs`` (of the whole run, a dict each, with ``valid`` if there
            is validation), ``stopped``, ``stopped_early``, ``best`` (step and value of the best
            validation), ``checkpoint`` ("best" if early stopping left the weights of that one, else
            "latest"); with `profile`, ``profile`` (`StepProfile`, or None after too few steps).

        Raises
        ------
        ConfigError
            If `epochs` or `batch_size` is below 1, or there are no rows for a validation.
        CheckpointError
            If data or an argument differs from the resumed run's, or the run cannot be written.
        NumericalError
            As `step`; the batches before stay trained on.
        ResourceError
            If memory or disk is used up; the last checkpoint stays.
        """
        check_fit_arguments(validation, stop, run, validate_every, early_stopping, reduce_lr)
        check_group_feature(self.model, group_by)
        plan = Plan(
            until=require_int("epochs", epochs) + (0 if resume else self.epochs),
            batch_size=batch_size,
            seed=self.seed if shuffle else None,
            validate_every=validate_every,
            early_stopping=(early_stopping or EarlyStopping()).of_labels(
                self.model.label_kinds, group_by is not None
            ),
            reduce_lr=reduce_lr,
            check_numerics=check_numerics,
            accumulate=self.accumulate,
            precision=str(self.precision),
            loss_scale=None if self.scaling is None else self.scaling.rule.to_dict(),
            group_by=group_by,
        )
        dataset = self._dataset(train, read_weights=True)
        seen = Seen() if run is None and not resume else seen_of(train, validation, plan)
        state = begin(self, plan, seen, resume, allow_changed)
        folder = Run(run) if isinstance(run, (str, Path)) else run
        best = state.best["step"] if state.best else None
        writing = folder and folder.writing(fresh=not resume, size=self._bytes, best=best)
        watch = Watch(self) if profile else None
        recording = watch and watch.recording()
        with single_threaded_blas(), writing or nullcontext(), recording or nullcontext():
            held_out = None if validation is None else self._dataset(validation)
            history = Fit(self, dataset, held_out, plan, state, folder, progress, stop).run()
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
        require_int("profile: steps", steps, 2)
        watch = Watch(self, steps)
        with watch.recording():
            for _ in range(WARM + steps):
                float(self.step(batch))
        result = watch.result()
        assert result is not None
        return result

    @synchronized
    def extended(self, encoder: Encoder) -> Trainer:
        """Return a trainer that goes on from this one with rows for new values.

        Known values keep their rows, weights and slots. A new value's row begins as that of rare
        values, by which it was scored so far, so no prediction changes; its slots begin anew. Steps
        and schedules go on; epochs count from 0, as of a run of its own. This trainer stays as it
        is: both are in memory.

        Parameters
        ----------
        encoder : Encoder
            ``trainer.encoder.extended(newer data)``.

        Raises
        ------
        ConfigError
            If the encoder does not extend this trainer's, or the model has other parameters whose
            shape depends on the rows.

        Examples
        --------
        >>> trainer = st.load("monday")  # doctest: +SKIP
        >>> trainer = trainer.extended(trainer.encoder.extended("tuesday.parquet"))
        ... # doctest: +SKIP
        >>> trainer.fit("tuesday.parquet", run="tuesday")  # doctest: +SKIP
        """
        require_type("encoder", encoder, Encoder, "trainer.encoder.extended(newer data)")
        made = Trainer(
            grown_model(self.model, self.encoder, encoder),
            self.optimizer,
            target=self.target,
            seed=self.seed,
            encoder=encoder,
            accumulate=self.accumulate,
            precision=self.precision,
            loss_scale=None if self.scaling is None else self.scaling.rule,
            plan=self._ahead.planner,
        )
        source = self._arrays()
        with made._writing() as target:
            copy_grown_(target, source, made._table_names(), rare=not encoder.encoded)
        made._recount({**self._counts(), "epochs": 0})
        return made

    @synchronized
    def save(self, folder: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """Write model, optimizer and encoder to a folder; see `sparsetrain.checkpoint`.

        Raises
        ------
        NumericalError
            If a parameter or a slot is not finite; nothing is written then.
        """
        save.save(self, folder, extra)

    def _snapshot(
        self, extra: Mapping[str, Any], state: dict[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Views of all arrays, and a manifest; `state` is where the run stands."""
        return save.snapshot(self, extra, state)

    @synchronized
    def first_nonfinite(self, batch: Batch) -> str | None:
        """Say which value of the gradient program is the first that is not finite, if one is.

        Runs the program on `batch` once more, compiled so that every value shows.
        """
        program = self.program
        inputs = loss_inputs(self, batch)
        arguments = program.arguments.bind(self.params, inputs)
        return first_nonfinite(program.module, program.function, arguments)
