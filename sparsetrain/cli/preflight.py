# SPDX-License-Identifier: Apache-2.0
"""What can be known before anything slow: a place for the result, a device to train on."""

import os
from pathlib import Path

from sparsetrain.errors import ConfigError


def require_writable(path: Path) -> None:
    """Raise unless `path` could be created; nothing is.

    Raises
    ------
    ConfigError
        If the nearest folder above that exists is no folder, or may not be written to.
    """
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise ConfigError(f"--out {path}: {parent} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {path}: no permission to write in {parent}")


def require_free(path: Path) -> None:
    """Raise unless a new folder could be made at `path`; an earlier run is never overwritten.

    Raises
    ------
    ConfigError
        If something is there already, or nothing can be created there.
    """
    if os.path.lexists(path):
        raise ConfigError(f"--out {path}: exists already; name another folder or remove this one")
    require_writable(path)


def require_target(target: str) -> None:
    """Raise unless kernels for `target` can run here; of the known ones only CUDA may be missing.

    Raises
    ------
    ConfigError
        Which says what is missing.
    """
    if target == "cuda":
        import sparsetrain as st

        st.runtime.resolve_target(target)
