# SPDX-License-Identifier: Apache-2.0
"""Log and checkpoints of a run in its folder, and context for errors in a step.

Without a folder, nothing is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sparsetrain import checkpoint
from sparsetrain.data.batch import Batch, Position
from sparsetrain.errors import NumericalError, ResourceError
from sparsetrain.tables.state_dict import require_finite
from sparsetrain.tables.table import FOREVER
from sparsetrain.training.loggers import TensorBoard
from sparsetrain.training.run import Run
from sparsetrain.training.run.folder import LOG_EVERY
from sparsetrain.training.run.log import Log, fields, plain
from sparsetrain.training.run.state import RunState
from sparsetrain.training.save import describe_trainer

OnLog = Callable[[dict[str, Any]], object]

# Texts of out-of-memory errors of hosts, TVM and CUDA.
_NO_MEMORY = ("std::bad_alloc", "out of memory", "OUT_OF_MEMORY", "cudaErrorMemoryAllocation")


@contextlib.contextmanager
def explained(
    trainer: Any, batch: Batch, at: Position, saved: Path | None, check_numerics: bool
) -> Iterator[None]:
    """Add the position in the data and the last checkpoint to an error of a step.

    Raises
    ------
    NumericalError
        If the step raises a `NumericalError`; the new message adds the batch's position and, with
        `check_numerics`, the first value that is not finite.
    ResourceError
        If the step runs out of memory.
    """
    try:
        yield
    except NumericalError as error:
        first = trainer.first_nonfinite(batch) if check_numerics else None
        found = f"; {first}" if first else ""
        raise NumericalError(
            f"{error} ({_place(batch, at)}{found}){name_checkpoint(saved)}"
        ) from None
    except Exception as error:
        if not _is_memory(error):
            raise
        with trainer.snapshot(missed=FOREVER) as state:
            memory = describe_memory(state.arrays)
        raise ResourceError(
            f"out of memory in step {trainer.steps + 1} ({_place(batch, at)}): {memory}; a smaller "
            f"batch needs less{name_checkpoint(saved)}"
        ) from error


def describe_memory(arrays: Any) -> str:
    """Describe the memory of parameters and slots, and name the largest parameter.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Named as in `Trainer.state_dict`; a slot is counted with its parameter.
    """
    sizes: dict[str, int] = {}
    for name, array in arrays.items():
        owner = name.partition(":")[0]
        sizes[owner] = sizes.get(owner, 0) + array.nbytes
    largest = max(sizes, key=sizes.__getitem__)
    total = sum(sizes.values())
    return (
        f"parameters and their slots take {total:,} bytes, the largest, {largest!r}, "
        f"{sizes[largest]:,} of them"
    )


def _is_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY)


def _place(batch: Batch, at: Position) -> str:
    rows = f"rows {at.row:,} to {at.row + len(batch) - 1:,}"
    return f"epoch {at.epoch}, batch {at.batch}: {rows} in the epoch's order"


def name_checkpoint(saved: Path | None) -> str:
    """Return the end of an error message, which names the run's last checkpoint."""
    return f"; the last checkpoint is {saved}" if saved else ""


class Record:
    """Log and checkpoints of a run.

    Parameters
    ----------
    run : Run or None
    grouped : bool
        Whether validations include grouped scores.
    on_log : callable or None
        Called with each line of the log, even if there is no run to write it to.
    """

    def __init__(self, run: Run | None, grouped: bool, on_log: OnLog | None) -> None:
        self._run, self._grouped, self._on_log = run, grouped, on_log
        self._every = run.log_every if run else LOG_EVERY
        self._log: Log | None = None
        self._events: TensorBoard | None = None
        self._saved: tuple[Any, ...] | None = None

    @property
    def latest(self) -> Path | None:
        """The latest valid checkpoint, for messages."""
        return self._run.latest if self._run else None

    @contextlib.contextmanager
    def open(self, trainer: Any, state: RunState) -> Iterator[None]:
        """Open the log, cut to the length that the state records. The folder must be locked.

        The state counts as already saved: it comes from a checkpoint, or nothing was trained yet.
        """
        if self._run is None:
            yield
            return
        if not self._run.logs:
            self._saved = self._key(trainer, state)
            yield
            return
        columns = fields(trainer.model.all_labels, self._grouped)
        with contextlib.ExitStack() as stack:
            with checkpoint.errors_of(self._run.folder):
                self._log = stack.enter_context(Log(self._run.folder, state.log_lines, columns))
                if self._run.tensorboard:
                    self._events = TensorBoard(self._run.folder)
                    stack.callback(self._events.close)
            state.log_lines = self._log.lines
            self._saved = self._key(trainer, state)
            yield

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due after this step."""
        every = self._run.every if self._run else None
        return bool(every and step and step % every == 0)

    def log_training(self, trainer: Any, state: RunState) -> None:
        """If a line is due, write the mean loss and the speed since the previous training line."""
        step = trainer.steps
        if step == state.log_step or not state.log_rows:
            return
        if step % self._every and not state.at_epoch_end:
            return
        rows, seconds = state.log_rows, state.log_seconds
        speed = {"rows_per_s": rows / max(seconds, 1e-9), "seconds": seconds}
        lr = trainer.optimizer.number("lr", max(trainer.state.step, 1))
        rate = {} if lr is None else {"lr": lr * trainer.state.lr_scale}
        values = {"rows": rows, **speed, **rate, "loss": state.log_loss_sum / rows}
        values |= trainer.arithmetic.logged
        self._add({"split": "train", **self._where(trainer, state), **values}, state)
        state.log_step = step
        state.log_rows, state.log_loss_sum, state.log_seconds = 0, 0.0, 0.0

    def log_validation(self, trainer: Any, state: RunState) -> None:
        """Write the scores of the latest validation."""
        line = {"split": "valid", **self._where(trainer, state), **(state.scores or {})}
        self._add(line, state)

    def save(self, trainer: Any, state: RunState, *, best: bool) -> None:
        """Write a checkpoint unless this state is already saved.

        Raises
        ------
        NumericalError
            If a parameter or a slot is not finite; then nothing is written.
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

    def finish(self, trainer: Any, state: RunState) -> None:
        """Save the last state; without a folder, only check that all its numbers are finite."""
        self.save(trainer, state, best=False)
        if self._run is None:
            with trainer.snapshot(missed=FOREVER) as last:
                require_finite(last.arrays, trainer.steps)

    def _add(self, line: dict[str, Any], state: RunState) -> None:
        if self._on_log is not None:
            self._on_log({name: plain(value) for name, value in line.items()})
        if self._log is None or self._run is None:  # there is no log, or another process writes it
            return
        with checkpoint.errors_of(self._run.folder):
            self._log.add(line)
            if self._events is not None:
                self._events(line)
        state.log_lines = self._log.lines

    @staticmethod
    def _key(trainer: Any, state: RunState) -> tuple[Any, ...]:
        return trainer.steps, state.validated, state.position

    @staticmethod
    def _where(trainer: Any, state: RunState) -> dict[str, Any]:
        return {"step": trainer.steps, "epoch": state.position.epoch - state.at_epoch_end}
