# SPDX-License-Identifier: Apache-2.0
"""The state of the best validation, with which a run of early stopping ends.

It is the whole state of that step (weights, slots, counts), so the trainer is then what
`load(run, which="best")` gives. With a run folder it is read from there and costs no memory;
without one a copy of all parameters and slots is kept, and written anew at each better validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sparsetrain import checkpoint
from sparsetrain.errors import ResourceError
from sparsetrain.fit.plan import EarlyStopping
from sparsetrain.run import Run


class Best:
    """What is kept of the best validation.

    Parameters
    ----------
    rule : EarlyStopping
        Without patience nothing is kept: such a run ends with its last weights.
    run : Run or None
        Where checkpoints are.
    """

    def __init__(self, rule: EarlyStopping, run: Run | None) -> None:
        self._wanted, self._run = rule.patience is not None, run
        self._arrays: dict[str, np.ndarray] = {}
        self._counts: dict[str, Any] | None = None

    def keep(self, trainer: Any) -> None:
        """Copy the trainer's state, unless a folder will hold it.

        Raises
        ------
        ResourceError
            If there is no memory for the copy.
        """
        if not self._wanted or self._run is not None:
            return
        try:
            self._arrays = _copied(trainer._arrays(), self._arrays)
        except MemoryError:
            raise ResourceError(
                f"early stopping keeps a copy of the best weights and slots, {trainer._bytes:,} "
                "bytes, and there is no memory for it: with run=FOLDER it is kept there"
            ) from None
        self._counts = trainer._counts()

    def restore_(self, trainer: Any, step: int) -> bool:
        """Give `trainer` the state after `step` steps; return whether it has it now."""
        if not self._wanted:
            return False
        if trainer.steps != step:
            (self._from_memory_ if self._run is None else self._from_folder_)(trainer, step)
        return bool(trainer.steps == step)

    def _from_memory_(self, trainer: Any, step: int) -> None:
        # A run that was resumed without its folder has no copy of what was best before.
        if self._counts is not None and self._counts["steps"] == step:
            trainer._recount(self._counts)
            trainer.load_state_dict(self._arrays)

    def _from_folder_(self, trainer: Any, step: int) -> None:
        path = self._run.best if self._run else None
        if path is None:
            return
        with checkpoint.opened(path) as saved:
            if saved.manifest.get("steps") == step:
                trainer._recount(saved.manifest)
                trainer._read(saved, list(trainer._arrays(current=False)))


def _copied(
    arrays: Mapping[str, np.ndarray], before: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Copies, in the memory of those before if there are any."""
    if not before:
        return {name: array.copy() for name, array in arrays.items()}
    for name, array in arrays.items():
        before[name][...] = array
    return dict(before)
