# SPDX-License-Identifier: Apache-2.0
"""`Category`: a column whose values have rows of a table, from a value to an id.

A blank one knows its name and its rules; one that has learned turns an array into ids or bags of
them. Columns that share a table share their values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from sparsetrain.data.columns.bags import as_list_column, read_bags
from sparsetrain.data.columns.plain import PlainIds
from sparsetrain.data.columns.vocabulary import Vocabulary
from sparsetrain.data.ragged import Ragged
from sparsetrain.data.schema.columns import Columns
from sparsetrain.data.schema.schema import ColumnRule, Schema
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import is_unsigned
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.numeric import NanRule
from sparsetrain.errors import ConfigError
from sparsetrain.parsing.identity import Texts

Values = Vocabulary | PlainIds


@dataclass(frozen=True, eq=False)
class Category:
    """A category column.

    Attributes
    ----------
    name : str
    owner : str
        The column after which its table is named: itself, unless it shares another's.
    rule : ColumnRule
        Its own settings.
    is_bag : bool
        Whether it held lists where it was fitted.
    is_unsigned : bool
        Whether it was uint64: a value from 2**63 on is the key of its bits, which is below 0.
    values : Vocabulary or PlainIds or None
        Its values and their rows; None before they are learned.
    """

    name: str
    owner: str
    rule: ColumnRule = field(default_factory=ColumnRule)
    is_bag: bool = False
    is_unsigned: bool = False
    values: Values | None = None

    @property
    def has_table(self) -> bool:
        """Whether the table that it looks up is its own."""
        return self.owner == self.name

    @property
    def known(self) -> Values:
        """Its values, which were learned."""
        assert self.values is not None, f"{self.name} has learned nothing yet"
        return self.values

    @property
    def rows(self) -> int:
        """Rows of its table; for raw data the two reserved ones included."""
        return self.known.rows

    def value_of_rows(self) -> list[int | str | None]:
        """Return the value that each row of the table stands for; see `Encoder.values`."""
        if not isinstance(self.known, Vocabulary):
            raise ConfigError(
                f"{self.name}: it was encoded already, so an id is the number of its row"
            )
        found = self.known.values()
        return [self.shown(v) if isinstance(v, int) else v for v in found]

    def shown(self, number: int) -> int:
        """Return the value of a key that is a number."""
        return number % 2**64 if self.is_unsigned else number

    def extends(self, other: Category) -> bool:
        """Return whether this is the same column, and its values keep the rows they had there."""
        if (self.name, self.is_bag) != (other.name, other.is_bag):
            return False
        before, now = other.known, self.known
        if now.rows < before.rows or type(before) is not type(now):
            return False
        if isinstance(before, PlainIds) or isinstance(now, PlainIds):
            return True
        same_numbers = np.array_equal(now.find_numbers(before.numbers), before.number_ids)
        same_texts = np.array_equal(now.find_texts(Texts.of(before.texts)), before.text_ids)
        return now.kind == before.kind and same_numbers and same_texts

    def ids(self, array: Any, location: Location) -> Array:
        """Return the ids (n,) int32 of an array."""
        return self.known.encode(array, location)

    def bags(self, array: Any, factors: Any | None, nan: NanRule, location: Location) -> Ragged:
        """Return the bags of an array of lists, `factors` their weights, or of single values."""
        return read_bags(
            as_list_column(array, nan) if self.is_bag else array,
            None if factors is None else as_list_column(factors, NanRule("error")),
            self.rule,
            self.ids,
            location,
        )


def blank_categories(found: Columns, data: pa.Schema, schema: Schema) -> tuple[Category, ...]:
    """Return the category columns that were found in a file, by the rules of a schema."""
    bags = found.bags or (False,) * len(found.categories)
    return tuple(
        Category(
            name,
            schema.share_embedding.get(name, name),
            schema.rule(name),
            is_bag,
            is_unsigned(data.field(name).type),
        )
        for name, is_bag in zip(found.categories, bags, strict=True)
    )


def with_values(
    features: Sequence[Category], learned: Mapping[str, Values]
) -> tuple[Category, ...]:
    """Return the columns with the values of the tables that they look up, by their owners."""
    return tuple(replace(column, values=learned[column.owner]) for column in features)


def found_in(features: Sequence[Category], columns: Columns) -> Iterator[tuple[Category, str]]:
    """Yield each column, and its name in a file."""
    return zip(features, columns.categories, strict=True)
