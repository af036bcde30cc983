# SPDX-License-Identifier: Apache-2.0
"""Errors of this package, one class per exit code of the command line.

A message is one sentence that names the place (file, column, row; parameter; setting) and the fix.
Each class also derives from the built-in exception that a library user would catch.
"""

from collections.abc import Sequence
from difflib import get_close_matches

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DataWarning",
    "NumericalError",
    "ParallelError",
    "ResourceError",
    "SparsetrainError",
]


def __dir__() -> list[str]:
    return __all__


class SparsetrainError(Exception):
    """Base class of all errors that this package raises on purpose."""

    exit_code = 1


class ConfigError(SparsetrainError, ValueError):
    """A setting, an option or an argument is unknown or invalid."""

    exit_code = 2


class DataError(SparsetrainError, ValueError):
    """Input data are missing, damaged or violate their format."""

    exit_code = 3


class CheckpointError(SparsetrainError, ValueError):
    """A saved run cannot be read, or does not match the object it is loaded into."""

    exit_code = 4


class NumericalError(SparsetrainError, ArithmeticError):
    """A loss or a gradient is not finite."""

    exit_code = 5


class ResourceError(SparsetrainError, RuntimeError):
    """Memory, disk space or a device is not available."""

    exit_code = 6


class DataWarning(UserWarning):
    """Data that can be read but are probably wrong; commands print the warning as a note."""


class ParallelError(SparsetrainError, RuntimeError):
    """Another process of the same job failed, ended or does not answer; resuming may help."""

    exit_code = 75


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error without its full stop, or its class name."""
    text = getattr(error, "strerror", None) or str(error).strip()
    return text.split("\n")[0].split(". Detail")[0].rstrip(". ") or type(error).__name__


def nearest(name: str, names: Sequence[str]) -> str:
    """Return a hint: the name that was probably meant, or all known names."""
    return _question(name, names) or f"there are {', '.join(names)}"


def meant(name: str, names: Sequence[str]) -> str:
    """Return the end of a message: the name that was probably meant; "" if none is close."""
    question = _question(name, names)
    return question and f"; {question}"


def _question(name: str, names: Sequence[str]) -> str:
    near = get_close_matches(name, names, n=1) or get_close_matches(name.lower(), names, n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def shown(name: str) -> str:
    """Return a column's name for a message, quoted if it has invisible characters."""
    return name if name and name == name.strip() and name.isprintable() else repr(name)
