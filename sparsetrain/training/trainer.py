# SPDX-License-Identifier: Apache-2.0
"""`Trainer`: takes steps, one by one or over a run of data.

A step (`step.py`) computes the loss and the gradients (row-sparse for tables), checks that they
are finite, and updates the dense parameters and the touched rows in place. Its time and memory
depend on the ids of the batch, not on the rows of the tables.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from sparsetrain import checkpoint
from sparsetrain.data import Batch, Encoder
from sparsetrain.models.model_checks import check_group_feature, require_several_rows
from sparsetrain.system.argument_checks import require_int, require_type
from sparsetrain.system.blas_threads import single_threaded_blas
from sparsetrain.system.locks import synchronized
from sparsetrain.tables.growth import copy_grown_
from sparsetrain.training.fit import (
    EarlyStopping,
    Fit,
    History,
    Plan,
    ReduceLROnPlateau,
    Seen,
    begin,
    check_fit_arguments,
    seen_of,
)
from sparsetrain.training.grown_model import grown_model
from sparsetrain.training.profile import RECORDED, WARM, StepProfile, Watch
from sparsetrain.training.quantized import QuantizedModel, quantize
from sparsetrain.training.run import Run
from sparsetrain.training.save import describe_trainer
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
    parallel : from `sparsetrain.parallel`, optional
        Processes that train together, each with some rows of the tables: ``st.parallel.mpi()``.

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

    __signature__ = inspect.signature(TrainedModel)  # which `__new__` would hide

    def __new__(cls, *args: Any, parallel: Any = None, **options: Any) -> Trainer:
        """Make a trainer of one process, or one rank's of several."""
        made: Trainer = super().__new__(cls if parallel is None else parallel.trainer)
        return made

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
        on_epoch: Callable[[dict[str, Any]], object] | None = None,
        on_log: Callable[[dict[str, Any]], object] | None = None,
        run: Run | str | Path | None = None,
        resume: bool = False,
        validate_every: int | None = None,
        validate_epochs: int = 1,
        k: int | Sequence[int] = 10,
        early_stopping: EarlyStopping | None = None,
        reduce_lr: ReduceLROnPlateau | None = None,
        group_by: str | None = None,
        check_numerics: bool = False,
        allow_changed: Collection[str] = (),
        profile: bool = False,
    ) -> History:
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
        on_epoch : callable, optional
            Told of each epoch that is over, as the entry of ``epochs`` that it becomes.
        on_log : callable, optional
            Told of each line of the log, such as a logger of `sparsetrain.loggers`; without `run`
            there is a line every 100 steps.
        run : Run or path, optional
            The folder in which checkpoints and a log of every metric are kept.
        resume : bool
            Go on where the checkpoint was that this trainer was loaded from, to the bits that an
            uninterrupted run would have had.
        validate_every : int, optional
            Steps between validations, besides those after epochs.
        validate_epochs : int
            Epochs between validations; the last is validated too.
        k : int or sequence of int
            Of validations that rank items, as in `evaluate`.
        early_stopping : EarlyStopping, optional
            When to end, by validation scores; with patience the trainer then has the weights,
            slots and counts of the best validation. What may be resumed is the last state.
        reduce_lr : ReduceLROnPlateau, optional
            When to lower the learning rate, by validation scores.
        group_by : str, optional
            As in `evaluate`, for validations.
        check_numerics : bool
            If a step is not finite, find the first value of the program that is not.
        allow_changed : collection of str
            What may differ from the run that is resumed: ``"data"`` or an argument's name. Rows to
            validate on may not, by ``"validation"``, where the weights depend on validations.
        profile : bool
            Record the kernels of some early steps; their results stay the same.

        Returns
        -------
        History
            A dict that shows as a table of its epochs, and has it as `frame`:
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
        check_fit_arguments(
            validation, stop, on_epoch, on_log, run, validate_every, early_stopping, reduce_lr
        )
        check_group_feature(self.model, group_by)
        require_several_rows(self._norm, require_int("batch_size", batch_size), self._parts)
        plan = Plan(
            until=require_int("epochs", epochs) + (0 if resume else self.epochs),
            batch_size=batch_size,
            seed=self.seed if shuffle else None,
            validate_every=validate_every,
            validate_epochs=validate_epochs,
            k=k,
            early_stopping=(early_stopping or EarlyStopping()).of_labels(
                self.model.all_labels, group_by is not None, k
            ),
            reduce_lr=reduce_lr,
            check_numerics=check_numerics,
            accumulate=self.accumulate,
            arithmetic=self.arithmetic.to_dict(),
            group_by=group_by,
            parts=None if self.parallel is None else self.parallel.parts,
        )
        dataset = self._rows_to_train_on(train)
        seen = Seen() if run is None and not resume else seen_of(train, validation, plan)
        state = begin(self, plan, seen, resume, allow_changed)
        folder = Run(run) if isinstance(run, (str, Path)) else run
        best = state.best["step"] if state.best else None
        writing = folder and folder.writing(fresh=not resume, size=self._bytes, best=best)
        watch = Watch(self) if profile else None
        recording = watch and watch.recording()
        with single_threaded_blas(), writing or nullcontext(), recording or nullcontext():
            held_out = None if validation is None else self._dataset(validation)
            if self.model.defines("learn"):
                self.learn_(self._dataset(train))
            told = progress, stop, on_epoch, on_log
            history = Fit(self, dataset, held_out, plan, state, folder, *told).run()
            if watch:
                history["profile"] = found = watch.result()
                if folder and folder.logs and found:
                    folder.save_profile(found.to_dict())
        return history

    def _rows_to_train_on(self, data: Any) -> Any:
        """What gives `Fit` its batches."""
        return self._dataset(data, read_weights=True)

    def profile(self, batch: Batch, *, steps: int = RECORDED) -> StepProfile:
        """Find where a step spends its time: ``print(trainer.profile(batch))``.

        The trainer is afterwards as it was before, to the bit; meanwhile there is a copy of its
        weights and slots. Rows of `batch` stay in the caches from step to step;
        ``fit(..., profile=True)`` records steps over ever new rows. On CUDA launches wait for each
        other meanwhile, so a step takes longer than one that is not profiled.

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
            If `steps` is below 2.
        NumericalError
            As `step`.
        """
        require_int("profile: steps", steps, 2)
        watch = Watch(self, steps)
        with watch.recording(), self._taken_back():
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
        and schedules go on; epochs count from 0, as in a new run. This trainer stays as it
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
            plan=self.plan,
            **self.arithmetic.arguments,
        )
        with self.snapshot() as state, made._writing() as target:
            copy_grown_(target, state.arrays, made._table_names(), rare=not encoder.encoded)
            made._recount({**state.counts, "epochs": 0})
        made._restored()
        return made

    @synchronized
    def quantized(self) -> QuantizedModel:
        """A model for prediction alone, whose tables are rows of int8: D + 8 bytes each.

        It predicts on the same target, in the same precision.

        Raises
        ------
        ConfigError
            If the model's class takes no ``table_dtype``.
        NumericalError
            If a row of a table is not finite.
        """
        return quantize(self)

    def save(self, folder: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """Write model, optimizer and encoder to a folder; see `sparsetrain.checkpoint`.

        Raises
        ------
        NumericalError
            If a parameter or a slot is not finite; nothing is written then.
        """
        with describe_trainer(self, extra or {}) as saved:
            checkpoint.write(folder, *saved)
