# SPDX-License-Identifier: Apache-2.0
"""Columns of a table by role: label, dense features and categories, found by name.

Column names come from a `Schema`; without one they are Criteo's or torchrec's. The order of columns
is arbitrary, and extra columns are ignored. Data with Criteo's names are *already encoded* if all
dense columns are floats and all categories integers; otherwise they are raw. The rule depends on
types, never on values, so files with equal schemas are always treated alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import NamedTuple

import pyarrow as pa

from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.arrow_types import (
    EMPTY,
    FLOAT,
    INTEGER,
    MOMENT,
    TEXT,
    element,
    is_bag,
    kind_of,
)
from sparsetrain.data.values.location import Location
from sparsetrain.errors import ConfigError, shown


class Family(NamedTuple):
    """A convention for numbered column names: prefix, first number, and the project using it."""

    prefix: str
    first: int
    title: str

    def name(self, index: int) -> str:
        """Return the name of the column at `index`, counted from 0."""
        return f"{self.prefix}{self.first + index}"

    def count(self, names: Sequence[str]) -> int:
        """Return the number of columns, from the first number to the highest one among `names`."""
        pattern = re.compile(re.escape(self.prefix) + r"(0|[1-9]\d{0,3})")
        numbers = [int(hit[1]) for name in names if (hit := pattern.fullmatch(name))]
        return max(0, max(numbers, default=self.first - 1) - self.first + 1)


DENSE = (Family("I", 1, "Criteo"), Family("int_", 0, "torchrec"))
CATEGORIES = (Family("C", 1, "Criteo"), Family("cat_", 0, "torchrec"))
# Matches names that a dense or category column of a family may have.
is_numbered = re.compile("|".join(f"{f.prefix}\\d+" for f in (*DENSE, *CATEGORIES))).fullmatch
_OTHER = "; if your columns have other names, give these in a schema file"
_FEWER = "; if your data lack it, name the columns that they have in a schema file"


def numbered(
    names: Sequence[str],
    families: Sequence[Family],
    wanted: int | None,
    what: str,
    location: Location,
) -> tuple[str, ...]:
    """Return the columns of the family to which most of `names` belong; refuse gaps."""
    there = {*names}
    counts = [
        sum(name in there for name in _all(family, family.count(names))) for family in families
    ]
    family = families[counts.index(max(counts))]
    if counts.count(max(counts)) > 1 and max(counts):
        both = " and ".join(f.name(0) for f in families)
        raise location.error(
            f"{what} columns have names of two kinds, {both}; drop the columns of one kind"
        )
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
    times = Counter(names)  # `names.count` for thousands of names would take seconds
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
    """Return the label column: `given`, or the column called `label` in upper or lower case."""
    if given is not None:
        require_column(names, given, "label", location)
        return given
    found = [name for name in names if name.lower() == "label"]
    if len(found) > 1:
        raise location.error(f"{len(found)} label columns, {' and '.join(found)}; drop all but one")
    if not found:
        require_column(names, "label", "label", location, _OTHER)
    return found[0]


RAW, ENCODED, AUTO = "raw", "encoded", "auto"


@dataclass(frozen=True)
class Columns:
    """The columns of one schema and their roles.

    Attributes
    ----------
    dense, categories : tuple of str
        Names in the order of their numbers or of the schema, not of the file. `dense` includes
        vectors.
    labels : tuple of str
        Empty if labels were not requested.
    encoded : bool
        Whether the values go to the model unchanged.
    layout : str
        One-line description of the columns, for messages.
    weights : tuple of str or None
        For each category, the list column with the weights of its ids, if any.
    row_weights : str or None
        The column with a factor for each row's loss, if any.
    """

    dense: tuple[str, ...]
    categories: tuple[str, ...]
    labels: tuple[str, ...]
    encoded: bool
    layout: str
    weights: tuple[str | None, ...] = ()
    row_weights: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Every column to be read."""
        factors = (self.row_weights,) if self.row_weights else ()
        weights = (name for name in self.weights if name)
        return (*self.labels, *factors, *self.dense, *self.categories, *weights)


def find_columns(
    schema: pa.Schema,
    where: str = "data",
    *,
    label: bool = True,
    num_dense: int | None = None,
    num_categories: int | None = None,
    treat_as: str = AUTO,
    described: Schema | None = None,
) -> Columns:
    """Find the columns of an Arrow schema by name.

    Parameters
    ----------
    schema : pyarrow.Schema
    where : str
        Name of the data in messages, such as its file.
    label : bool
        Whether the label columns are required; otherwise they are ignored.
    num_dense, num_categories : int, optional
        Required number of columns; by default the highest number in a name decides.
    treat_as : {"auto", "raw", "encoded"}
        Overrides the rule that recognizes already encoded data.
    described : Schema, optional
        The user's schema, which names the columns; by default they have Criteo's or torchrec's
        names.

    Returns
    -------
    Columns

    Raises
    ------
    DataError
        If a column is missing, occurs twice or has an unsupported type.
    ConfigError
        If `treat_as` is invalid.
    """
    check_treat_as(treat_as)
    described = described or Schema()
    location = Location(where)
    if described.categories is None:
        dense = numbered(schema.names, DENSE, num_dense, "dense", location)
        categories = numbered(schema.names, CATEGORIES, num_categories, "category", location)
    else:
        dense, categories = described.dense, described.categories
        require_columns(schema.names, (*dense, *described.inputs), "dense", location)
        require_columns(schema.names, categories, "category", location)
        if treat_as == AUTO:
            treat_as = RAW  # types tell raw from encoded data only with Criteo's names
    labels = find_labels(schema.names, described, location) if label else ()
    weights = tuple(_weights(schema, described, name, location) for name in categories)
    kinds = {name: _kind(schema, name, location) for name in (*dense, *labels)}
    kinds |= {name: _kind(schema, name, location, lists=True) for name in categories}
    encoded = _is_encoded(dense, categories, kinds, treat_as, location)
    inputs = described.inputs
    for name, column in inputs.items():
        column.check_type(schema.field(name).type, location.of_column(name))
    lists = sum(is_bag(schema.field(name).type) for name in categories)
    layout = _describe(described, dense, categories, kinds, encoded)
    layout += f", {lists} of them lists" if lists else ""
    layout += "".join(f", {column.describe()}" for column in inputs.values())
    layout += described.describe_sharing(categories)
    layout += describe_labels(labels)
    return Columns((*dense, *inputs), categories, labels, encoded, layout, weights)


