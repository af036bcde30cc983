# SPDX-License-Identifier: Apache-2.0
"""Vector columns: lists of equal length, such as precomputed embeddings, as dense inputs.

Numbers reach the model unchanged, in float32. A null or an empty list becomes zeros. Cost: a copy
of each piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sparsetrain.data.dense.kind import Dense, Kind, Law
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import (
    EMPTY,
    FLOAT,
    INTEGER,
    element,
    is_bag,
    kind_of,
    read_values,
)
from sparsetrain.data.values.arrow_values import plain_floats
from sparsetrain.data.values.location import Location
from sparsetrain.system.argument_checks import require_int

_LONGEST = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Vectors(Kind):
    """The vector columns of a schema, and their lengths."""

    key: ClassVar[str] = "vectors"

    vectors: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def checked(where: str, option: Any) -> int:
        """Check and return a length, from 1 to 65,536."""
        return int(require_int(where, option, 1, _LONGEST))

    @staticmethod
    def column(name: str, option: int) -> Vector:
        """Return a column of vectors of this length."""
        return Vector(name, length=option)


@dataclass(frozen=True)
class Vector(Dense):
    """A column of lists of `length` numbers, with inputs from `place` on."""

    length: int = 1

    @property
    def inputs(self) -> dict[int, str]:
        """The place of each input, and its name in converted data."""
        return {self.place + each: f"{self.name}_{each}" for each in range(self.length)}

    @property
    def law(self) -> Law:
        """How an exported model computes its inputs."""
        return Law(size=self.length)

    def check_type(self, type_: pa.DataType, location: Location) -> None:
        """Refuse types other than lists of numbers; accept a column of nulls."""
        inside = element(type_)
        is_number = kind_of(inside) in (INTEGER, FLOAT, EMPTY) and not pa.types.is_boolean(inside)
        if not (is_bag(type_) and is_number) and not pa.types.is_null(type_):
            raise location.error(f"type {type_} cannot be read as a vector; store lists of numbers")

    def read(self, array: Any, location: Location) -> tuple[Array, Array]:
        """Return the numbers (n, length) float32, and a mask (n,) of rows without numbers."""
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
    return plain_floats(
        values, location, "in a vector; write a row without a vector as a single null"
    )
