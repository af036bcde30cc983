# SPDX-License-Identifier: Apache-2.0
"""Paths of a checkpoint before, during and after a save: the only module that changes folders.

    .NAME.new-XXXXXXXX   being written; nobody reads it
    NAME                 the checkpoint
    .NAME.old            the previous checkpoint, between the two renames of `publish`

Not every file system can swap two folders in one step, so NAME is missing for a moment. Readers
then use `.NAME.old`, which is complete until NAME exists again.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sparsetrain.checkpoint.manifest import ARRAY_FILE, FILE, MAX_BYTES, parse
from sparsetrain.errors import CheckpointError
from sparsetrain.system.argument_checks import require_path
from sparsetrain.system.file_locks import locked_draft, remove_dead, sync


def located(folder: str | os.PathLike[str]) -> Path:
    """Return the absolute path, with links followed, so that siblings are on the same disk."""
    path = Path(os.path.realpath(require_path("folder", folder)))  # circular links are not an error
    if not path.name:
        raise CheckpointError(f"{path} cannot be a checkpoint: choose a folder below it")
    return path


def aside(target: Path) -> Path:
    """Return the path of the previous checkpoint while a new checkpoint takes its place."""
    return target.with_name(f".{target.name}.old")


def restore(target: Path) -> None:
    """Clean up after a killed save: restore the old checkpoint, delete drafts."""
    old = aside(target)
    if not os.path.lexists(target) and (old / FILE).exists():
        os.rename(old, target)
        sync(target.parent)
    if os.path.lexists(old):
        remove(old)
    _remove_drafts(target)


def require_replaceable(target: Path) -> None:
    """Refuse a target that has anything but a checkpoint.

    Raises
    ------
    CheckpointError
        If replacing `target` would delete something else.
    """
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise CheckpointError(f"{target} is a file: choose another folder")
    names = sorted(os.listdir(target))
    foreign = [name for name in names if not is_ours(name)]
    if foreign:
        reason = f"it holds {foreign[0]!r}, which is not part of a checkpoint"
    elif not names or _is_manifest(target / FILE):
        return
    else:
        reason = "it is not a checkpoint of sparsetrain"
    raise CheckpointError(f"{target} is not replaced: {reason}; choose another folder")


@contextlib.contextmanager
def draft(target: Path) -> Iterator[Path]:
    """Make an empty folder beside `target` to write in; remove it if it is not published."""
    folder = target.with_name(f".{target.name}.new-{secrets.token_hex(4)}")
    try:
        with locked_draft(folder):
            yield folder
    finally:
        with contextlib.suppress(FileNotFoundError):  # it was published
            remove(folder)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Create a file that is flushed to disk when the block ends."""
    with open(path, "xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def publish(folder: Path, target: Path) -> None:
    """Move a complete `folder` to `target`; delete the old checkpoint last."""
    old = aside(target)
    sync(folder)
    replacing = os.path.lexists(target)
    if replacing:
        os.rename(target, old)
    try:
        os.rename(folder, target)
    except OSError:
        if replacing:
            with contextlib.suppress(OSError):
                os.rename(old, target)
        raise
    sync(target.parent)
    if replacing:
        # The save is complete; if the old folder cannot be deleted, the next save reports it.
        with contextlib.suppress(OSError):
            remove(old)


def remove(folder: Path) -> None:
    """Delete a checkpoint, manifest first, so its remains never look like a checkpoint.

    A file that is not part of a checkpoint stays, and makes this call fail. If `folder` is a link,
    only the link is deleted.
    """
    if folder.is_symlink():
        os.unlink(folder)
        return
    names = sorted(os.listdir(folder), key=lambda name: name != FILE)
    for name in filter(is_ours, names):
        os.unlink(folder / name)
    os.rmdir(folder)


def _remove_drafts(target: Path) -> None:
    if not target.parent.is_dir():
        return
    for name in os.listdir(target.parent):
        if name.startswith(f".{target.name}.new-"):
            remove_dead(target.parent / name, remove)


def is_ours(name: str) -> bool:
    """Return whether a checkpoint may contain a file of this name."""
    return name == FILE or ARRAY_FILE.fullmatch(name) is not None


def _is_manifest(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            parse(file.read(MAX_BYTES + 1))
    except (OSError, ValueError):
        return False
    return True
