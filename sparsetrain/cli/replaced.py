# SPDX-License-Identifier: Apache-2.0
"""Files of results: until all of one is written, what was there stays.

A file is written beside where it goes, under a lock that ends with the process. What one that was
killed left there is removed by the next that writes the same file. A file system without locks
keeps it.
"""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sparsetrain.errors import DataError
from sparsetrain.system.file_locks import name_write_errors, try_lock


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Give a neighbour of `path` to write, with the same suffix; rename it if all went well.

    It is there, and empty. Of a link, the file that it leads to is replaced.

    Raises
    ------
    ResourceError
        If the disk is full.
    DataError
        If the file cannot be written there.
    """
    with name_write_errors(path, DataError), _draft(Path(os.path.realpath(path))) as draft:
        yield draft


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    draft = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        draft.touch(exist_ok=False)
        with try_lock(draft):
            yield draft
        with open(draft, "rb") as written:
            os.fsync(written.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Who can have the lock of a draft knows that its writer is gone."""
    is_draft = re.compile(rf"\.{re.escape(path.stem)}\.[0-9a-f]{{8}}{re.escape(path.suffix)}")
    for draft in path.parent.iterdir():
        if is_draft.fullmatch(draft.name):
            with suppress(OSError), try_lock(draft) as dead:
                if dead:
                    draft.unlink()
