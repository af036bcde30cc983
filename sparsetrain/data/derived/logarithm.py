# SPDX-License-Identifier: Apache-2.0
"""Buckets of numbers: ``floor(log(1 + |x|))`` to a given base, with the sign of x."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from sparsetrain.data.derived.kind import NUMBERS, Column, Kind, Takes, as_buckets, numbers_of
from sparsetrain.errors import ConfigError
from sparsetrain.system.argument_checks import is_number


@dataclass(frozen=True)
class Logarithm(Kind):
    """Buckets that widen by a constant factor."""

    key: ClassVar[str] = "log"
    takes: ClassVar[Takes] = NUMBERS

    log: float | None = None

    def check(self, where: str) -> None:
        """Refuse a base that is not above 1."""
        if self.log is not None and not (is_number(self.log) and 1 < self.log < 1e300):
            raise ConfigError(f"{where}: log is {self.log!r:.40}; it must be a base above 1")

    def make(self, *columns: Column) -> pa.Array:
        """Return the buckets, int64."""
        assert self.log is not None
        values, missing = numbers_of(*columns)
        size = 1 + np.abs(values)
        buckets = np.floor(np.log(size) / np.log(self.log))
        # Correct buckets at powers of the base, where the quotient may round either way.
        with np.errstate(over="ignore"):
            buckets -= self.log**buckets > size
            buckets += self.log ** (buckets + 1) <= size
        return as_buckets(np.sign(values) * buckets, missing)
