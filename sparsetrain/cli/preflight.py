# SPDX-License-Identifier: Apache-2.0
"""What can be known before anything slow: a place for the result, a device to train on."""

import os
from pathlib import Path

from sparsetrain.cli.settings import Settings
from sparsetrain.errors import ConfigError


def require_writable(path: Path, option: str = "--out") -> None:
    """Raise unless `path`, which `option` gave, could be created; nothing is.

    Raises
    ------
    ConfigError
        If the nearest folder above that exists is no folder, or may not be written to.
    """
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise ConfigError(f"{option} {path}: {parent} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{option} {path}: no permission to write in {parent}")


def require_free(path: Path, option: str = "--out") -> None:
    """Raise unless `option` could make a new folder at `path`; an earlier run is never overwritten.

    Raises
    ------
    ConfigError
        If something is there already, or nothing can be created there.
    """
    if os.path.lexists(path):
        raise ConfigError(
            f"{option} {path}: exists already; name another folder or remove this one"
        )
    require_writable(path, option)


def require_machine(settings: Settings) -> None:
    """Raise unless this machine has the device and the instructions that a training asks for.

    Raises
    ------
    ConfigError
        Which says what is missing.
    """
    import sparsetrain as st
    from sparsetrain.runtime.targets import resolve_target

    target, precision = settings.train.target, settings.train.precision
    if target == "auto" and settings.model.table_dtype != "float32":
        target = "cpu"  # others have no kernels for such tables
    if target == "cuda" or precision != "float32":
        st.precision.policy_for(precision, resolve_target(target))
