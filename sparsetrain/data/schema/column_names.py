# SPDX-License-Identifier: Apache-2.0
"""Column names: the numbered families of Criteo and torchrec, and errors about missing names.

A family has a prefix and a first number, for dense columns or for categories.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from sparsetrain.data.values.location import Location
from sparsetrain.errors import shown


class Family(NamedTuple):
    """One way to number columns: a prefix, the first number, and whose convention it is."""

    prefix: str
    first: int
    title: str

    def name(self, index: int) -> str:
        """Return the name of the column at `index`, counted from 0."""
        return f"{self.prefix}{self.first + index}"

    def count(self, names: Sequence[str]) -> int:
        """Return the number of columns up to the highest number among `names`."""
        pattern = re.compile(re.escape(self.prefix) + r"(0|[1-9]\d{0,3})")
        numbers = [int(hit[1]) for name in names if (hit := pattern.fullmatch(name))]
        return max(0, max(numbers, default=self.first - 1) - self.first + 1)


DENSE = (Family("I", 1, "Criteo"), Family("int_", 0, "torchrec"))
CATEGORIES = (Family("C", 1, "Criteo"), Family("cat_", 0, "torchrec"))
_OTHER = "; a schema file says how yours are called"
_FEWER = "; if there is none, a schema file names those there are"


def candidate_columns(names: Sequence[str]) -> list[str]:
    """Return the names that could be a label, a dense or a category column."""
    pattern = re.compile("|".join(f"{f.prefix}\\d+" for f in (*DENSE, *CATEGORIES)))
    return [name for name in names if pattern.fullmatch(name) or name.lower() == "label"]


def numbered(
    names: Sequence[str],
    families: Sequence[Family],
    wanted: int | None,
    what: str,
    location: Location,
) -> tuple[str, ...]:
    """Return the columns of the best represented family, in order and without a gap."""
    there = {*names}
    counts = [
        sum(name in there for name in _all(family, family.count(names))) for family in families
    ]
    family = families[counts.index(max(counts))]
    if counts.count(max(counts)) > 1 and max(counts):
        both = " and ".join(f.name(0) for f in families)
        raise location.error(f"{what} columns are there under two names, {both}; drop one set")
    found = _all(family, wanted or max(family.count(names), 1))
    advice = _OTHER if not max(counts) else _FEWER if wanted is None else ""
    require_columns(names, found, what, location, advice)
    return found


def _all(family: Family, count: int) -> tuple[str, ...]:
    return tuple(family.name(index) for index in range(count))


def require_column(
    names: Sequence[str], name: str, what: str, location: Location, advice: str = ""
) -> None:
    """Refuse a column that is missing or occurs twice."""
    if names.count(name) > 1:
        raise location.of_column(name).error("the column is there twice; drop one")
    if name not in names:
        raise location.of_column(name).error(
            f"the {what} column is missing; {_hint(name, names)}{advice}"
        )


def require_columns(
    names: Sequence[str], wanted: Sequence[str], what: str, location: Location, advice: str = ""
) -> None:
    """Refuse missing and duplicate columns."""
    times = Counter(names)  # counting each name among thousands takes seconds
    for name in wanted:
        if times[name] != 1:
            require_column(names, name, what, location, advice)


def _hint(name: str, names: Sequence[str]) -> str:
    """Suggest a name: the same name in a different case, or the most similar name."""

    def likeness(other: str) -> tuple[float, bool]:
        same = other.lower() == name.lower()
        return same or SequenceMatcher(None, name, other).ratio(), other[:1] == name[:1]

    near = max(names, key=likeness, default="")
    if likeness(near)[0] >= 0.5:
        return f"the nearest name there is {shown(near)}"
    few = ", ".join(map(shown, names[:3])) + ", ..." * (len(names) > 3)
    return f"there are {few or 'no columns'}"


def find_label(names: Sequence[str], given: str | None, location: Location) -> str:
    """Return the label column: the given one, or `label` in any case."""
    if given is not None:
        require_column(names, given, "label", location)
        return given
    found = [name for name in names if name.lower() == "label"]
    if len(found) > 1:
        raise location.error(f"{len(found)} label columns, {' and '.join(found)}; drop all but one")
    if not found:
        require_column(names, "label", "label", location, _OTHER)
    return found[0]
