# SPDX-License-Identifier: Apache-2.0
"""`Dense`: a column with dense inputs; and `Kind`, by which a schema names columns of a kind.

In a batch these come after the numbers and their flags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.location import Location
from sparsetrain.errors import ConfigError


class Law(NamedTuple):
    """Inputs of a column as the library in C of an exported model makes them.

    Attributes
    ----------
    form : {"plain", "linear", "log"}
    fill : float
        The number in place of a missing one.
    center, scale : float
        Of the linear form.
    size : int
        Numbers in each list; 0 of a column of numbers.
    """

    form: str = "plain"
    fill: float = 0.0
    center: float = 0.0
    scale: float = 1.0
    size: int = 0


@dataclass(frozen=True)
class Dense:
    """A column with inputs from `place` on.

    Attributes
    ----------
    name : str
    place : int
    takes_values : bool
        Whether a number of Python's has its inputs.
    is_number : bool
        Whether there is one number in a row.
    """

    takes_values: ClassVar[bool] = False
    is_number: ClassVar[bool] = False

    name: str
    place: int = 0

    @property
    def inputs(self) -> dict[int, str]:
        """The place of each input, and its name in converted data."""
        raise NotImplementedError

    @property
    def has_flag(self) -> bool:
        """Whether one of the inputs flags missing values."""
        return False

    @property
    def law(self) -> Law:
        """Its inputs in an exported model."""
        raise ConfigError(f"export: no exported model makes inputs of the column {self.name!r}")

    def describe(self) -> str:
        """Return it as a part of a layout's line."""
        return f"{len(self.inputs)} numbers in {self.name}"

    def check_type(self, type_: pa.DataType, location: Location) -> None:
        """Refuse an Arrow type that it cannot read."""

    def as_inputs(self, values: Sequence[float]) -> list[float]:
        """Return the inputs of rising numbers, each once, of a column of numbers."""
        return np.unique(np.array(values, np.float32)).tolist()

    def read(self, array: Any, location: Location) -> tuple[Array, Array]:
        """Return the numbers (n, ...), 0 where missing, and which rows have none (n,) bool."""
        raise NotImplementedError

    def write(self, array: Any, location: Location, dense: Array) -> None:
        """Write its inputs, rows of `dense` (F_dense, n) float32."""
        raise NotImplementedError


class Kind:
    """A key of a schema: from columns of this kind to an option each."""

    key: ClassVar[str]

    @staticmethod
    def checked(where: str, option: Any) -> Any:
        """Return an option as a plain value, or refuse it."""
        raise NotImplementedError

    @staticmethod
    def column(name: str, option: Any) -> Dense:
        """Return a column that has the option."""
        raise NotImplementedError
