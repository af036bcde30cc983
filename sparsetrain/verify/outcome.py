# SPDX-License-Identifier: Apache-2.0
"""The outcome of a check: a number that was found, and the bound that it may not pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Outcome:
    """A comparison, its bound and its result; a check that cannot run has a reason.

    Parameters
    ----------
    compared : str
    bound, found : float
    unit : str
        Of both.
    fails : bool
        Whether something else is wrong than the number.
    skipped : bool
        Whether there was nothing to compare: `compared` says why.
    """

    compared: str
    bound: float = 0
    found: float = 0
    unit: str = ""
    fails: bool = False
    skipped: bool = False

    @property
    def ok(self) -> bool:
        """Whether the bound holds; NaN passes none."""
        return not self.fails and bool(self.found <= self.bound)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        if self.skipped:
            return {"skipped": self.compared, "ok": True}
        found = float(self.found) if np.isfinite(self.found) else str(self.found)
        numbers = {"bound": float(self.bound), "found": found, "unit": self.unit}
        return {"compared": self.compared, **numbers, "ok": self.ok}


def same_bits(compared: str, others: int, *, fails: bool = False) -> Outcome:
    """Return the outcome of a comparison in which no number's bits may differ; `others` do."""
    return Outcome(compared, 0, others, "other bits", fails)


def count_other_bits(
    first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]
) -> tuple[int, int]:
    """Count the numbers with different bits; an array that only one side has differs as a whole."""
    others = total = 0
    for name in {*first, *second}:
        one, other = first.get(name), second.get(name)
        total += max(0 if a is None else a.size for a in (one, other))
        if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
            others += max(0 if a is None else a.size for a in (one, other))
        else:
            others += int(np.count_nonzero(_words(one) != _words(other)))
    return others, total


def _words(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")
