# SPDX-License-Identifier: Apache-2.0
"""Argument validation with uniform error messages."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from sparsetrain.errors import ConfigError


def require_int(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return `value`, an integer from `least` to `most`, as a Python int, which JSON can hold.

    Raises
    ------
    ConfigError
        If `value` is not such an integer; the message names the argument and the value.
    """
    if not is_int(value):
        raise ConfigError(f"{name} is {value!r:.60}; it must be a whole number")
    if int(value) < least:
        raise ConfigError(f"{name} is {value}; it must be {least} or more")
    if most is not None and int(value) > most:
        raise ConfigError(f"{name} is {value:,}; it must be {most:,} or less")
    return int(value)


def is_int(value: Any) -> bool:
    """Return whether a value is a Python or NumPy integer; a bool is not."""
    # `isinstance` with an abstract class takes ten times as long; a request checks nine integers.
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def is_number(value: Any) -> bool:
    """Return whether a value is a Python or NumPy real number; a bool is not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def as_float(value: Any) -> Any:
    """Convert a number to a Python float, which JSON can hold; return anything else unchanged."""
    return float(value) if is_number(value) else value


def require_non_negative(name: str, value: Any) -> float:
    """Return a finite number of 0 or more as a Python float."""
    if not is_number(value) or not 0 <= float(value) < math.inf:
        raise ConfigError(f"{name} is {value!r:.60}; it must be finite and 0 or more")
    return float(value)


def require_type(name: str, value: Any, kinds: type | tuple[type, ...], fix: str) -> None:
    """Refuse a value of the wrong type; `fix` names the right type. None is accepted."""
    if value is not None and not isinstance(value, kinds):
        raise ConfigError(f"{name} is {value!r:.60}; give {fix}")


def require_mapping(name: str, value: Any) -> None:
    """Refuse anything but a mapping of arrays by name."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise ConfigError(f"{name} is a {type(value).__name__}; give a dict of arrays by name")


def require_path(name: str, value: Any) -> Path:
    """Return the path of a folder, which need not exist."""
    if not isinstance(value, (str, os.PathLike)):
        raise ConfigError(f"{name} is {value!r:.60}; give the path of a folder")
    return Path(value)
