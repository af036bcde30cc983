# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in the folder of a run, and the pointers to them: the files `LATEST` and `BEST`.

A pointer is replaced by a rename, after the checkpoint that it names is on the disk. So a reader
finds the old name or the new name, and both name a complete checkpoint.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import Any

from sparsetrain.checkpoint.folders import aside
from sparsetrain.errors import CheckpointError, ConfigError
from sparsetrain.system.argument_checks import require_path
from sparsetrain.system.file_locks import replaced_by, sync
from sparsetrain.system.regular_files import read_regular_file
from sparsetrain.training.run.lock import FILE as LOCK

POINTERS = ("LATEST", "BEST")
STEP = re.compile(r"step-([0-9]{12})")
_MAX_BYTES = 64


def step_name(step: int) -> str:
    """Return the name of the folder that holds the checkpoint after `step` steps."""
    return f"step-{step:012d}"


def read_pointer(folder: Path, name: str) -> str | None:
    """Return the checkpoint that a pointer names, or None if there is no such pointer.

    Raises
    ------
    CheckpointError
        If the pointer is not a regular file, or holds anything but a checkpoint's name.
    """
    path = folder / name
    try:
        text = read_regular_file(path, _MAX_BYTES, follow_links=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    found = text.decode("latin-1").strip()
    if STEP.fullmatch(found) is None:
        raise CheckpointError(f"{path} does not name a checkpoint: {found!r:.40}")
    return found


def write_pointer(folder: Path, name: str, target: str) -> None:
    """Make the pointer `name` name the checkpoint `target`, durably."""
    draft = folder / f".{name}.new-{secrets.token_hex(4)}"
    with replaced_by(draft, folder / name):
        draft.write_text(f"{target}\n")
    sync(folder)


def checkpoint_in(
    folder: str | os.PathLike[str], checkpoint: str = "latest", *, missing_ok: bool = False
) -> Any:
    """Return the path of a run's checkpoint, or the folder itself if it is not a run.

    Parameters
    ----------
    folder : path
        The folder of a run or of a checkpoint.
    checkpoint : {"latest", "best"}
        The checkpoint of a run to return.
    missing_ok : bool
        Return None if the run has no such checkpoint.

    Raises
    ------
    CheckpointError
        If the folder is a run without such a checkpoint.
    ConfigError
        If `checkpoint` is neither "latest" nor "best".
    """
    if not isinstance(checkpoint, str) or checkpoint.upper() not in POINTERS:
        raise ConfigError(f"checkpoint is {checkpoint!r}; it must be 'latest', 'best' or 'auto'")
    path = require_path("folder", folder).absolute()
    name = read_pointer(path, checkpoint.upper())
    if name is not None:
        _require_target(path, checkpoint.upper(), name)
        return path / name
    if missing_ok:
        return None
    if checkpoint == "latest" and (steps := steps_in(path)):
        raise lost(path, steps[-1])
    if checkpoint == "best" and read_pointer(path, "LATEST") is not None:
        raise CheckpointError(
            f"{path} has no best checkpoint, since no validation chose one: use the latest"
        )
    if (path / LOCK).exists() or checkpoint == "best":
        raise CheckpointError(f"{path} has no {checkpoint} checkpoint: nothing was saved there yet")
    return path


def _require_target(folder: Path, pointer: str, name: str) -> None:
    """Raise an error if a pointer's checkpoint is missing, unless the pointer has since changed."""
    there = steps_in(folder)
    path = folder / name
    require_no_link(path)
    if not (path.exists() or aside(path).exists()) and read_pointer(folder, pointer) == name:
        newest = f"the newest is {there[-1]}: write this name into it" if there else "there is none"
        raise CheckpointError(f"{folder / pointer} names {name}, which is missing; {newest}")


def require_no_link(path: Path) -> None:
    """Raise an error if a checkpoint of a run, or a draft left by a killed save, is a link."""
    for each in (path, aside(path)):
        if each.is_symlink():
            raise CheckpointError(
                f"{each} is a symbolic link, which a run never creates: remove it, or replace it "
                "by a copy of its target"
            )


def lost(folder: Path, newest: str) -> CheckpointError:
    """Return the error for a folder in which `LATEST` is missing or older than `newest`."""
    return CheckpointError(
        f"{folder} has checkpoints up to {newest}, but its LATEST is missing or older: write the "
        "name of the checkpoint to use into it"
    )


def steps_in(folder: Path) -> list[str]:
    """Return the names of a run's checkpoints, oldest first; links are ignored."""
    try:
        with os.scandir(folder) as entries:
            return sorted(
                entry.name
                for entry in entries
                if STEP.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            )
    except (FileNotFoundError, NotADirectoryError):
        return []
