# SPDX-License-Identifier: Apache-2.0
"""`infer`: a schema from the types and values of a sample of rows.

Whole numbers count as amounts, to be scaled by a logarithm, if few values are large: the largest
exceeds eight times the median, or 8 if the median is below 1. Other whole numbers, and columns with
a name ending in `id`, are categories. Columns that cannot help (a single value, or a new value in
nearly every row) are left out. Times become their hour and weekday; lists of numbers of equal
length become vectors, and lists in text are split. Every guess is an entry of the result; `dense`,
`categories` and `ignore` override it. A warning names columns of unsupported types.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sparsetrain.data.column_sample import (
    Pieces,
    Values,
    check_types,
    has_fractions,
    read_as_asked,
    take_sample,
    values_of,
)
from sparsetrain.data.list_columns import separator_of, vector_width
from sparsetrain.data.schema.column_rule import Linear
from sparsetrain.data.schema.columns import require_columns, require_kind
from sparsetrain.data.schema.derived import Derived
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values import arrow_types
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.location import Location, RowError
from sparsetrain.errors import ConfigError, DataWarning
from sparsetrain.labels.label import Label, guess_label, named_label
from sparsetrain.system.html import table

_FEW, _TAIL, _UNIQUE = 10, 8, 0.95
_NAMED = 5  # most columns that a warning names
_HASH = 1e9  # hashes exceed this number; counts and amounts rarely do
# Names with these endings, and the column names of Criteo and torchrec.
_IS_ID = re.compile(r"(?i:(^|[^a-z])(id|key|code|zip|hash)$)|[a-z](Id|ID)$|^(C|cat_)\d+$").search
_IS_COUNT = re.compile(r"(I|int_)\d+").fullmatch
_IS_TIME = re.compile(r"(?i)time|date|hour|(^|_)(ts|at)$").search


class Inferred(NamedTuple):
    """A schema, the role of each column, and the reason for each column left out."""

    schema: Schema
    columns: dict[str, str]
    useless: dict[str, str]

    def __repr__(self) -> str:
        width = max(map(len, self.columns))
        return "\n".join(f"{name:{width}}  {what}" for name, what in self.columns.items())

    def _repr_html_(self) -> str:
        return table(self.columns.items(), ("column", "taken for"))


def infer(
    data: Any,
    label: str,
    *,
    dense: Sequence[str] = (),
    categories: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> Inferred:
    """Infer the roles of columns from a sample of rows.

    Parameters
    ----------
    data : anything `open_source` takes, except batches
    label : str
        The column to predict: 0 and 1, or any numbers. For other kinds of labels, append the kind,
        as in ``"visits:count"``; see `Schema`.
    dense, categories, ignore : sequence of str
        Columns to use as numbers, as categories, or not at all.

    Raises
    ------
    DataError
        If a named column is missing, or the label is not a number.
    ConfigError
        If a column is named twice, or there is no category column.

    Warns
    -----
    DataWarning
        If columns are left out because their type is not supported.

    Examples
    --------
    >>> rows = {"click": [0, 1] * 99, "age": [5, 90] * 99}
    >>> rows["site"] = ["a", "b", "c"] * 66
    >>> infer(rows, "click").schema.categories
    ('age', 'site')
    """
    name, sample, unread = take_sample(data)
    label, kind = named_label(label, {*sample, *unread})
    by_role = {
        "dense": [*dense],
        "category": [*categories],
        "ignored": [*ignore],
        "label": [label],
    }
    given = [column for columns in by_role.values() for column in columns]
    require_columns([*sample, *unread], given, "given", Location(name))
    twice = next((column for column in given if given.count(column) > 1), None)
    if twice is not None:
        raise ConfigError(f"{twice!r} is given twice among label, dense, categories and ignore")
    roles = {column: role for role, columns in by_role.items() for column in columns}
    guess = _Guess(Location(name), {*unread, *sample}, kind)
    for column in (*unread, *sample):
        if column in ignore:
            guess.notes[column] = "ignored, as asked"
        elif column in sample:
            check_types(sample[column])
            _ROLES[roles.get(column, "")](guess, column, sample[column])
        elif column in roles:
            raise unread[column]
        else:
            guess.leave_out(column, unread[column].reason)
    inferred = guess.result(label)
    if guess.unread:
        warnings.warn(guess.warning(), DataWarning, stacklevel=2)
    return inferred


def name_columns(reasons: Mapping[str, str]) -> str:
    """Describe columns and reasons for a warning: the first few, and the number of the rest."""
    named = [f"{name!r} ({why})" for name, why in reasons.items()]
    more = f" and {len(named) - _NAMED:,} others" if len(named) > _NAMED else ""
    return ", ".join(named[:_NAMED]) + more


@dataclass
class _Guess:
    """Roles found so far."""

    location: Location
    names: set[str]  # of all columns, including derived ones
    kind: Label | None  # the label's kind, if it is given
    dense: list[str] = field(default_factory=list)
    categories: list[str] = field(default_factory=list)
    vectors: dict[str, int] = field(default_factory=dict)
    linear: dict[str, Linear] = field(default_factory=dict)
    derived: dict[str, Derived] = field(default_factory=dict)
    time: str | None = None
    labels: dict[str, Label] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    useless: dict[str, str] = field(default_factory=dict)

    def result(self, label: str) -> Inferred:
        """Return the schema."""
        categories = (*self.categories, *self.derived)
        if not categories:
            raise ConfigError(
                f"{self.location.name}: no column is a category, and a model needs one; "
                "categories=[NAME] (--category NAME) makes one of a number"
            )
        kind = self.labels[label]
        named: Any = {"label": label} if kind.is_yes_or_no else {"labels": {label: kind}}
        schema = Schema(
            dense=tuple(self.dense),
            categories=categories,
            time=self.time,
            derived=self.derived,
            vectors=self.vectors,
            linear=self.linear,
            **named,
        )
        return Inferred(schema, self.notes, self.useless)

    def as_label(self, name: str, pieces: Pieces) -> None:
        """Use a column as the label."""
        values = read_as_asked(pieces)
        self.labels[name] = self.kind or guess_label(values)
        self.notes[name] = f"label, {self.labels[name]}"

    def as_category(self, name: str, pieces: Pieces) -> None:
        """Use a column as a category."""
        require_kind(pieces[0][1].type, pieces[0][0], lists=True)
        self._category(name, values_of(pieces))

    def as_dense(self, name: str, pieces: Pieces) -> None:
        """Use a column as a number, or as lists of `length` numbers."""
        if arrow_types.is_bag(pieces[0][1].type):
            return self._vector(name, pieces)
        self._number(name, read_as_asked(pieces))

    def as_it_looks(self, name: str, pieces: Pieces) -> None:
        """Choose a column's role by its name and values."""
        type_ = pieces[0][1].type
        kind = arrow_types.kind_of(arrow_types.element(type_))
        if kind is None:
            return self.leave_out(name, str(type_))
        if arrow_types.is_bag(type_) and kind == arrow_types.FLOAT:
            try:
                return self._vector(name, pieces)
            except RowError as error:
                return self.leave_out(name, error.reason)
        if (mark := separator_of(pieces)) is not None:
            return self._list(name, mark)
        seen = values_of(pieces)
        for test, take in _RULES:
            if test(name, seen):
                take(self, name, seen)
                return

    def leave_out(self, name: str, why: str) -> None:
        """Leave out a column that cannot be read."""
        self.unread[name] = why
        self.notes[name] = f"ignored: {why}"

    def warning(self) -> str:
        """Return the warning about columns of unsupported types."""
        return (
            f"{self.location.name}: columns of unsupported types are left out: "
            f"{name_columns(self.unread)}; cast them to numbers, text or lists of them, or drop "
            "them (ignore=[NAME], --ignore NAME)"
        )

    def _useless(self, name: str, seen: Values) -> None:
        why = "another value in nearly every row" if seen.distinct > 1 else "always the same"
        self.useless[name] = why if seen.distinct else "no values"
        self.notes[name] = f"ignored: {self.useless[name]}"

    def _category(self, name: str, seen: Values) -> None:
        self.categories.append(name)
        self.notes[name] = f"category, {seen.kind}: {seen.distinct:,} values"

    def _vector(self, name: str, pieces: Pieces) -> None:
        width = self.vectors[name] = vector_width(pieces)
        self.notes[name] = f"vector of {width:,} numbers"

    def _list(self, name: str, mark: str) -> None:
        self.derived[self._free(f"{name}_list")] = Derived(name, separator=mark)
        self.notes[name] = f"list in text, cut at {mark!r}"

    def _free(self, name: str) -> str:
        """Reserve and return a name that no column has."""
        while name in self.names:
            name += "_"
        self.names.add(name)
        return name

    def _dense(self, name: str, seen: Values) -> None:
        assert seen.numbers is not None
        self._number(name, seen.numbers)

    def _number(self, name: str, values: Array) -> None:
        self.dense.append(name)
        if not len(values) or (np.mean(values < -2) <= 0.01 and _has_tail(values)):
            self.notes[name] = "number, by its logarithm"
            return
        center, scale = float(np.mean(values)), float(np.std(values)) or 1.0
        self.linear[name] = Linear(float(f"{center:.4g}"), float(f"{scale:.4g}"))
        self.notes[name] = "number, shifted and scaled"

    def _moment(self, name: str, seen: Values) -> None:
        unit = 1000 if seen.numbers is not None and seen.numbers.max() > 1e11 else 1
        self._derive(name, {"hour": (3600 * unit, 24), "weekday": (86400 * unit, 7)}, seen)

    def _date_and_hour(self, name: str, seen: Values) -> None:
        self._derive(name, {"hour": (1, 100)}, seen)

    def _derive(self, name: str, parts: Mapping[str, tuple[int, int]], seen: Values) -> None:
        made = []
        for part, (divide, modulo) in parts.items():
            rule = Derived(name, divide, modulo)
            values: Any = seen.numbers if seen.moments is None else np.concatenate(seen.moments)
            if len(np.unique(rule.part_of(values))) > 1:
                self.derived[self._free(f"{name}_{part}")] = rule
                made.append(part)
        self.time = self.time or name
        self.notes[name] = f"time{': its ' + ' and '.join(made) if made else ''}"


