# SPDX-License-Identifier: Apache-2.0
"""`Settings`: options of an encoder that apply to all of its columns."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sparsetrain.data.columns.vocabulary import MIN_CAP
from sparsetrain.data.schema.columns import AUTO, check_treat_as
from sparsetrain.data.schema.schema import ColumnRule
from sparsetrain.data.values.numeric import NanRule
from sparsetrain.errors import ConfigError
from sparsetrain.system.argument_checks import require_int


@dataclass(frozen=True)
class Settings:
    """Settings of an encoder; `Encoder.fit` documents each.

    Raises
    ------
    ConfigError
        If a value is out of its range.
    """

    min_count: int = 5
    max_rows: int | None = None
    dense_fill: int | float = 0.0  # kept as written, for the fingerprint
    missing_flags: bool = False
    nan: str = "error"
    treat_as: str = "auto"

    def __post_init__(self) -> None:
        require_int("min_count", self.min_count)
        if self.max_rows is not None:
            require_int("max_rows", self.max_rows, MIN_CAP)
        check_treat_as(self.treat_as)
        _ = self.nan_rule
        if not math.isfinite(self.dense_fill):
            raise ConfigError(f"dense_fill is {self.dense_fill}; it must be a finite number")

    @property
    def guesses(self) -> bool:
        """Whether column types decide if data are already encoded."""
        return self.treat_as == AUTO

    @property
    def nan_rule(self) -> NanRule:
        """Treatment of NaN in raw columns."""
        return NanRule(self.nan)

    def limits(self, rule: ColumnRule) -> tuple[int, int | None]:
        """Return `min_count` and `max_rows` of a column with this rule."""
        return rule.min_count or self.min_count, rule.max_rows or self.max_rows

    def check_encoded(self, linear: Iterable[str]) -> None:
        """Refuse settings, and linear columns, that have no effect on already encoded data."""
        given = {
            "max_rows": self.max_rows is not None,
            "missing_flags": self.missing_flags,
            "nan='missing'": self.nan == "missing",
            **{f"linear.{name}": True for name in linear},
        }
        for name, is_set in given.items():
            if is_set:
                raise ConfigError(
                    f"{name} is for raw data, this is already encoded; "
                    "leave it out or use treat_as='raw'"
                )

    def check_converted(self, own: Settings) -> None:
        """Refuse settings that differ from the conversion's; defaults are ignored."""
        for name in ("min_count", "max_rows", "dense_fill", "missing_flags", "nan"):
            value, known = getattr(self, name), getattr(own, name)
            if value not in (known, getattr(Settings, name)):
                raise ConfigError(
                    f"{name} is {value!r}, but the data are converted with {known!r}; "
                    "leave it out, or convert the raw data again"
                )
