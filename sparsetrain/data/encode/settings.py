# SPDX-License-Identifier: Apache-2.0
"""The choices an encoder is fitted with; checked once, saved with it, never changed afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from sparsetrain.data.encode.dense import RawDense
from sparsetrain.data.encode.vocabulary import MIN_CAP
from sparsetrain.data.schema.columns import check_treat_as
from sparsetrain.data.values.missing import NanRule
from sparsetrain.errors import ConfigError
from sparsetrain.system.argument_checks import require_int


@dataclass(frozen=True)
class Settings:
    """How raw columns are encoded; `Encoder.fit` documents each.

    Raises
    ------
    ConfigError
        If a value is out of its range.
    """

    min_count: int = 5
    max_rows: int | None = None
    dense_fill: float = 0.0
    missing_flags: bool = False
    nan: str = "error"
    treat_as: str = "auto"

    def __post_init__(self) -> None:
        require_int("min_count", self.min_count)
        if self.max_rows is not None:
            require_int("max_rows", self.max_rows, MIN_CAP)
        check_treat_as(self.treat_as)
        _ = self.raw_dense

    @property
    def nan_rule(self) -> NanRule:
        """What NaN means in raw columns."""
        return NanRule(self.nan)

    @property
    def raw_dense(self) -> RawDense:
        """The rule for raw dense columns, none of them linear."""
        return RawDense(float(self.dense_fill), self.missing_flags, self.nan_rule)

    def check_encoded(self) -> None:
        """Refuse settings that would have no effect on already encoded data."""
        given = {
            "max_rows": self.max_rows is not None,
            "missing_flags": self.missing_flags,
            "nan='missing'": self.nan == "missing",
        }
        for name, is_set in given.items():
            if is_set:
                raise ConfigError(
                    f"{name} is for raw data, this is already encoded; "
                    "leave it out or use treat_as='raw'"
                )

    def check_converted(self, own: Settings) -> None:
        """Refuse settings other than those that data were converted with; defaults say nothing."""
        for name in ("min_count", "max_rows", "dense_fill", "missing_flags", "nan"):
            value, known = getattr(self, name), getattr(own, name)
            if value not in (known, getattr(Settings, name)):
                raise ConfigError(
                    f"{name} is {value!r}, but the data are converted with {known!r}; "
                    "leave it out, or convert the raw data again"
                )
