# SPDX-License-Identifier: Apache-2.0
"""What counts as missing in a numeric column: a null always, a NaN only if the user said so.

Nulls are filled before NumPy sees the column: a null in an integer column would otherwise silently
turn it into floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.filled import filled
from sparsetrain.data.values.place import Place
from sparsetrain.errors import ConfigError


@dataclass(frozen=True)
class NanRule:
    """Whether NaN is refused ("error") or means null ("missing"), as pandas writes it."""

    name: str = "error"

    def __post_init__(self) -> None:
        if self.name not in ("error", "missing"):
            raise ConfigError(f"nan is {self.name!r}; it must be 'error' or 'missing'")

    def split(self, array: Any, place: Place) -> tuple[Array, Array]:
        """Return a numeric array as (n,) float64, 0 where missing, and which are missing.

        Raises
        ------
        DataError
            If a value is infinite, or NaN where NaN is an error.
        """
        stored, missing = filled(array)
        values = stored.astype(np.float64)
        finite = np.isfinite(values) if stored.dtype.kind == "f" else np.True_
        if finite.all():
            return values, missing
        bad = np.isinf(values) if self.name == "missing" else ~finite
        if bad.any():
            row = int(np.argmax(bad))
            raise place.error(_reason(values[row]), row)
        return np.where(finite, values, 0.0), missing | ~finite


def _reason(value: float) -> str:
    if np.isinf(value):
        return "the value is infinite; replace it by a null or a number"
    return (
        "the value is NaN; if it stands for a missing value, give a null (None), or learn the "
        "encoding with nan='missing'"
    )
