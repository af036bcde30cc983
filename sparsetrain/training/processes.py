# SPDX-License-Identifier: Apache-2.0
"""Processes that train together: the interface of a group, and a group of one.

`sparsetrain.parallel` defines groups of several processes, which override these methods.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sparsetrain import checkpoint
from sparsetrain.checkpoint import Saved
from sparsetrain.data import Batch
from sparsetrain.errors import DataError
from sparsetrain.models.model_checks import initialize_checked
from sparsetrain.runtime import NDArray, as_numpy
from sparsetrain.tables.growth import last_step
from sparsetrain.tables.table import FOREVER
from sparsetrain.training.equal_rows import distinct_inputs, rows_of

Method = TypeVar("Method", bound=Callable[..., Any])
_UNGUARDED = nullcontext()


class OneProcess:
    """A group of this process alone, which has all rows of all tables."""

    parts: int | None = None  # number of parts of a batch
    most_missed = FOREVER  # most steps that rows in a checkpoint may have missed

    @property
    def size(self) -> int:
        """Number of processes."""
        return 1

    def __repr__(self) -> str:
        return "<one process>"

    def joined(self, model: Any, optimizer: Any, accumulate: int) -> OneProcess:
        """Return the group of the same processes for a new model."""
        return ALONE

    def known(
        self, arrays: Mapping[str, np.ndarray], tables: Iterable[str], row: int
    ) -> tuple[dict[str, np.ndarray], int]:
        """Return row `row` of each table that has it, and the step up to which rows are current."""
        found = {name: arrays[name][row] for name in tables if len(arrays[name]) > row}
        return found, last_step(arrays)

    def guard(self) -> AbstractContextManager[Any]:
        """Return a context in which an error in one process is raised in all of them."""
        return _UNGUARDED

    def tables(self, model: Any) -> Mapping[str, Mapping[str, slice]]:
        """Return, for each storage, the rows of each table in it."""
        found: Mapping[str, Mapping[str, slice]] = model.tables()
        return found

    def initialize(self, model: Any, seed: int, fill: bool) -> dict[str, NDArray]:
        """Return initialized parameters; a table has only the rows of this process."""
        return initialize_checked(model, seed, fill)

    def open_tables_(self, trainer: Any, seed: int, fill: bool) -> None:
        """Open tables that are not kept in memory, and put them into the trainer."""

    def begin(self, trainer: Any) -> None:
        """Check a new trainer."""

    def training_step(self, trainer: Any) -> Any:
        """Return the object that runs the training steps."""
        return trainer.backend.training_step(trainer)

    def rows(self, data: Any, dataset: Any) -> Any:
        """Return the source of batches for `Fit`."""
        return dataset

    def step(self, trainer: Any, batch: Any) -> Any:
        """Split a batch and train on it; a trainer of one process handles batches itself.

        Raises
        ------
        DataError
            If `batch` is not a `Batch`.
        """
        raise DataError(
            f"step needs a Batch, not a {type(batch).__name__}: use encoder.encode(table) for a "
            "table, or Batch(dense, ids, labels) for arrays"
        )

    def compile_scores(self, trainer: Any) -> None:
        """Compile the functions that `evaluate` and `predict` run."""
        for function in {*trainer.model.functions} - {"loss", "logits"}:
            trainer._program(function).compile()
        if "logits" in trainer.model.functions:
            trainer._logits.compile()

    def scored(
        self, predictor: Any, batches: Iterable[Batch]
    ) -> Iterator[tuple[Batch, np.ndarray]]:
        """Yield each batch with its scores."""
        for batch in batches:
            yield batch, predictor._score(batch)

    def vectors(self, predictor: Any, function: str, batch: Batch | None = None) -> np.ndarray:
        """Compute a function's vectors for the rows of a batch, or for all items.

        A run of equal rows is computed once.
        """
        inputs, numbers = distinct_inputs(predictor.model, function, batch)
        with predictor._lock:
            weights = predictor._weights(predictor.model.rows_read(inputs))
            return rows_of(as_numpy(predictor._program(function)(weights, inputs)), numbers)

    def whole(self, weights: Mapping[str, NDArray], names: Container[str]) -> Mapping[str, NDArray]:
        """Return the weights of this process, but with all rows of the named tables."""
        return weights

    def write(
        self, folder: str | Path, arrays: dict[str, np.ndarray], manifest: dict[str, Any]
    ) -> None:
        """Write a checkpoint."""
        checkpoint.write(folder, arrays, manifest)

    def opened(self, saved: Saved) -> Saved:
        """Return this process's view of an open checkpoint."""
        return saved

    def fit(self, trainer: Any, fit: Callable[..., Any], train: Any, options: Any) -> Any:
        """Call `Trainer.fit`."""
        return fit(train, **options)

    def require_whole(self) -> None:
        """Raise an error if this process does not have all rows of a table."""


ALONE = OneProcess()


def same_processes(trainer: Any) -> dict[str, Any]:
    """Return arguments that construct a new trainer for the same processes."""
    return {"parallel": trainer.parallel}


def known(
    trainer: Any, arrays: Mapping[str, np.ndarray], tables: Iterable[str], row: int
) -> tuple[dict[str, np.ndarray], int]:
    """Return a row of each table, and the step up to which rows are current: `OneProcess.known`."""
    found: tuple[dict[str, np.ndarray], int] = trainer.parallel.known(arrays, tables, row)
    return found


def together(method: Method) -> Method:
    """Decorate a method that all processes call, so that an error in one is raised in all."""

    @wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        with self.parallel.guard():
            return method(self, *arguments, **options)

    return call  # type: ignore[return-value]


def fitted(fit: Method) -> Method:
    """Decorate `fit` so that calls go through the trainer's group."""

    @wraps(fit)
    def call(self: Any, train: Any, **options: Any) -> Any:
        return self.parallel.fit(self, partial(fit, self), train, options)

    return call  # type: ignore[return-value]


def whole(method: Method) -> Method:
    """Decorate a method so that it raises in a process with only some rows of a table."""

    @wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        self.parallel.require_whole()
        return method(self, *arguments, **options)

    return call  # type: ignore[return-value]
