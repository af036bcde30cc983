# SPDX-License-Identifier: Apache-2.0
"""Output files: checked before any work is done, and replaced atomically.

A draft is written next to the file, under a lock that ends with the process, and renamed when it
is complete; until then the old file stays. The next process that writes the same file removes
drafts of killed processes, except on file systems without locks.
"""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparsetrain.errors import ConfigError, DataError
from sparsetrain.system.file_locks import name_write_errors, remove_dead, replaced_by


def require_writable(path: Path, option: str = "--out") -> None:
    """Raise `ConfigError` unless `path`, the value of `option`, could be created."""
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise ConfigError(f"{option} {path}: {parent} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{option} {path}: no permission to write in {parent}")


def require_free(path: Path, option: str = "--out") -> None:
    """Raise `ConfigError` if `path`, the value of `option`, exists or could not be created."""
    if os.path.lexists(path):
        raise ConfigError(f"{option} {path}: exists already; name a new folder or remove this one")
    require_writable(path, option)


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield an empty file to write, with the same suffix; rename it to `path` on success.

    If `path` is a symbolic link, its target is replaced. Raises `ResourceError` on a full disk,
    `DataError` if the file cannot be written for a different reason.
    """
    with name_write_errors(path, DataError):
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        draft = target.with_name(f".{target.stem}.{secrets.token_hex(4)}{target.suffix}")
        with replaced_by(draft, target):
            yield draft


def _remove_leftovers(path: Path) -> None:
    is_draft = re.compile(rf"\.{re.escape(path.stem)}\.[0-9a-f]{{8}}{re.escape(path.suffix)}")
    for draft in path.parent.iterdir():
        if is_draft.fullmatch(draft.name):
            remove_dead(draft)
