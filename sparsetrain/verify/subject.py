# SPDX-License-Identifier: Apache-2.0
"""The subject of the checks: a model, its weights, and batches from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sparsetrain import optim, runtime
from sparsetrain.compiler.program import GradientProgram
from sparsetrain.data import Batch, Dataset, Encoder
from sparsetrain.data.synthetic import SyntheticCriteo
from sparsetrain.errors import CheckpointError, DataError
from sparsetrain.models import DLRM
from sparsetrain.optim import Optimizer
from sparsetrain.runtime.tensors import editable_numpy
from sparsetrain.training.load import load
from sparsetrain.training.step import loss_inputs
from sparsetrain.training.trainer import Trainer
from sparsetrain.verify.widen import as_array

BATCH_SIZE, BATCHES = 128, 6
_SYNTHETIC_ROWS = 4096


@dataclass
class Subject:
    """A float32 model on the CPU, the starting point of every check.

    Parameters
    ----------
    model : ClickModel
    optimizer : Optimizer
        The run's optimizer, for checks that do not choose their own.
    encoder : Encoder
        Encoder of the rows.
    data : path
        A file of labelled rows.
    weights : mapping of str to Tensor, optional
        Parameters of the run; by default, newly initialized.
    """

    model: Any
    optimizer: Optimizer
    encoder: Encoder
    data: Path
    weights: Mapping[str, runtime.NDArray] | None = None
    _programs: dict[str, Any] = field(default_factory=dict)

    def trainer(self, optimizer: Optimizer | None = None, target: str = "cpu") -> Trainer:
        """Make a trainer with the subject's weights; trainers on one target share a program."""
        chosen = optimizer or self.optimizer
        made = Trainer(self.model, chosen, target=target, encoder=self.encoder)
        for name, weight in (self.weights or {}).items():
            with editable_numpy(made.params[name]) as view:
                view[...] = runtime.as_numpy(weight)
        made.program = self._programs.setdefault(target, made.program)
        return made

    @cached_property
    def program(self) -> GradientProgram:
        """The gradient program for the CPU."""
        return self.trainer(optim.sgd(0.0)).program

    @cached_property
    def batches(self) -> list[Batch]:
        """The first batches of the file."""
        found = Dataset(str(self.data), self.encoder).batches(BATCH_SIZE, prefetch=0)
        batches = list(islice(found, BATCHES))
        if not batches:
            raise DataError(f"{self.data}: the file has no rows")
        return batches

    def inputs(self, number: int = 0) -> dict[str, Any]:
        """Return the inputs of the gradient program for a batch."""
        return loss_inputs(self.trainer(), self.batches[number])

    def rows(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the distinct rows, sorted, that a batch reads in each storage."""
        read = self.model.rows_read(inputs)
        return {name: np.unique(as_array(rows)) for name, rows in read.items()}


def new_subject(folder: Path) -> Subject:
    """Make a small DLRM with synthetic rows, which are written to `folder`."""
    data = folder / "rows.parquet"
    SyntheticCriteo(0).write(data, _SYNTHETIC_ROWS, chunk_rows=_SYNTHETIC_ROWS)
    encoder = Encoder.fit(str(data), min_count=2)
    model = DLRM(rows=encoder.rows, dim=16, bottom=(64,), top=(64,), num_dense=encoder.num_dense)
    return Subject(model, optim.adam(0.001, mode="exact"), encoder, data)


def subject_of_run(run: Path, data: Path, model: type | None = None) -> Subject:
    """Return the model of a run, with its weights and its optimizer.

    Raises
    ------
    CheckpointError
        If the run cannot be read, or has no encoder.
    """
    saved = load(run, checkpoint="auto", target="cpu", precision="float32", model=model)
    if saved.encoder is None:
        raise CheckpointError(f"{run} has no encoder: its rows cannot be read")
    return Subject(saved.model, saved.optimizer, saved.encoder, data, saved.params)


def flip_bit_(trainer: Trainer, rows: Sequence[int] = (0,)) -> None:
    """Flip the lowest bit of one number of a table, in the first of `rows`."""
    name = next(iter(trainer.model.tables()))
    with editable_numpy(trainer.params[name]) as view:
        words = view.view(f"u{view.itemsize}")
        words[rows[0], 0] ^= 1