def find_labels(
    names: Sequence[str], described: Schema | None, location: Location
) -> tuple[str, ...]:
    """Return the label columns, in the order of the schema.

    Raises
    ------
    DataError
        If a label column is missing or occurs twice.
    """
    if described is None or not described.labels:
        return (find_label(names, described.label if described else None, location),)
    require_columns(names, [*described.labels], "label", location)
    return tuple(described.labels)


def describe_labels(labels: Sequence[str]) -> str:
    """Return the end of `Columns.layout`, which names the label columns."""
    if not labels:
        return ""
    return f", label in {labels[0]}" if len(labels) == 1 else f", labels in {', '.join(labels)}"


def with_row_weights(columns: Columns, name: str | None, schema: pa.Schema, where: str) -> Columns:
    """Return `columns`, with the column of row weights added if the data have it."""
    if name is None or name not in schema.names:
        return columns
    location = Location(where)
    require_column(schema.names, name, "weight", location)
    _kind(schema, name, location)
    layout = f"{columns.layout}, weights of rows in {name}"
    return replace(columns, row_weights=name, layout=layout)


def check_same_row_weights(found: Mapping[str, Columns]) -> None:
    """Refuse files if only some have a column of row weights."""
    weighed = [columns.row_weights for columns in found.values() if columns.row_weights]
    if weighed and len(weighed) < len(found):
        lacking = next(name for name, columns in found.items() if not columns.row_weights)
        raise Location(lacking, column=weighed[0]).error(
            "the column of row weights is missing in this file, but other files have it"
        )


def check_treat_as(treat_as: str) -> None:
    """Raise `ConfigError` unless `treat_as` is "auto", "raw" or "encoded"."""
    if treat_as not in (AUTO, RAW, ENCODED):
        raise ConfigError(f"treat_as is {treat_as!r}; it must be 'auto', 'raw' or 'encoded'")


def _weights(schema: pa.Schema, described: Schema, name: str, location: Location) -> str | None:
    weights = described.rule(name).weights
    if weights is None:
        return None
    require_column(schema.names, weights, "weight", location)
    types = [schema.field(column).type for column in (weights, name)]
    if not all(is_bag(type_) or pa.types.is_null(type_) for type_ in types):
        raise location.of_column(weights).error(f"weights need list columns, here and in {name}")
    return weights


def _kind(schema: pa.Schema, name: str, location: Location, lists: bool = False) -> str:
    return require_kind(schema.field(name).type, location.of_column(name), lists)


def require_kind(type_: pa.DataType, location: Location, lists: bool = False) -> str:
    """Return the kind of a type (of its list values if `lists`); refuse unsupported types."""
    kind = kind_of(element(type_) if lists else type_)
    if kind is None:
        raise location.error(
            f"type {type_} cannot be used; store integers, floats, text or timestamps"
        )
    return kind


def _is_encoded(
    dense: Sequence[str],
    categories: Sequence[str],
    kinds: dict[str, str],
    treat_as: str,
    location: Location,
) -> bool:
    if treat_as == RAW:
        return False
    odd = [name for name in categories if kinds[name] != INTEGER]
    if treat_as == ENCODED and odd:
        raise location.of_column(odd[0]).error(
            f"already encoded ids must be integers, this column holds {kinds[odd[0]]}"
        )
    return treat_as == ENCODED or (not odd and all(kinds[name] == FLOAT for name in dense))


def _describe(
    described: Schema,
    dense: Sequence[str],
    categories: Sequence[str],
    kinds: dict[str, str],
    encoded: bool,
) -> str:
    families = {family.name(0): f"{family.title} names" for family in CATEGORIES}
    title = families[categories[0]] if described.categories is None else "the schema's names"
    left = f"{len(dense)} dense {_span(dense)}" if dense else "no dense columns"
    if encoded:
        ids = f"{len(categories)} ids {_span(categories)}"
        return f"already encoded, {title}: {left} and {ids}, used as they are"
    right = f"{len(categories)} categories {_span(categories)} as {_kinds(categories, kinds)}"
    left += f" as {_kinds(dense, kinds)}" if dense else ""
    return f"raw, {title}: {left}, {right}"


def _kinds(names: Sequence[str], kinds: dict[str, str]) -> str:
    seen = {kinds[name] for name in names}
    return " and ".join(kind for kind in (INTEGER, FLOAT, TEXT, MOMENT, EMPTY) if kind in seen)


def _span(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"
