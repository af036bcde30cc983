# SPDX-License-Identifier: Apache-2.0
"""New folders that appear complete or not at all, and that only their owner may write.

A draft is locked while it is written. If its writer is killed, the lock is free, and the next
writer in the same folder deletes the draft.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from sparsetrain.errors import ConfigError
from sparsetrain.system.file_locks import locked_draft, name_write_errors, remove_dead, sync
from sparsetrain.system.private_files import OTHERS, make_private

_DRAFT = ".sparsetrain-draft-"


def require_new(out: Path) -> None:
    """Raise `ConfigError` if `out` exists."""
    if os.path.lexists(out):
        raise ConfigError(f"{out}: exists already; name a new folder or remove this one")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder; on success, sync its files to disk and rename it to `out`.

    Raises
    ------
    ConfigError
        If `out` exists or cannot be written.
    """
    require_new(out)
    with draft_beside(out) as draft:
        yield draft
        for path in [*draft.iterdir(), draft]:
            _settle(path)
        os.replace(draft, out)
        sync(out.parent)


@contextmanager
def draft_beside(out: Path) -> Iterator[Path]:
    """Yield an empty folder next to `out`, and remove it at the end.

    Raises
    ------
    ConfigError
        If `out` cannot be written.
    """
    draft = out.with_name(f"{_DRAFT}{secrets.token_hex(8)}")
    with name_write_errors(out, ConfigError):
        _prepare(Path(os.path.abspath(out)).parent)
        try:
            with locked_draft(draft, partial(Path.mkdir, mode=0o755)):
                yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _prepare(place: Path) -> None:
    """Make a folder that only this user may write; remove dead drafts there."""
    make_private(place)
    for left in place.glob(f"{_DRAFT}*"):
        remove_dead(left, shutil.rmtree)


def _settle(path: Path) -> None:
    """Remove write permission for other users, for any umask, and flush to disk."""
    mode = path.stat().st_mode
    if mode & OTHERS:
        path.chmod(stat.S_IMODE(mode) & ~OTHERS)
    sync(path)
