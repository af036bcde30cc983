# SPDX-License-Identifier: Apache-2.0
"""`Dense`: a column that becomes dense inputs of a model; `Kind`: its entry in a schema.

In a batch, these inputs come after the plain numbers and their flags of missing values.
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
    """How the C library of an exported model computes a column's inputs.

    Attributes
    ----------
    form : {"plain", "linear", "log"}
    fill : float
        Replaces a missing number.
    center, scale : float
        Parameters of the linear form.
    size : int
        Length of each list; 0 for a column of single numbers.
    """

    form: str = "plain"
    fill: float = 0.0
    center: float = 0.0
    scale: float = 1.0
    size: int = 0


@dataclass(frozen=True)
class Dense:
    """A column with dense inputs, which begin at position `place` of a batch's dense inputs.

    Attributes
    ----------
    name : str
    place : int
    takes_values : bool
        Whether its inputs can be computed from a Python number.
    is_number : bool
        Whether each row has one number.
    """

    takes_values: ClassVar[bool] = False
    is_number: ClassVar[bool] = False

    name: str
    place: int = 0

    @property
    def inputs(self) -> dict[int, str]:
        """The name of each input in converted data, by the input's position."""
        raise NotImplementedError

    @property
    def has_flag(self) -> bool:
        """Whether one of the inputs flags missing values."""
        return False

    @property
    def law(self) -> Law:
        """How an exported model computes its inputs."""
        raise ConfigError(
            f"export: an exported model cannot compute the inputs of the column {self.name!r}: "
            "train without it"
        )

    def describe(self) -> str:
        """Return its part of the line that describes a schema's layout."""
        return f"{len(self.inputs)} numbers in {self.name}"

    def check_type(self, type_: pa.DataType, location: Location) -> None:
        """Refuse an Arrow type that this column cannot read."""

    def as_inputs(self, values: Sequence[float]) -> list[float]:
        """Return the distinct inputs that numbers become, ascending, for a column of numbers."""
        return np.unique(np.array(values, np.float32)).tolist()

    def read(self, array: Any, location: Location) -> tuple[Array, Array]:
        """Return the numbers (n, ...), 0 where missing, and a mask (n,) of rows without numbers."""
        raise NotImplementedError

    def checked(self, array: Any, location: Location) -> tuple[Array, Array]:
        """Return the result of `read`; refuse all rows that `write` refuses."""
        return self.read(array, location)

    def write(self, array: Any, location: Location, dense: Array) -> None:
        """Read `array`, and write the inputs into their rows of `dense` (F_dense, n) float32."""
        raise NotImplementedError


class Kind:
    """A key of a schema; its value maps each column of this kind to an option."""

    key: ClassVar[str]

    @staticmethod
    def checked(where: str, option: Any) -> Any:
        """Return an option as a plain value, or raise if it is invalid."""
        raise NotImplementedError

    @staticmethod
    def column(name: str, option: Any) -> Dense:
        """Return a column with this option."""
        raise NotImplementedError
