# SPDX-License-Identifier: Apache-2.0
"""Vector columns: lists of one length, such as precomputed embeddings, as dense inputs.

Numbers go to the model as they are, in float32, after all other dense inputs and flags. A null row,
or an empty list, is zeros. Cost: a copy of each piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sparsetrain.data.columns.bags import read_values
from sparsetrain.data.columns.plain import plain_floats
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.location import Location


@dataclass(frozen=True)
class Vector:
    """A column of lists of `length` numbers, with inputs from `place` on."""

    name: str
    place: int
    length: int
    takes_values: ClassVar[bool] = False

    @property
    def inputs(self) -> dict[int, str]:
        """The place of each input, and its name in converted data."""
        return {self.place + each: f"{self.name}_{each}" for each in range(self.length)}

    def read(self, array: Any, location: Location) -> tuple[Array, Array]:
        """Return the numbers (n, length) float32, and which rows have none (n,) bool."""
        width = self.length
        if pa.types.is_null(array.type):
            return np.zeros((len(array), width), np.float32), np.ones(len(array), bool)
        numbers, lengths = read_values(array, _floats, location)
        missing = lengths == 0
        location.refuse(
            ~missing & (lengths != width),
            lambda row: f"a vector of {lengths[row]} numbers, where the schema says {width}",
        )
        vectors = np.zeros((len(array), width), np.float32)
        vectors[~missing] = numbers.reshape(-1, width)
        return vectors, missing

    def write(self, array: Any, location: Location, dense: Array) -> None:
        """Write its inputs, rows of `dense` (F_dense, n) float32."""
        dense[self.place : self.place + self.length] = self.read(array, location)[0].T


def _floats(values: Any, location: Location) -> Array:
    return plain_floats(values, location, "in a vector; a row without one is null as a whole")
