# SPDX-License-Identifier: Apache-2.0
"""Every error a user can meet, one class per exit code of the command line.

A message is one sentence that names the place (file, column, row; parameter; setting) and the fix.
Each class also derives from the built-in exception that a library user would catch.
"""


class SparsetrainError(Exception):
    """Base of all errors this package raises on purpose; `exit_code` is the command line's."""

    exit_code = 1


class ConfigError(SparsetrainError, ValueError):
    """A setting, an option or an argument is unknown or does not fit."""

    exit_code = 2


class DataError(SparsetrainError, ValueError):
    """Input data is missing, damaged or breaks the contract of its format."""

    exit_code = 3


class CheckpointError(SparsetrainError, ValueError):
    """A saved run cannot be read, or does not belong to what it is loaded into."""

    exit_code = 4


class NumericalError(SparsetrainError, ArithmeticError):
    """A loss or a gradient is not finite."""

    exit_code = 5


class ResourceError(SparsetrainError, RuntimeError):
    """Memory, disk or a device is not there."""

    exit_code = 6


def first_line(error: BaseException) -> str:
    """Return what a library says is wrong, fit to stand within a message of one line.

    Its class if it says nothing.
    """
    said = getattr(error, "strerror", None) or str(error).strip()
    return said.split("\n")[0].split(". Detail")[0].rstrip(". ") or type(error).__name__
