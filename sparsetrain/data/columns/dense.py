# SPDX-License-Identifier: Apache-2.0
"""Dense columns as float32 inputs: numbers, flags of missing values, and other kinds.

Raw values become `log(max(x, -2) + 3)`: Criteo's counts span six decades and go down to -3, where
`log(x + 3)` is not finite. Columns that a schema declares as linear become `(x - center) / scale`.
Both are computed in float64 and rounded once, so a value gives the same bits whether stored as
integer, float or text.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from sparsetrain.data.dense.kind import Dense, Law
from sparsetrain.data.schema.column_rule import Linear
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_values import NanRule, read_numbers
from sparsetrain.data.values.location import Location
from sparsetrain.errors import DataWarning

FLOOR, _SHIFT = -2.0, 3.0
_EQUAL = 0.01  # warn if a larger share of a column's numbers is below FLOOR; Criteo's I2 has less


def log_transform(values: Array) -> Array:
    """Return log(max(x, -2) + 3) of float64 values."""
    shifted = np.maximum(values, FLOOR)
    shifted += _SHIFT
    logarithms: Array = np.log(shifted, out=shifted)
    return logarithms


@dataclass(frozen=True)
class Number(Dense):
    """A raw column of numbers.

    Attributes
    ----------
    name : str
    place : int
        Position of its input among all inputs.
    flag : int or None
        Position of the 0/1 input that flags missing values.
    linear : Linear or None
        Replaces the logarithm; `fill` is then unused.
    fill : float
        Replaces a missing value, in raw units, and is transformed like any number.
    nan : NanRule
    """

    flag: int | None = None
    linear: Linear | None = None
    fill: float = 0.0
    nan: NanRule = field(default_factory=NanRule)
    takes_values: ClassVar[bool] = True
    is_number: ClassVar[bool] = True

    @property
    def has_flag(self) -> bool:
        """Whether one of the inputs flags missing values."""
        return self.flag is not None

    @property
    def law(self) -> Law:
        """How an exported model computes its inputs."""
        if self.linear is None:
            return Law("log", self.fill)
        return Law("linear", self.linear.center, self.linear.center, self.linear.scale)

    @property
    def inputs(self) -> dict[int, str]:
        """The place of each input, and its name in converted data."""
        flags = {} if self.flag is None else {self.flag: f"{self.name}{FLAG}"}
        return {self.place: self.name, **flags}

    def read(self, array: Any, location: Location) -> tuple[Array, Array]:
        """Return numbers (n,) float64, 0 where missing, and which are missing (n,) bool."""
        return read_numbers(array, self.nan, location)

    def checked(self, array: Any, location: Location) -> tuple[Array, Array]:
        """Return the result of `read`; refuse a number too large to shift and scale."""
        values, missing = self.read(array, location)
        if self.linear is not None:
            _scaled(values, missing, self.linear, location)
        return values, missing

    def as_inputs(self, values: Sequence[float]) -> list[float]:
        """Return the distinct inputs of some numbers, in ascending order."""
        given, law = np.array(values, np.float64), self.linear
        found = log_transform(given) if law is None else (given - law.center) / law.scale
        return np.unique(found.astype(np.float32)).tolist()

    def write(self, array: Any, location: Location, dense: Array) -> None:
        """Write its inputs, rows of `dense` (F_dense, n) float32."""
        values, missing = self.read(array, location)
        if self.linear is None:
            if self.fill:
                values = values + missing * self.fill  # missing values are 0
            dense[self.place] = log_transform(values)
        else:
            dense[self.place] = _scaled(values, missing, self.linear, location)
        if self.flag is not None:
            dense[self.flag] = missing

    def warn_of_floor(self, array: Any, location: Location) -> None:
        """Warn if many of the numbers become equal in the logarithm."""
        values, missing = self.read(array, location)
        there = values[~missing]
        share = np.mean(there < FLOOR) if len(there) else 0.0
        if share > _EQUAL:
            warnings.warn(
                f"{location.name}: column {location.column}: {share:.0%} of the numbers are below "
                f"{FLOOR:g}, and become equal in log(max(x, {FLOOR:g}) + 3); shift and scale them "
                f"by a schema: [linear.{location.column}] center = {there.mean():.4g}, "
                f"scale = {there.std():.4g}",
                DataWarning,
                stacklevel=5,
            )


FLAG = "_missing"  # suffix of a flag's name


def _scaled(values: Array, missing: Array, law: Linear, location: Location) -> Array:
    """Return (x - center) / scale of float64 values in float32; missing ones become 0."""
    with np.errstate(over="ignore"):
        there = np.where(missing, law.center, values)
        scaled: Array = ((there - law.center) / law.scale).astype(np.float32)
    location.refuse(
        ~np.isfinite(scaled),
        lambda row: f"{values[row]:g}, shifted and scaled, is too large for float32",
    )
    return scaled


def inputs_of_numbers(columns: Sequence[Number], values: Array) -> Array | None:
    """Compute the columns' inputs from numbers (n, F) float64, NaN where missing.

    Return None if an input is too large for float32.
    """
    missing = np.isnan(values)
    filled = np.where(missing, columns[0].fill if columns else 0.0, values)
    dense = log_transform(filled).astype(np.float32, order="C")
    for index, column in enumerate(columns):
        if column.linear is not None:
            there = np.where(missing[:, index], column.linear.center, values[:, index])
            dense[:, index] = (there - column.linear.center) / column.linear.scale
    if not np.isfinite(dense).all():
        return None
    has_flags = columns and columns[0].flag is not None
    return np.hstack([dense, missing], dtype=np.float32) if has_flags else dense


def input_names(columns: Sequence[Dense]) -> tuple[str, ...]:
    """Return the name of each input in converted data, in order."""
    inputs = {place: name for column in columns for place, name in column.inputs.items()}
    return tuple(inputs[place] for place in range(len(inputs)))
