# SPDX-License-Identifier: Apache-2.0
"""`Rules`: the columns of an encoder, with their learnt and given settings."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from sparsetrain.data.columns.category import Category
from sparsetrain.data.columns.dense import Dense, input_names
from sparsetrain.data.columns.plain import PlainIds, PlainNumber
from sparsetrain.data.columns.settings import Settings
from sparsetrain.data.columns.vocabulary import Pool, Vocabulary, pool
from sparsetrain.data.encode.encoder_state import Fields, fingerprint_of
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.arrays import Array


@dataclass(frozen=True, eq=False, repr=False)
class Rules:
    """Settings and columns of an encoder.

    Attributes
    ----------
    settings : Settings
    encoded : bool
        Whether it was fitted on already encoded data.
    dense : tuple of Number, PlainNumber or Vector
        The dense columns, of numbers and then of vectors.
    features : tuple of Category
        The category columns; if any held lists, batches hold bags for all of them.
    layout : str
        One line that says which columns were found.
    schema : Schema
        Names and individual settings of the columns.
    """

    settings: Settings
    encoded: bool
    dense: tuple[Dense, ...]
    features: tuple[Category, ...]
    layout: str
    schema: Schema

    def __post_init__(self) -> None:
        _ = self.pooled  # before a column makes tables of its own

    @property
    def fields(self) -> Fields:
        """The arguments by which this was made."""
        return {own.name: getattr(self, own.name) for own in fields(self)}

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that decides a row's encoding."""
        return fingerprint_of(self.fields)

    @cached_property
    def dense_columns(self) -> tuple[str, ...]:
        """Names of the dense columns it was fitted on."""
        return tuple(column.name for column in self.dense)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the category columns it was fitted on."""
        return tuple(column.name for column in self.features)

    @cached_property
    def pooled(self) -> tuple[Pool, Array]:
        """The pool of all category columns of raw data, and the number of each in it."""
        known = [column.values for column in self.features]
        return pool([values for values in known if isinstance(values, Vocabulary)])

    @property
    def rows(self) -> list[int]:
        """Rows of each category column's table; for raw data the two reserved ones included."""
        return [column.rows for column in self.features]

    @property
    def is_blank(self) -> bool:
        """Whether nothing was learned yet."""
        return not all(self.rows)

    @cached_property
    def plain(self) -> Rules:
        """Itself, of data that it converted, or the like: columns are used as they are."""
        if self.encoded:
            return self
        features = tuple(replace(each, values=PlainIds(each.rows)) for each in self.features)
        dense = tuple(PlainNumber(name, at) for at, name in enumerate(input_names(self.dense)))
        return Rules(self.settings, True, dense, features, self.layout, self.schema)

    @cached_property
    def num_dense(self) -> int:
        """Width of a batch's dense matrix, flags and vectors included."""
        return sum(len(column.inputs) for column in self.dense)

    @cached_property
    def has_bags(self) -> bool:
        """Whether batches hold `Ragged` bags rather than one id per feature."""
        return any(column.is_bag for column in self.features)

    @cached_property
    def known_readers(self) -> dict[Any, Any]:
        """Which labels and weights were read -> the last schema of data, and its reader."""
        return {}
