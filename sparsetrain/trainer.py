# SPDX-License-Identifier: Apache-2.0
"""`Trainer`: parameters, optimizer state and the step that changes them.

A step is three calls: `Program` gives the loss and the gradients (row-sparse for tables), all are
checked to be finite, `Optimizer.apply_` writes the dense parameters and the touched rows. Cost and
memory depend on the ids of the batch, not on the rows of the tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.build import GradientProgram, Program, value_and_grad
from sparsetrain.data import Batch, Dataset, Encoder
from sparsetrain.errors import ConfigError, DataError, NumericalError
from sparsetrain.metrics import ClickMetrics
from sparsetrain.optim import Optimizer
from sparsetrain.progress import make_progress
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.state import load_arrays_, named_arrays


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
        ``"auto"`` is this machine's CPU.
    seed : int
        Decides initial weights and the order of the data.
    encoder : Encoder, optional
        How raw rows become batches; kept with the saved model.

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
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.encoder = encoder
        self.seed = seed
        self.steps = 0
        self.epochs = 0
        self.target = runtime.resolve_target(target)
        self.params: dict[str, runtime.NDArray] = model.initialize(seed)
        self.state = optimizer.init(self.params)
        self._module = model.export()

    @cached_property
    def program(self) -> GradientProgram:
        """The gradient program; ``trainer.program.module`` is its IRModule before lowering."""
        return value_and_grad(self._module, "loss", target=self.target)

    @cached_property
    def _logits(self) -> Program:
        return Program(self._module, "logits", self.target)

    def step(self, batch: Batch) -> Loss:
        """Train on one batch and return its loss, as it was before the step.

        Raises
        ------
        DataError
            If the batch has no labels or does not fit the model.
        NumericalError
            If the loss or a gradient is not finite; nothing is updated then.
        """
        if batch.labels is None:
            raise DataError("a batch to train on needs labels: Batch(dense, ids, labels)")
        loss, gradients = self.program(self.params, self.model.inputs(batch))
        _check_finite(self.steps + 1, loss, gradients)
        self.optimizer.apply_(self.params, gradients, self.state)
        self.steps += 1
        return Loss(loss)

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
    ) -> dict[str, Any]:
        """Train for some epochs.

        Parameters
        ----------
        train, validation : parquet paths, Arrow tables, pandas frames or iterables of Batch
            Whatever `sparsetrain.data.open_source` takes.
        epochs : int
            Passes over `train`.
        batch_size : int
            Rows per step; the last, smaller batch is trained on too.
        shuffle : bool
            Mix the rows, by the trainer's seed and the epoch's number.
        progress : "auto", None or Progress
            What is shown meanwhile, see `sparsetrain.progress`.
        stop : callable, optional
            Asked after every batch; True ends training there.

        Returns
        -------
        dict
            ``rows``, ``seconds``, ``rows_per_s`` (of training alone), ``loss`` (mean of the last
            epoch), ``epochs`` (a dict each, with ``valid`` if there is validation), ``stopped``.

        Raises
        ------
        ConfigError
            If `epochs` or `batch_size` is below 1.
        NumericalError
            As `step`; the batches before stay trained on.
        """
        if epochs < 1:
            raise ConfigError(f"epochs is {epochs}; it must be 1 or more")
        dataset = self._dataset(train)
        held_out = None if validation is None else self._dataset(validation)
        stop = stop or (lambda: False)
        self.program.compile()
        history: dict[str, Any] = {"rows": 0, "seconds": 0.0, "epochs": [], "stopped": False}
        for _ in range(epochs):
            seed = self.seed if shuffle else None
            batches = dataset.batches(batch_size, seed=seed, epoch=self.epochs)
            epoch = self._train_epoch(batches, dataset.num_rows, make_progress(progress), stop)
            history["stopped"] = epoch.pop("stopped")
            history["rows"] += epoch["rows"]
            history["seconds"] += epoch["seconds"]
            self.epochs += not history["stopped"]
            if held_out is not None and not history["stopped"]:
                epoch["valid"] = self._evaluate(held_out, batch_size=4096)
            history["epochs"].append(epoch)
            history["loss"] = epoch["loss"]
            if history["stopped"]:
                break
        history["rows_per_s"] = history["rows"] / max(history["seconds"], 1e-9)
        return history

    def _train_epoch(
        self,
        batches: Iterator[Batch],
        total: int | None,
        progress: Any,
        stop: Callable[[], bool],
    ) -> dict[str, Any]:
        rows, weighted, stopped, began = 0, 0.0, False, time.perf_counter()
        progress.start(total)
        try:
            for batch in batches:
                loss = float(self.step(batch))
                rows += len(batch)
                weighted += loss * len(batch)
                progress.advance(len(batch), loss)
                stopped = stop()
                if stopped:
                    break
        finally:
            progress.finish()
            _close(batches)
        seconds = time.perf_counter() - began
        mean = weighted / rows if rows else float("nan")
        return {"rows": rows, "seconds": seconds, "loss": mean, "stopped": stopped}

    def evaluate(self, data: Any, *, batch_size: int = 4096) -> dict[str, Any]:
        """Score labelled data.

        Returns
        -------
        dict
            ``auc`` and its error bound ``auc_bound``, ``logloss``, ``ne`` (normalised entropy),
            ``calibration``, ``rows``, and beside them ``constant_logloss`` and ``positive_rate``.
        """
        return self._evaluate(self._dataset(data), batch_size=batch_size)

    def _evaluate(self, dataset: Dataset, *, batch_size: int) -> dict[str, Any]:
        metrics = ClickMetrics()
        for batch in dataset.batches(batch_size):
            if batch.labels is None:
                raise DataError("data to evaluate on needs labels")
            metrics.update(self._score(batch), batch.labels)
        return metrics.result()

    def predict(self, data: Any, *, batch_size: int = 4096) -> np.ndarray:
        """Click probabilities (rows,) float32, in the order of the rows; labels are not needed."""
        dataset = Dataset(data, self.encoder, require_label=False)
        logits = [self._score(batch) for batch in dataset.batches(batch_size)]
        scores = np.concatenate(logits) if logits else np.empty(0, np.float32)
        with np.errstate(over="ignore"):  # exp of a large number is infinite, its inverse 0
            return (1 / (1 + np.exp(-scores.astype(np.float64)))).astype(np.float32)

    def _score(self, batch: Batch) -> np.ndarray:
        inputs = self.model.inputs(batch)
        return runtime.as_numpy(self._logits(self.params, inputs))[:, 0]

    def _dataset(self, data: Any) -> Dataset:
        return Dataset(data, self.encoder)

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
        load_arrays_(self._arrays(writable=True), arrays)

    def _arrays(self, *, writable: bool = False) -> dict[str, np.ndarray]:
        return named_arrays(self.params, self.state, self.model.tables(), writable=writable)

    def save(self, folder: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """Write model, optimizer and encoder to a folder; see `sparsetrain.checkpoint`."""
        from sparsetrain.saved import save

        save(self, folder, extra)


def load(
    folder: str | Path, *, target: Any = "auto", optimizer: Optimizer | None = None
) -> Trainer:
    """Read a trainer that `Trainer.save` wrote.

    Parameters
    ----------
    folder : path
        The folder.
    target : str or tvm.target.Target
        Where to run.
    optimizer : Optimizer, optional
        Needed only if the run was trained by a formula that is not part of this package.

    Raises
    ------
    CheckpointError
        If the folder is damaged or is no saved trainer.
    """
    from sparsetrain.saved import load as read

    return read(folder, target=target, optimizer=optimizer)


def _check_finite(step: int, loss: runtime.NDArray, gradients: Mapping[str, Any]) -> None:
    """Stop before a step that would write NaN or infinity.

    The loss alone does not tell: ReLU turns a NaN into 0, so a ruined model keeps a finite loss.
    """
    written = {f"gradient of {name!r}": gradient for name, gradient in gradients.items()}
    for what, value in {"loss": loss, **written}.items():
        numbers = runtime.as_numpy(value.values if isinstance(value, RowSparse) else value)
        if not np.isfinite(numbers).all():
            shown = float(numbers) if numbers.ndim == 0 else "not finite"
            raise NumericalError(
                f"the {what} is {shown} in step {step}: nothing was updated; lower the learning "
                "rate or look at this batch's dense features"
            )


def _close(iterator: Any) -> None:
    """End a generator now, so that its background thread stops with it."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
