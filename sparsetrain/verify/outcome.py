# SPDX-License-Identifier: Apache-2.0
"""The outcome of a check: a measured difference, and the bound that it must not exceed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Outcome:
    """What a check compared, with bound and result; or why the check was skipped.

    Parameters
    ----------
    compared : str
    bound, found : float
    unit : str
        Unit of both numbers.
    fails : bool
        Whether the check fails for a reason other than `found`.
    skipped : bool
        Whether there was nothing to compare; `compared` says why.
    """

    compared: str
    bound: float = 0
    found: float = 0
    unit: str = ""
    fails: bool = False
    skipped: bool = False

    @property
    def ok(self) -> bool:
        """Whether `found` is within the bound; NaN is not."""
        return not self.fails and bool(self.found <= self.bound)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        if self.skipped:
            return {"skipped": self.compared, "ok": True}
        found = float(self.found) if np.isfinite(self.found) else str(self.found)
        numbers = {"bound": float(self.bound), "found": found, "unit": self.unit}
        return {"compared": self.compared, **numbers, "ok": self.ok}


def same_bits(compared: str, others: int, *, fails: bool = False) -> Outcome:
    """Return the outcome of a comparison of bits; `others` is how many numbers differ."""
    return Outcome(compared, 0, others, "other bits", fails)


def count_other_bits(
    first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]
) -> tuple[int, int]:
    """Count numbers that differ in a bit, and all numbers; a missing array differs as a whole."""
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
