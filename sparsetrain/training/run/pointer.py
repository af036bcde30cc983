# SPDX-License-Identifier: Apache-2.0
"""`LATEST` and `BEST`: one line of text that names a checkpoint of the same folder.

A pointer is replaced by rename, after the checkpoint it names is on the disk: whoever reads it
finds the old name or the new one, and a whole checkpoint behind either.
"""

import contextlib
import os
import re
import secrets
from pathlib import Path

from sparsetrain.checkpoint import new_file, sync_folder
from sparsetrain.errors import CheckpointError
from sparsetrain.system.regular_files import read_regular_file

POINTERS = ("LATEST", "BEST")
STEP = re.compile(r"step-([0-9]{12})")
_MAX_BYTES = 64


def step_name(step: int) -> str:
    """Return the name of the folder that holds the checkpoint after `step` steps."""
    return f"step-{step:012d}"


def read_pointer(folder: Path, name: str) -> str | None:
    """Return the name that a pointer holds, or None if there is no such pointer.

    Raises
    ------
    CheckpointError
        If it is not a regular file or holds anything but the name of a checkpoint.
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
        raise CheckpointError(f"{path} names no checkpoint: {found!r:.40}")
    return found


def write_pointer(folder: Path, name: str, target: str) -> None:
    """Let `name` point to the checkpoint `target`, durably."""
    draft = folder / f".{name}.new-{secrets.token_hex(4)}"
    try:
        with new_file(draft) as file:
            file.write(f"{target}\n".encode())
        os.replace(draft, folder / name)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    sync_folder(folder)
