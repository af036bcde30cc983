# SPDX-License-Identifier: Apache-2.0
"""Buckets of numbers, cut at boundaries that are given or learnt as quantiles.

A number's bucket is the count of boundaries that it reaches or exceeds. Until its boundaries are
learnt, a column of quantiles has one bucket.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sparsetrain.data.derived.kind import NUMBERS, Column, Kind, Takes, as_buckets, numbers_of
from sparsetrain.data.values.arrays import Array
from sparsetrain.errors import ConfigError
from sparsetrain.system.argument_checks import is_number, require_int

_MOST_QUANTILES = 10_000


@dataclass(frozen=True)
class Boundaries(Kind):
    """Buckets between given boundaries."""

    key: ClassVar[str] = "boundaries"
    takes: ClassVar[Takes] = NUMBERS

    boundaries: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.boundaries, list):
            object.__setattr__(self, "boundaries", tuple(self.boundaries))

    def check(self, where: str) -> None:
        """Refuse boundaries that do not increase."""
        if self.boundaries is not None and not _rise(self.boundaries):
            raise ConfigError(
                f"{where}: boundaries is {self.boundaries!r:.60}; give a list of numbers that rise"
            )

    def make(self, *columns: Column) -> pa.Array:
        """Return the buckets, int64."""
        values, missing = numbers_of(*columns)
        return as_buckets(np.searchsorted(np.array(self.boundaries), values, "right"), missing)


@dataclass(frozen=True)
class Quantiles(Kind):
    """Buckets with about equally many training rows."""

    key: ClassVar[str] = "quantiles"
    takes: ClassVar[Takes] = NUMBERS
    learns: ClassVar[str] = "boundaries"

    quantiles: int | None = None

    def check(self, where: str) -> None:
        """Refuse a number of buckets other than 2 to 10,000."""
        if self.quantiles is not None:
            require_int(f"{where}.quantiles", self.quantiles, 2, _MOST_QUANTILES)

    def make(self, *columns: Column) -> pa.Array:
        """Return bucket 0 for each number, int64, since no boundaries are learnt yet."""
        values, missing = numbers_of(*columns)
        return as_buckets(np.zeros(len(values)), missing)

    def learnt(self, numbers: Array) -> tuple[float, ...]:
        """Return the boundaries."""
        assert self.quantiles is not None
        return boundaries_of(numbers, self.quantiles) if len(numbers) else (0.0,)  # any will do


def boundaries_of(values: Array, count: int) -> tuple[float, ...]:
    """Return boundaries that divide numbers (n,) into `count` buckets, fewer if many are equal.

    The smallest number is below all boundaries, unless all numbers are equal.
    """
    above = values[values > values.min()]
    if not len(above):
        return (float(values[0]),)
    cuts = np.quantile(values, np.arange(1, count) / count, method="higher")
    return tuple(np.unique(np.maximum(cuts, above.min())).tolist())


def _rise(numbers: Any) -> bool:
    """Whether this is a non-empty, strictly increasing list of finite numbers."""
    return (
        isinstance(numbers, tuple)
        and len(numbers) > 0
        and all(is_number(number) and abs(number) < 1e300 for number in numbers)
        and all(a < b for a, b in pairwise(numbers))
    )
