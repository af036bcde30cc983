# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: checkpoints by step, and pointers to the latest and the best.

    RUN/step-000000000500/   a checkpoint: arrays and a manifest
    RUN/LATEST, RUN/BEST     the name of a checkpoint
    RUN/log.jsonl, log.csv   the measured scores
    RUN/profile.json         times of a step's kernels, after `fit(profile=True)`
    RUN/.lock                the process that writes here

A checkpoint is valid once `LATEST` names it. A newer checkpoint that neither `LATEST` nor `BEST`
names was left by a killed run; the next run that writes here removes it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sparsetrain import checkpoint
from sparsetrain.errors import CheckpointError
from sparsetrain.system.argument_checks import require_int, require_path
from sparsetrain.system.file_locks import write_json
from sparsetrain.system.regular_files import read_regular_file
from sparsetrain.training.run.checkpoints import (
    POINTERS,
    STEP,
    checkpoint_in,
    lost,
    read_pointer,
    require_no_link,
    step_name,
    steps_in,
    write_pointer,
)
from sparsetrain.training.run.lock import FILE as LOCK
from sparsetrain.training.run.lock import locked
from sparsetrain.training.run.log import CSV, JSONL, read_log

LOG_EVERY = 100
PROFILE = "profile.json"
_MAX_BYTES = 1 << 20


