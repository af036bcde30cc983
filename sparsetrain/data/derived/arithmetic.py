# SPDX-License-Identifier: Apache-2.0
"""Derived integers: ``(source // divide) % modulo``, rounded down.

Examples: the hour of a day from YYMMDDHH (modulo 100), the weekday from seconds since 1970 (divide
86400, modulo 7), and so on. A date or timestamp is first converted to seconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sparsetrain.data.derived.kind import Column, Kind, as_buckets, check_counts, numbers_of
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import fill_nulls
from sparsetrain.data.values.arrow_values import EXACT, exact_integers
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.moments import to_microseconds

_LARGEST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Arithmetic(Kind):
    """A quotient and its remainder, the default kind of a rule."""

    key: ClassVar[str] = "arithmetic"
    is_native: ClassVar[bool] = True

    divide: int = 1
    modulo: int | None = None

    @classmethod
    def given(cls, rule: Any) -> str:
        """Return the rule's options of this kind in words; "" if all are the defaults."""
        return "" if (rule.divide, rule.modulo) == (1, None) else "divide and modulo"

    def check(self, where: str) -> None:
        """Refuse numbers below 1."""
        check_counts(where, self, ("divide", "modulo"))

    def make(self, *columns: Column) -> pa.Array:
        """Compute the quotient and remainder, as int64."""
        ((array, location),) = columns
        values, missing = _integers(array, location)
        result = self.part_of(values)
        location.refuse(
            result > _LARGEST,
            lambda row: f"{result[row]} is beyond int64, which a derived column holds",
        )
        return as_buckets(result, missing)

    def part_of(self, values: Array) -> Array:
        """Return the quotient and remainder of integers (n,)."""
        quotient = values // self.divide
        return quotient if self.modulo is None else quotient % self.modulo


def _integers(array: pa.Array, location: Location) -> tuple[Array, Array]:
    moments = to_microseconds(array, location)
    if moments is not None:
        microseconds, missing = fill_nulls(moments)
        return microseconds // 1_000_000, missing
    whole = exact_integers(array)
    if whole is not None:
        return whole
    values, missing = numbers_of((array, location))
    odd = (values != np.trunc(values)) | (np.abs(values) >= EXACT)
    location.refuse(
        odd, lambda row: f"{values[row]} is not a whole number, which a derived column needs"
    )
    return values.astype(np.int64), missing
