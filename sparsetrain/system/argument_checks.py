# SPDX-License-Identifier: Apache-2.0
"""What callers give as arguments, checked in the same words everywhere, before anything is done."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from sparsetrain.errors import ConfigError


def require_int(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return a whole number from `least` to `most` as Python's own, which JSON can hold.

    Raises
    ------
    ConfigError
        If it is something else, with the argument's name and value.
    """
    if not is_int(value):
        raise ConfigError(f"{name} is {value!r:.60}; it must be a whole number")
    if int(value) < least:
        raise ConfigError(f"{name} is {value}; it must be {least} or more")
    if most is not None and int(value) > most:
        raise ConfigError(f"{name} is {value:,}; it must be {most:,} or less")
    return int(value)


def is_int(value: Any) -> bool:
    """Whether it is a whole number of Python's or NumPy's; a truth value is none."""
    # An abstract class takes ten times as long to ask, and a request of few rows asks nine times.
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def is_number(value: Any) -> bool:
    """Whether it is a real number of Python's or NumPy's; a truth value is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def as_float(value: Any) -> Any:
    """A number as Python's own float, which JSON can hold; anything else as it is."""
    return float(value) if is_number(value) else value


def require_non_negative(name: str, value: Any) -> float:
    """Return a finite number of 0 or more as Python's own."""
    if not is_number(value) or not 0 <= float(value) < math.inf:
        raise ConfigError(f"{name} is {value!r:.60}; it must be finite and 0 or more")
    return float(value)


def require_type(name: str, value: Any, kinds: type | tuple[type, ...], fix: str) -> None:
    """Refuse a value of another type, and say what to give; None passes."""
    if value is not None and not isinstance(value, kinds):
        raise ConfigError(f"{name} is {value!r:.60}; give {fix}")


def require_mapping(name: str, value: Any) -> None:
    """Refuse what does not hold arrays by their names."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise ConfigError(f"{name} is a {type(value).__name__}; give a dict of arrays by name")


def require_path(name: str, value: Any) -> Path:
    """Return the path of a folder, which need not be there."""
    if not isinstance(value, (str, os.PathLike)):
        raise ConfigError(f"{name} is {value!r:.60}; give the path of a folder")
    return Path(value)
