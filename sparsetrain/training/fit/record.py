# SPDX-License-Identifier: Apache-2.0
"""Log and checkpoints of a run in its folder; without a folder nothing is written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparsetrain import checkpoint
from sparsetrain.errors import NumericalError
from sparsetrain.training.fit.error_context import name_checkpoint
from sparsetrain.training.run import Run
from sparsetrain.training.run.events import Events
from sparsetrain.training.run.log import Log, fields
from sparsetrain.training.run.state import RunState
from sparsetrain.training.save import describe_trainer, require_finite
from sparsetrain.training.trained_model import TrainedModel


class Record:
    """Log and checkpoints of a run.

    Parameters
    ----------
    run : Run or None
    grouped : bool
        Whether validations have the scores of groups.
    """

    def __init__(self, run: Run | None, grouped: bool) -> None:
        self._run, self._grouped = run, grouped
        self._log: Log | None = None
        self._events: Events | None = None
        self._saved: tuple[Any, ...] | None = None

    @property
    def latest(self) -> Path | None:
        """The checkpoint that counts, for messages."""
        return self._run.latest if self._run else None

    @contextlib.contextmanager
    def open(self, trainer: TrainedModel, state: RunState) -> Iterator[None]:
        """Open the log where the state says that it ended. The folder must be locked.

        The state counts as saved: it is that of a checkpoint, or nothing was trained yet.
        """
        if self._run is None:
            yield
            return
        if not self._run.logs:
            self._saved = self._key(trainer, state)
            yield
            return
        columns = fields(trainer.model.label_kinds, self._grouped)
        with contextlib.ExitStack() as stack:
            with checkpoint.errors_of(self._run.folder):
                self._log = stack.enter_context(Log(self._run.folder, state.log_lines, columns))
                if self._run.tensorboard:
                    self._events = Events(self._run.folder)
                    stack.callback(self._events.close)
            state.log_lines = self._log.lines
            self._saved = self._key(trainer, state)
            yield

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is due after so many steps."""
        every = self._run.every if self._run else None
        return bool(every and step and step % every == 0)

    def log_training(self, trainer: TrainedModel, state: RunState) -> None:
        """Write the mean loss and the speed since the last such line, if a line is due."""
        step = trainer.steps
        if self._run is None or step == state.log_step or not state.log_rows:
            return
        if step % self._run.log_every and not state.at_epoch_end:
            return
        rows, seconds = state.log_rows, state.log_seconds
        speed = {"rows_per_s": rows / max(seconds, 1e-9), "seconds": seconds}
        lr = trainer.optimizer.number("lr", max(trainer.state.step, 1))
        rate = {} if lr is None else {"lr": lr * trainer.state.lr_scale}
        values = {"rows": rows, **speed, **rate, "loss": state.log_loss_sum / rows}
        if trainer.scaling is not None:
            values["loss_scale"] = trainer.scaling.value
        self._add({"split": "train", **self._where(trainer, state), **values}, state)
        state.log_step = step
        state.log_rows, state.log_loss_sum, state.log_seconds = 0, 0.0, 0.0

    def log_validation(self, trainer: TrainedModel, state: RunState) -> None:
        """Write the scores of the validation that has just been made."""
        if self._run is not None:
            line = {"split": "valid", **self._where(trainer, state), **(state.scores or {})}
            self._add(line, state)

    def save(self, trainer: TrainedModel, state: RunState, *, best: bool) -> None:
        """Write a checkpoint unless this very state is saved already.

        Raises
        ------
        NumericalError
            If a parameter or a slot is not finite; nothing is written then.
        """
        key = self._key(trainer, state)
        if self._run is None or key == self._saved:
            return
        if self._log is not None:
            with checkpoint.errors_of(self._run.folder):
                self._log.sync()
        try:
            with describe_trainer(trainer, self._run.extra, state.to_dict()) as saved:
                self._run.save(trainer.steps, *saved, best=best)
        except NumericalError as error:
            raise NumericalError(f"{error}{name_checkpoint(self.latest)}") from None
        self._saved = key

    def finish(self, trainer: TrainedModel, state: RunState) -> None:
        """Save the last state; without a folder, see whether it could be saved."""
        self.save(trainer, state, best=False)
        if self._run is None:
            with trainer.snapshot(current=False) as last:
                require_finite(last.arrays, trainer.steps)

    def _add(self, line: dict[str, Any], state: RunState) -> None:
        if self._log is None or self._run is None:  # another process writes it
            return
        with checkpoint.errors_of(self._run.folder):
            self._log.add(line)
            if self._events is not None:
                self._events.add(line)
        state.log_lines = self._log.lines

    @staticmethod
    def _key(trainer: TrainedModel, state: RunState) -> tuple[Any, ...]:
        return trainer.steps, state.validated, state.position

    @staticmethod
    def _where(trainer: TrainedModel, state: RunState) -> dict[str, Any]:
        return {"step": trainer.steps, "epoch": state.position.epoch - state.at_epoch_end}
