# SPDX-License-Identifier: Apache-2.0
"""The state of the best validation, which early stopping restores at the end of a run.

It is the whole state of that step (weights, slots, counts), as a loaded best checkpoint would give
it. With a run folder it is read from the checkpoint and takes no memory; without one, a copy of all
parameters and slots is kept and overwritten at each better validation.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sparsetrain import checkpoint
from sparsetrain.errors import CheckpointError, ResourceError
from sparsetrain.tables.table import FOREVER
from sparsetrain.training.fit.arguments import EarlyStopping
from sparsetrain.training.run import Run, checkpoint_in
from sparsetrain.training.state import TrainingState

_NOT_KEPT = "its weights are not kept here"


class Best:
    """The state of the best validation: a copy in memory, or the run's best checkpoint.

    Parameters
    ----------
    rule : EarlyStopping
        If it has no patience, nothing is kept: the run ends with its last weights.
    run : Run or None
        The run that stores the checkpoints.
    """

    def __init__(self, rule: EarlyStopping, run: Run | None) -> None:
        self._wanted, self._run = rule.patience is not None, run
        self._kept: TrainingState | None = None

    def keep(self, trainer: Any) -> None:
        """Copy the trainer's state, unless the run's folder stores it.

        Raises
        ------
        ResourceError
            If there is no memory for the copy.
        """
        if not self._wanted or self._run is not None:
            return
        with trainer.snapshot() as state:
            try:
                self._kept = _copied(state, self._kept)
            except MemoryError:
                size = sum(array.nbytes for array in state.arrays.values())
                raise ResourceError(
                    f"early stopping keeps a copy of the best weights and slots, {size:,} bytes, "
                    "but there is no memory for it: set run=FOLDER (train --out FOLDER) to keep it "
                    "on disk"
                ) from None

    def restore_(self, trainer: Any, step: int) -> str | None:
        """Set `trainer` to its state after `step` steps; return None, or why it is not possible.

        An interrupt takes effect only after the whole state is restored.

        Raises
        ------
        CheckpointError
            If neither the best nor the last checkpoint can be read; the state is then undefined.
        """
        if trainer.steps == step:
            return None
        with _interrupts_wait(), trainer.snapshot(missed=FOREVER):  # no thread sees a partial state
            if self._run is None:
                return self._from_memory_(trainer, step)
            return _from_folder_(trainer, step, self._run)

    def _from_memory_(self, trainer: Any, step: int) -> str | None:
        # A run resumed without its folder has no copy of its earlier best state.
        if self._kept is None or self._kept.counts["steps"] != step:
            return _NOT_KEPT
        trainer.load_state_dict(*self._kept)
        return None


def _from_folder_(trainer: Any, step: int, run: Run) -> str | None:
    if run.best is None:
        return _NOT_KEPT
    try:
        with checkpoint.opened(run.best) as saved:
            if saved.manifest.get("steps") != step:
                return _NOT_KEPT
            trainer.restore_(saved)
    except BaseException as error:
        with checkpoint.opened(checkpoint_in(run.folder)) as last:
            trainer.restore_(last)
        if not isinstance(error, CheckpointError):
            raise
        return f"its weights cannot be read ({error})"
    return None


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Delay SIGINT until the block ends; in other threads, which it cannot reach, do nothing."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if heard:
            signal.raise_signal(signal.SIGINT)


def _copied(state: TrainingState, before: TrainingState | None) -> TrainingState:
    """Copy a state, into the memory of the previous copy if there is one."""
    if before is None:
        return TrainingState(
            {name: array.copy() for name, array in state.arrays.items()}, state.counts
        )
    for name, array in state.arrays.items():
        before.arrays[name][...] = array
    return before._replace(counts=state.counts)
