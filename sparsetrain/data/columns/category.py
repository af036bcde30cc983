# SPDX-License-Identifier: Apache-2.0
"""`Category`: a column of values with rows in a table; it maps a value to an id.

A new column has only a name and a rule. It learns its values from counts, grows from newer counts,
and encodes an array as ids, or as bags of ids. Columns that share a table share their values.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from sparsetrain.data.columns.bags import as_list_column, read_bags, read_factors
from sparsetrain.data.columns.counts import Counted, of_kind
from sparsetrain.data.columns.plain import PlainIds
from sparsetrain.data.columns.vocabulary import MIN_CAP, Vocabulary
from sparsetrain.data.ragged import Ragged
from sparsetrain.data.schema.columns import AUTO, Columns, check_treat_as
from sparsetrain.data.schema.schema import ColumnRule, Schema
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import is_bag, is_unsigned, read_values
from sparsetrain.data.values.arrow_values import NanRule
from sparsetrain.data.values.location import Location
from sparsetrain.errors import ConfigError, DataWarning
from sparsetrain.parsing.identity import TEXT, Texts
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
                    f"{name} is for raw data, but these data are already encoded; "
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


Values = Vocabulary | PlainIds
_MANY = 100  # warn from this many values without a row


@dataclass(frozen=True, eq=False)
class Category:
    """A category column.

    Attributes
    ----------
    name : str
    owner : str
        Name of the column that owns its table: its own name, unless it shares a table.
    rule : ColumnRule
        Its settings in the schema.
    is_bag : bool
        Whether it held lists when it was fitted.
    is_unsigned : bool
        Whether it was uint64; a value from 2**63 on then has a negative key with the same bits.
    values : Vocabulary or PlainIds
        Its values and their rows; empty until it is fitted.
    """

    name: str
    owner: str
    values: Values
    rule: ColumnRule = field(default_factory=ColumnRule)
    is_bag: bool = False
    is_unsigned: bool = False

    @property
    def has_table(self) -> bool:
        """Whether it has its own table."""
        return self.owner == self.name

    @property
    def shares(self) -> dict[str, str]:
        """Its entry `share_embedding` in a schema; empty if it has its own table."""
        return {} if self.has_table else {"share_embedding": self.owner}

    @property
    def reserves(self) -> bool:
        """Whether it reserves ids for missing and rare values."""
        return self.values.first > 0

    @property
    def takes_values(self) -> bool:
        """Whether a plain Python value maps to one id, as `encode.few_rows` needs."""
        return self.reserves and not self.is_bag

    @property
    def rows(self) -> int:
        """Rows of its table, including the two reserved rows of raw data."""
        return self.values.rows

    def value_of_rows(self) -> list[int | str | None]:
        """Return the value of each row of the table; see `Encoder.values`."""
        if not isinstance(self.values, Vocabulary):
            raise ConfigError(
                f"{self.name}: the encoder was fitted on already encoded data, so the values of "
                "this column are unknown; an id is the number of its row"
            )
        found = self.values.values()
        return [self.shown(v) if isinstance(v, int) else v for v in found]

    def shown(self, number: int) -> int:
        """Return the value of a numeric key."""
        return number % 2**64 if self.is_unsigned else number

    def count(self, array: Any, factors: Any | None, location: Location) -> Counted:
        """Count its values, in lists or not; check `factors`, the weights, as `encode` does."""
        if not is_bag(array.type):
            return self.values.count(array, location)
        counted, lengths = read_values(array, self.values.count, location)
        if factors is not None:
            read_factors(factors, lengths, self.rule, location)
        return counted

    def learnt(self, counts: Counted, settings: Settings, is_criteo: bool) -> Values:
        """Give ids to its table's values; their kind is the rule's, or detected from the values."""
        limits = settings.limits(self.rule)
        found = self.values.learnt(counts, self.rule.kind, is_criteo, *limits)
        self._warn_of_text(found.kind, counts)
        return found

    def grown(self, counts: Counted, settings: Settings) -> Values:
        """Append rows for values without a row."""
        self._warn_of_text(self.values.kind, counts)
        return self.values.extended(counts, *settings.limits(self.rule))

    def _warn_of_text(self, kind: str | None, counts: Counted) -> None:
        """Warn if a column of numbers holds only text that is no number, and so gets no rows."""
        if kind in (TEXT, None) or len(counts.numbers[0]) or not len(counts.texts[0]):
            return
        assert kind is not None
        known = of_kind(counts, kind)
        if known.foreign >= _MANY and not len(known.numbers):
            warnings.warn(
                f"column {self.name}: none of its {known.foreign:,} values is a number of the "
                f"column's kind, {kind!r}, so none gets a row; learn it with kind = 'text'",
                DataWarning,
                stacklevel=5,
            )

    def extends(self, other: Category) -> bool:
        """Return whether this is the column `other`, and keeps the rows of its values."""
        if (self.name, self.is_bag) != (other.name, other.is_bag):
            return False
        before, now = other.values, self.values
        if now.rows < before.rows or type(before) is not type(now):
            return False
        if isinstance(before, PlainIds) or isinstance(now, PlainIds):
            return True
        same_numbers = np.array_equal(now.find_numbers(before.numbers), before.number_ids)
        same_texts = np.array_equal(now.find_texts(Texts.of(before.texts)), before.text_ids)
        return now.kind == before.kind and same_numbers and same_texts

    def encode(self, array: Any, factors: Any | None, location: Location) -> Array | Ragged:
        """Return the ids (n,) int32 of an array, or the bags of lists; `factors` are their weights.

        A column that had lists when it was fitted may have plain values, or only nulls, in other
        data.
        """
        if not (self.is_bag or is_bag(array.type)):
            return self.values.encode(array, location)
        return read_bags(
            as_list_column(array, self.values.nan) if self.is_bag else array,
            None if factors is None else as_list_column(factors, NanRule("error")),
            self.rule,
            self.values.encode,
            location,
        )


def blank_categories(
    found: Columns, data: pa.Schema, schema: Schema, blank: Values
) -> tuple[Category, ...]:
    """Return the category columns found in a file, with the rules of a schema."""
    types = {name: data.field(name).type for name in found.categories}
    tables = schema.tables_of(found.categories)
    return tuple(
        Category(name, table, blank, schema.rule(name), is_bag(type_), is_unsigned(type_))
        for (name, type_), table in zip(types.items(), tables, strict=True)
    )


def with_values(
    features: Sequence[Category], learned: Mapping[str, Values]
) -> tuple[Category, ...]:
    """Return the columns with their tables' values; `learned` has these by the table's owner."""
    return tuple(replace(column, values=learned[column.owner]) for column in features)
