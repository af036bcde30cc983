# SPDX-License-Identifier: Apache-2.0
"""New folders that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparsetrain.errors import ConfigError
from sparsetrain.system.file_locks import name_write_errors


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder that only this user may write; rename it to `out` on success.

    Raises
    ------
    ConfigError
        If `out` exists or cannot be written.
    """
    if os.path.lexists(out):
        raise ConfigError(f"{out}: exists already; name another folder or remove this one")
    draft = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    with name_write_errors(out, ConfigError):
        draft.mkdir(mode=0o755, parents=True)
        try:
            yield draft
            os.replace(draft, out)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def sync(path: Path) -> None:
    """Bring a file that was written to the disk."""
    with open(path, "rb") as written:
        os.fsync(written.fileno())