_ROLES: dict[str, Callable[[_Guess, str, Pieces], None]] = {
    "label": _Guess.as_label,
    "category": _Guess.as_category,
    "dense": _Guess.as_dense,
    "": _Guess.as_it_looks,
}


def _is_useless(name: str, seen: Values) -> bool:
    there = seen.rows - seen.missing
    if not seen.distinct or (seen.distinct == 1 and not seen.missing):
        return True
    fraction = seen.numbers is not None and has_fractions(seen.numbers)
    unique = there >= 100 and seen.distinct >= _UNIQUE * there
    return unique and not fraction and seen.moments is None and not _is_moment(name, seen)


def _is_moment(name: str, seen: Values) -> bool:
    """Whether values are times, or, by the column's name, seconds or milliseconds since 1970."""
    if seen.moments is not None:
        return True
    values = seen.numbers
    if values is None or not len(values) or not _IS_TIME(name):
        return False
    low, high = values.min(), values.max()
    return 6e8 < low <= high < 4.2e9 or 6e11 < low <= high < 4.2e12


def _is_date_and_hour(name: str, seen: Values) -> bool:
    """Whether numbers are YYMMDDHH or YYYYMMDDHH."""
    values = seen.numbers
    if values is None or not len(values) or not _IS_TIME(name) or values.min() < 1e7:
        return False
    hour, day, month = values % 100, values // 100 % 100, values // 10_000 % 100
    return bool(((hour < 24) & (day > 0) & (day < 32) & (month > 0) & (month < 13)).all())


def _is_category(name: str, seen: Values) -> bool:
    values = seen.numbers
    if values is None:
        return True
    if _IS_COUNT(name) or has_fractions(values):
        return False
    named = bool(_IS_ID(name)) or seen.distinct <= _FEW or values.max() >= _HASH
    return named or (values.min() >= 0 and not _has_tail(values))


def _has_tail(values: Array) -> bool:
    """Whether few of the numbers are large."""
    return bool(values.max() > _TAIL * max(np.median(values), 1.0) and values.min() >= -3)


# The first rule with a true test decides the role of a column.
_Rule = tuple[Callable[[str, Values], bool], Callable[[_Guess, str, Values], None]]
_RULES: tuple[_Rule, ...] = (
    (_is_useless, _Guess._useless),
    (_is_moment, _Guess._moment),
    (_is_date_and_hour, _Guess._date_and_hour),
    (_is_category, _Guess._category),
    (lambda name, seen: True, _Guess._dense),
)
