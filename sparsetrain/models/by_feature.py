# SPDX-License-Identifier: Apache-2.0
"""Arguments with a value per feature: one for all, or a dict of exceptions.

``{"user": 32, "*": 16}`` is 32 for `user` and 16 for every other feature. A dict with equal values
is reduced to one value, so that it gives the same program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from sparsetrain.embedding.collection import POOLINGS, Pooling
from sparsetrain.errors import ConfigError, nearest
from sparsetrain.system.argument_checks import require_int

OTHERS = "*"


Dim: TypeAlias = int | Mapping[str, int]
PoolingOf: TypeAlias = Pooling | Mapping[str, Pooling]


def require_features(what: str, given: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse a dict with keys that are not features.

    Raises
    ------
    ConfigError
        If a key is not a feature; the message names the first one and the most similar feature.
    """
    for name in given:
        if name not in names and name != OTHERS:
            raise ConfigError(f"{what}: there is no feature {name!r}; {nearest(str(name), names)}")


def _plain(given: Mapping[str, Any], names: Sequence[str], default: Any, of_all: Any) -> Any:
    """Return one value for all features, or a dict of `OTHERS` and the exceptions.

    If `given` lacks `OTHERS`, its value is `default`, or `of_all` if all `names` are given.
    """
    all_given = all(name in given for name in names)
    others = given.get(OTHERS, of_all if all_given else default)
    own = {name: given[name] for name in names if given.get(name, others) != others}
    return {OTHERS: others, **own} if own else others


class Widths(NamedTuple):
    """Widths of vectors.

    Attributes
    ----------
    features : tuple of F int
        Width of each feature.
    others : int
        Width of all other vectors, such as those of numbers.
    """

    features: tuple[int, ...]
    others: int

    @property
    def are_equal(self) -> bool:
        """Whether all widths are equal."""
        return {*self.features} <= {self.others}

    @property
    def common(self) -> int:
        """The largest width, to which all vectors can be mapped without loss."""
        return max(self.others, *self.features)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Length and width of each run of consecutive features with equal width."""
        return [(len([*same]), width) for width, same in groupby(self.features)]


def check_dim(
    what: str, given: Dim, names: Sequence[str], tables: Sequence[str], default: int, least: int
) -> Any:
    """Return widths as plain values.

    Parameters
    ----------
    what : str
        The argument and its class, for error messages.
    given : int, or mapping from str to int
    names : sequence of F str
    tables : sequence of F str
        For each feature, the owner of its table.
    default : int
        Width of features that are not named. If all are named, other vectors get the largest width.
    least : int
        Smallest allowed width.

    Raises
    ------
    ConfigError
        If a feature is unknown, a width is invalid, or one table gets two widths.
    """
    if not isinstance(given, Mapping):
        return require_int(what, given, least)
    require_features(what, given, names)
    widths = {name: require_int(f"{what} of {name!r}", w) for name, w in given.items()}
    for name, own in zip(names, tables, strict=True):
        width = widths.get(own, widths.get(OTHERS, default))
        if widths.get(name, width) != width:
            raise ConfigError(
                f"{what} of {name!r} is {widths[name]}, but it shares the table of {own}, which is "
                f"{width} wide: set it for {own} only"
            )
    return _plain(
        widths, list(dict.fromkeys(tables)), default, max(widths.values(), default=default)
    )


def widths_of(dim: Any, tables: Sequence[str]) -> Widths:
    """Return the widths that a result of `check_dim` describes."""
    if not isinstance(dim, Mapping):
        return Widths((dim,) * len(tables), dim)
    return Widths(tuple(dim.get(table, dim[OTHERS]) for table in tables), dim[OTHERS])


def check_pooling(what: str, given: PoolingOf, names: Sequence[str]) -> Any:
    """Return poolings as plain values; features that a dict does not name get "sum".

    Raises
    ------
    ConfigError
        If a feature or a pooling is unknown.
    """
    if not isinstance(given, Mapping):
        if given not in POOLINGS:
            raise ConfigError(f"{what} must be None, 'sum' or 'mean', not {given!r}")
        return given
    require_features(what, given, names)
    for name, pooling in given.items():
        if pooling not in POOLINGS or pooling is None:
            raise ConfigError(f"{what} of {name!r} must be 'sum' or 'mean', not {pooling!r}")
    return _plain(given, names, "sum", given.get(names[0]) if names else "sum")


def poolings_of(pooling: Any, names: Sequence[str]) -> list[Pooling]:
    """Return the pooling of each feature that a result of `check_pooling` describes."""
    if not isinstance(pooling, Mapping):
        return [pooling] * len(names)
    return [pooling.get(name, pooling[OTHERS]) for name in names]
