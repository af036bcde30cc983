# SPDX-License-Identifier: Apache-2.0
"""`Derived`: a column computed from other columns, by one of several rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sparsetrain.errors import ConfigError
from sparsetrain.system.argument_checks import is_number, require_int, require_type

_DERIVING = (
    "boundaries",
    "quantiles",
    "log",
    "separator",
    "cross",
)  # rules of derived columns, one of each


@dataclass(frozen=True)
class Derived:
    """A column made of a column: `(source // divide) % modulo`, or by one of the further rules.

    Attributes
    ----------
    source : str
        The column it is made of; `from` in a file.
    divide, modulo : int
        Of an integer column. At least 1; a modulo of None leaves the quotient as it is.
    boundaries : tuple of float or None
        A number's bucket is how many of these, which rise, are not above it.
    quantiles : int or None
        Boundaries between so many buckets of about as many rows each, which are learnt from the
        training data.
    log : float or None
        A number's bucket is ``floor(log(1 + |x|))`` with the number's sign, to this base.
    separator : str or None
        Text is split into a list at these.
    cross : str or None
        A second column: a pair of values of both becomes a hash below `buckets`.
    buckets : int or None
    """

    source: str = field(metadata={"alias": "from"})
    divide: int = 1
    modulo: int | None = None
    boundaries: tuple[float, ...] | None = None
    quantiles: int | None = None
    log: float | None = None
    separator: str | None = None
    cross: str | None = None
    buckets: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.boundaries, list):
            object.__setattr__(self, "boundaries", tuple(self.boundaries))

    @property
    def given(self) -> list[str]:
        """The keys that name its rule; only one can be given."""
        return [key for key in _DERIVING if getattr(self, key) is not None]

    @property
    def kind(self) -> str:
        """The name of its rule: the key that is given beside `source`, or "arithmetic"."""
        return next(iter(self.given), "arithmetic")

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns it is made of."""
        return (self.source,) if self.cross is None else (self.source, self.cross)


def check_derived(where: str, rule: Derived) -> None:
    """Refuse a rule that cannot hold for any data."""
    check_counts(where, rule, ("divide", "modulo", "buckets"))
    given = rule.given
    if (rule.divide, rule.modulo) != (1, None):
        given.append("divide and modulo")
    if len(given) > 1:
        raise ConfigError(f"{where}: {' and '.join(given)} exclude each other: drop one")
    if (rule.buckets is None) != (rule.cross is None):
        raise ConfigError(f"{where}: cross and buckets go together: give both")
    if rule.buckets is not None and rule.buckets > _MOST_BUCKETS:
        raise ConfigError(f"{where}: buckets is {rule.buckets}; at most {_MOST_BUCKETS}")
    if rule.quantiles is not None:
        require_int(f"{where}.quantiles", rule.quantiles, 2, _MOST_QUANTILES)
    for key, word in (("separator", "the text between values"), ("cross", "a column's name")):
        require_type(f"{where}.{key}", getattr(rule, key), str, word)
    if rule.separator == "":
        raise ConfigError(f"{where}: separator is empty; give the text between values")
    if rule.log is not None and not (_is_finite(rule.log) and rule.log > 1):
        raise ConfigError(f"{where}: log is {rule.log!r:.40}; it must be a base above 1")
    if rule.boundaries is not None and not _rise(rule.boundaries):
        raise ConfigError(
            f"{where}: boundaries is {rule.boundaries!r:.60}; give a list of numbers that rise"
        )


_MOST_BUCKETS = 2**31 - 1
_MOST_QUANTILES = 10_000


def _rise(numbers: Any) -> bool:
    """Whether these are finite numbers, one or more, each above the one before."""
    return (
        isinstance(numbers, tuple)
        and len(numbers) > 0
        and all(map(_is_finite, numbers))
        and all(a < b for a, b in pairwise(numbers))
    )


def _is_finite(number: Any) -> bool:
    return is_number(number) and abs(number) < 1e300


def check_counts(where: str, rule: Any, keys: Sequence[str]) -> None:
    """Refuse values other than None and whole numbers of 1 or more, by path."""
    for key in keys:
        if (value := getattr(rule, key)) is not None:
            require_int(f"{where}.{key}", value)