class Run:
    """Where and how often to save a training run.

    Parameters
    ----------
    folder : path
        The run's folder; created if it does not exist.
    every : int, optional
        Steps between checkpoints; None saves only at the end of each epoch.
    keep : int
        Number of newest checkpoints to keep; the best one is kept too.
    log_every : int
        Steps between two lines of the log.
    extra : mapping, optional
        Plain JSON values to store in each checkpoint.
    tensorboard : bool
        Also write event files for TensorBoard.

    Examples
    --------
    >>> import sparsetrain as st
    >>> trainer.fit("train.parquet", run=st.Run("run", every=500))  # doctest: +SKIP
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every: int | None = None,
        keep: int = 2,
        log_every: int = LOG_EVERY,
        extra: Mapping[str, Any] | None = None,
        tensorboard: bool = False,
    ) -> None:
        for name, value in {"every": every, "keep": keep, "log_every": log_every}.items():
            if value is not None or name != "every":
                require_int(f"Run: {name}", value)
        self.folder = require_path("folder", folder).absolute()
        self.every, self.keep, self.log_every = every, keep, log_every
        self.extra = dict(extra or {})
        self.tensorboard = tensorboard
        self.logs = True  # whether this process writes the log

    @property
    def latest(self) -> Path | None:
        """The newest checkpoint, or None."""
        return checkpoint_in(self.folder, "latest", missing_ok=True)

    @property
    def best(self) -> Path | None:
        """The checkpoint with the best validation score, or None."""
        return checkpoint_in(self.folder, "best", missing_ok=True)

    def manifest(self) -> dict[str, Any]:
        """Return the manifest of the newest checkpoint, without reading arrays.

        Raises
        ------
        CheckpointError
            If there is no checkpoint, or it is damaged.
        """
        latest = checkpoint_in(self.folder)
        try:
            with checkpoint.opened(latest) as saved:
                return saved.manifest
        except CheckpointError:
            if checkpoint_in(self.folder) == latest:
                raise
        return self.manifest()  # an active run saved a newer checkpoint and pruned this one

    @property
    def stops_early(self) -> bool:
        """Whether the run uses early stopping, and therefore its best weights.

        Raises
        ------
        CheckpointError
            If the run has no checkpoint yet, or the newest cannot be read.
        """
        found: Any = self.manifest()
        for key in ("run", "plan", "early_stopping", "patience"):
            found = found.get(key) if isinstance(found, dict) else None
        return found is not None

    def log(self) -> list[dict[str, Any]]:
        """Return the lines of the log as dicts, oldest first.

        Raises
        ------
        CheckpointError
            If the log is damaged, or has fewer lines than the newest checkpoint records.
        """
        state = (self.manifest().get("run") or {}) if self.latest else {}
        lines = read_log(self.folder)  # may be longer than the manifest says: a live run appends
        if len(lines) < state.get("log_lines", 0):
            raise CheckpointError(
                f"{self.folder / JSONL} has lost lines: it has {len(lines)}, but "
                f"{self.latest} records {state['log_lines']}"
            )
        return lines

    def profile(self) -> dict[str, Any] | None:
        """Return the profile that ``fit(profile=True)`` saved, as a dict, or None.

        Raises
        ------
        CheckpointError
            If the file is damaged.
        """
        path = self.folder / PROFILE
        try:
            found = json.loads(read_regular_file(path, _MAX_BYTES, follow_links=False))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise CheckpointError(f"{path} is damaged: remove it")
        return found

    def save_profile(self, profile: Mapping[str, Any]) -> None:
        """Write the file that `profile` reads, replacing an older one."""
        write_json(self.folder / PROFILE, profile)

    @contextlib.contextmanager
    def writing(self, *, fresh: bool, size: int = 0, best: int | None = None) -> Iterator[None]:
        """Lock the folder for one writer, and remove leftovers of a killed writer.

        Parameters
        ----------
        fresh : bool
            Whether the run is new; then a folder with checkpoints is refused.
        size : int
            Bytes of the run's arrays; a new run needs as much free space.
        best : int, optional
            Step of the best validation of a resumed run.

        Raises
        ------
        CheckpointError
            If another process writes here, or the folder cannot be written.
        ResourceError
            If the disk has no room for the first checkpoint; found now, not after an epoch.
        """
        with checkpoint.errors_of(self.folder):
            if fresh:
                checkpoint.require_room(self.folder, size)
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = contextlib.ExitStack()
            lock.enter_context(locked(self.folder))
        with lock:
            with checkpoint.errors_of(self.folder):
                self._sweep()
                if fresh and steps_in(self.folder):
                    raise CheckpointError(
                        f"{self.folder} has a run already: resume it, or choose a different folder"
                    )
                self._name_the_best(best)
                self._prune()  # `keep` may be smaller than before, and the disk may be full
            try:
                yield
            finally:
                self._clear_if_empty()

    def save(
        self, step: int, arrays: Mapping[str, np.ndarray], manifest: dict[str, Any], *, best: bool
    ) -> Path:
        """Write a checkpoint, update the pointers, then prune.

        Raises
        ------
        CheckpointError, ResourceError
            If the checkpoint cannot be written; the previous one stays valid.
        """
        name = step_name(step)
        require_no_link(self.folder / name)
        self._write(self.folder / name, arrays, manifest)
        self._name(name, best)
        return self.folder / name

    def _write(
        self, path: Path, arrays: Mapping[str, np.ndarray], manifest: dict[str, Any]
    ) -> None:
        checkpoint.write(path, arrays, manifest)

    def _name(self, name: str, best: bool) -> None:
        """Point to a checkpoint, and prune."""
        with checkpoint.errors_of(self.folder):
            for pointer in POINTERS if best else POINTERS[:1]:
                write_pointer(self.folder, pointer, name)
            self._prune()

    def _clear_if_empty(self) -> None:
        """Remove the folder of a run that ended before its first checkpoint."""
        with contextlib.suppress(OSError):
            if not steps_in(self.folder):
                for name in (JSONL, CSV, LOCK):
                    (self.folder / name).unlink(missing_ok=True)
                self.folder.rmdir()

    def _named(self) -> set[str]:
        return {name for p in POINTERS if (name := read_pointer(self.folder, p)) is not None}

    def _name_the_best(self, step: int | None) -> None:
        """Finish a save that was killed between the writes of its two pointers."""
        if step is None:
            return
        name = step_name(step)
        if read_pointer(self.folder, "LATEST") == name != read_pointer(self.folder, "BEST"):
            write_pointer(self.folder, "BEST", name)

    def _prune(self) -> None:
        """Remove old checkpoints, but keep files in them that are not ours."""
        steps = steps_in(self.folder)
        for name in sorted({*steps[: -self.keep]} - self._named()):
            try:
                checkpoint.remove(self.folder / name)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise

    def _sweep(self) -> None:
        """Remove drafts, and a checkpoint that a killed run wrote but did not yet point to.

        Neither `LATEST` nor `BEST` ever named it; the resumed run recreates it, bit for bit, from
        the previous checkpoint. More than one such checkpoint means that a pointer was lost: then
        they are kept, and an error is raised.
        """
        for name in os.listdir(self.folder):
            step = STEP.search(name)
            if step and name.startswith("."):
                checkpoint.restore(self.folder / step[0])
            elif any(name.startswith(f".{pointer}.new-") for pointer in POINTERS):
                (self.folder / name).unlink()
        newest = max(self._named(), default="")
        unnamed = [name for name in steps_in(self.folder) if name > newest]
        if len(unnamed) > 1:
            raise lost(self.folder, unnamed[-1])
        for name in unnamed:
            checkpoint.remove(self.folder / name)


# Names in the folder of a run that was killed before its first checkpoint.
_LEFTOVER = re.compile(
    rf"{re.escape(LOCK)}|\.?log\.(jsonl|csv)(\.new)?|\.(LATEST|BEST)\.new-\w+"
    rf"|\.{STEP.pattern}\.new-\w+|events\.out\.tfevents\..*"
)


def is_free(folder: Path) -> bool:
    """Return whether a run may begin in a folder.

    It may if the folder is new or empty, or if a run in it was killed before its first checkpoint,
    for example by preemption.
    """
    try:
        return all(map(_LEFTOVER.fullmatch, os.listdir(folder)))
    except FileNotFoundError:
        return not folder.is_symlink()
    except OSError:
        return False


def chosen(folder: str | os.PathLike[str], checkpoint: str) -> str:
    """Resolve "auto" to "latest" or "best"; return anything else unchanged.

    "auto" is the best checkpoint of a run with early stopping, and otherwise the latest.

    Raises
    ------
    CheckpointError
        If the run's newest checkpoint cannot be read.
    """
    if checkpoint != "auto":
        return checkpoint
    run = Run(folder)
    if run.latest is None or run.best is None:
        return "latest"
    return "best" if run.stops_early else "latest"
