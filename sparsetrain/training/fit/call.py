# SPDX-License-Identifier: Apache-2.0
"""The method `Trainer.fit`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from sparsetrain.models.model_checks import check_group_feature, require_several_rows
from sparsetrain.system.argument_checks import require_int
from sparsetrain.system.blas_threads import single_threaded_blas
from sparsetrain.training.fit.arguments import (
    EarlyStopping,
    FitArguments,
    History,
    ReduceLROnPlateau,
    check_fit_arguments,
)
from sparsetrain.training.fit.loop import Fit
from sparsetrain.training.fit.resume import Seen, begin, seen_of
from sparsetrain.training.profile import StepProfiler
from sparsetrain.training.run import Run


def fit(
    self: Any,
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
        Any source that `sparsetrain.data.open_source` accepts.
    epochs : int
        Number of passes over `train`; with `resume`, the total for the run.
    batch_size : int
        Rows per step; the last batch of an epoch may be smaller.
    shuffle : bool
        Shuffle the rows, by the trainer's seed and the epoch's number.
    progress : "auto", None or Progress
        Progress display, see `sparsetrain.training.progress`.
    stop : callable, optional
        Called after each training batch, and between validation batches; if it returns True,
        training ends.
    on_epoch : callable, optional
        Called after each epoch with its entry of ``epochs``.
    on_log : callable, optional
        Called with each line of the log, such as a logger of `sparsetrain.loggers`; without `run`,
        there is a line every 100 steps.
    run : Run or path, optional
        Folder for checkpoints and a log of all metrics.
    resume : bool
        Continue from the checkpoint that this trainer was loaded from, with the same bits as an
        uninterrupted run.
    validate_every : int, optional
        Steps between validations, in addition to those after epochs.
    validate_epochs : int
        Epochs between validations; the last epoch is always validated.
    k : int or sequence of int
        Cutoffs of ranking metrics in validations, as in `evaluate`.
    early_stopping : EarlyStopping, optional
        When to stop, by validation scores; with `patience`, the trainer ends with the weights,
        slots and counts of the best validation. A resumed run continues from the last state.
    reduce_lr : ReduceLROnPlateau, optional
        When to lower the learning rate, by validation scores.
    group_by : str, optional
        As in `evaluate`, for validations.
    check_numerics : bool
        If a step fails with NaN or infinity, find the first such value in the program.
    allow_changed : collection of str
        What may differ from the resumed run: ``"data"``, the name of an argument, or
        ``"validation"``, the validation rows, which are compared only if the weights depend on
        them.
    profile : bool
        Profile the kernels of some early steps; results stay the same.

    Returns
    -------
    History
        A dict that prints as a table of its epochs, which `frame` returns. Its entries are
        ``rows``, ``seconds``, ``rows_per_s`` (training in this call only), ``loss`` (mean of the
        last epoch), ``epochs`` (of the whole run, one dict each, with ``valid`` if there is a
        validation), ``stopped``, ``stopped_early``, ``best`` (step and value of the best
        validation), ``checkpoint`` ("best" if early stopping restored the best weights, else
        "latest") and, if asked for, ``profile`` (`StepProfile`, or None after too few steps).

    Raises
    ------
    ConfigError
        If `epochs` or `batch_size` is below 1, or there are no rows for a validation.
    CheckpointError
        If data or an argument differs from the resumed run's, or the run cannot be written.
    NumericalError
        As in `step`; the results of earlier steps are kept.
    ResourceError
        If memory or disk is full; the last checkpoint is kept.
    """
    check_fit_arguments(
        validation, stop, on_epoch, on_log, run, validate_every, early_stopping, reduce_lr
    )
    check_group_feature(self.model, group_by)
    require_several_rows(self._norm, require_int("batch_size", batch_size), self._parts)
    plan = FitArguments(
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
        options=self._step_options,
        group_by=group_by,
    )
    opened = self._dataset(train, read_weights=True)
    dataset = self._rows_to_train_on(train, opened)
    seen = Seen() if run is None and not resume else seen_of(train, validation, plan)
    state = begin(self, plan, seen, resume, allow_changed)
    folder = Run(run) if isinstance(run, (str, Path)) else run
    best = state.best["step"] if state.best else None
    writing = folder and folder.writing(fresh=not resume, size=self._bytes, best=best)
    profiler = StepProfiler(self) if profile else None
    recording = profiler and profiler.recording()
    with single_threaded_blas(), writing or nullcontext(), recording or nullcontext():
        held_out = None if validation is None else self._dataset(validation)
        if self.model.learns:
            self.learn_(opened)
        callbacks = progress, stop, on_epoch, on_log
        history = Fit(self, dataset, held_out, plan, state, folder, *callbacks).run()
        if profiler:
            history["profile"] = found = profiler.result()
            if folder and folder.logs and found:
                folder.save_profile(found.to_dict())
    return history
