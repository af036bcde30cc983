# SPDX-License-Identifier: Apache-2.0
"""Dense columns as the float32 matrix that a model reads.

Raw values become `log(max(x, -2) + 3)`: Criteo's counts span six decades and go down to -3, where
`log(x + 3)` is not finite. Columns that a schema calls linear become `(x - center) / scale`. Both
are computed in float64 and rounded once, so a value gives the same bits whether stored as integer,
float or text. Already encoded values are copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.types as pt

from sparsetrain.data.schema.schema import Linear
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.numeric import NanRule, read_numbers
from sparsetrain.errors import ConfigError

FLOOR, _SHIFT = -2.0, 3.0


def log_transform(values: Array) -> Array:
    """Return log(max(x, -2) + 3) of float64 values."""
    shifted = np.maximum(values, FLOOR)
    shifted += _SHIFT
    logarithms: Array = np.log(shifted, out=shifted)
    return logarithms


def _scaled(values: Array, law: Linear, location: Location) -> Array:
    """Return (x - center) / scale of float64 values in float32."""
    with np.errstate(over="ignore"):
        scaled: Array = ((values - law.center) / law.scale).astype(np.float32)
    location.refuse(
        ~np.isfinite(scaled),
        lambda row: f"{values[row]:g}, shifted and scaled, is too large for float32",
    )
    return scaled


@dataclass(frozen=True)
class RawDense:
    """The rule for raw columns: fill what is missing, then transform.

    Attributes
    ----------
    fill : float
        Stands for a missing value, in raw units: it is transformed like any other.
    flags : bool
        Whether a 0/1 column per dense column, all after the values, says what was missing.
    nan : NanRule
    linear : mapping from str to Linear
        The columns that have no logarithm; `fill` is not for them.
    """

    fill: float = 0.0
    flags: bool = False
    nan: NanRule = field(default_factory=NanRule)
    linear: Mapping[str, Linear] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not np.isfinite(self.fill):
            raise ConfigError(f"dense_fill is {self.fill}; it must be a finite number")

    def width(self, num_columns: int) -> int:
        """Return how many columns the matrix has."""
        return num_columns * (2 if self.flags else 1)

    def matrix(
        self, arrays: Sequence[Any], names: Sequence[str], location: Location, rows: int
    ) -> Array:
        """Return (n, width) float32 of `rows` rows, each column of them contiguous."""
        count = len(arrays)
        matrix = np.empty((self.width(count), rows), np.float32)
        for index, (array, name) in enumerate(zip(arrays, names, strict=True)):
            values, missing = read_numbers(array, self.nan, location.of_column(name))
            law = self.linear.get(name)
            if law is None:
                if self.fill:
                    values = values + missing * self.fill  # which are 0 there
                matrix[index] = log_transform(values)
            else:
                matrix[index] = _scaled(
                    np.where(missing, law.center, values), law, location.of_column(name)
                )
            if self.flags:
                matrix[count + index] = missing
        return matrix.T

    def plain_matrix(self, values: Array, names: Sequence[str]) -> Array | None:
        """Return what `matrix` does of numbers (n, F) float64, NaN where they are missing.

        None if one becomes too large for float32.
        """
        missing = np.isnan(values)
        filled = np.where(missing, self.fill, values)
        dense = log_transform(filled).astype(np.float32, order="C")
        for index, name in enumerate(names if self.linear else ()):
            law = self.linear.get(name)
            if law is not None:
                there = np.where(missing[:, index], law.center, values[:, index])
                dense[:, index] = (there - law.center) / law.scale
        if not np.isfinite(dense).all():
            return None
        return np.hstack([dense, missing], dtype=np.float32) if self.flags else dense


@dataclass(frozen=True)
class EncodedDense:
    """The rule for already encoded columns: floats as they are, none missing."""

    def width(self, num_columns: int) -> int:
        """Return how many columns the matrix has."""
        return num_columns

    def matrix(
        self, arrays: Sequence[Any], names: Sequence[str], location: Location, rows: int
    ) -> Array:
        """Return (n, F_dense) float32 of `rows` rows, each column of them contiguous."""
        matrix = np.empty((len(arrays), rows), np.float32)
        for index, (array, name) in enumerate(zip(arrays, names, strict=True)):
            matrix[index] = plain_floats(array, location.of_column(name), _ENCODED)
        return matrix.T


_ENCODED = "in already encoded data; if it is raw, use treat_as='raw'"


def plain_floats(array: Any, location: Location, kind: str) -> Array:
    """Return numbers (n,) as float32, as they are; `kind` ends the error about one that is not."""
    if pt.is_float32(array.type) and not array.null_count:
        stored: Array = array.to_numpy()
        if np.isfinite(stored).all():
            return stored
    values, missing = read_numbers(array, NanRule("missing"), location)
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    words = {True: "null or NaN", False: "too large for float32"}
    location.refuse(
        missing | ~np.isfinite(values),
        lambda row: f"the value is {words[bool(missing[row])]} {kind}",
    )
    return values
