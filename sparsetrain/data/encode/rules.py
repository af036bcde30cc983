# SPDX-License-Identifier: Apache-2.0
"""`Rules`: the columns of an encoder, with learned and given settings."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from sparsetrain.data.columns.category import Category, Settings
from sparsetrain.data.columns.dense import input_names
from sparsetrain.data.columns.plain import PlainIds, PlainNumber
from sparsetrain.data.columns.vocabulary import Pool, Vocabulary, pool
from sparsetrain.data.dense.kind import Dense
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
    dense : tuple of Dense
        The dense columns: numbers, then columns of further kinds.
    features : tuple of Category
        The category columns; if one had lists, batches have bags for all of them.
    layout : str
        Description of the columns found, in one line.
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
        _ = self.pooled  # now, before a vocabulary builds a pool of its own

    @property
    def fields(self) -> Fields:
        """The constructor's arguments."""
        return {own.name: getattr(self, own.name) for own in fields(self)}

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that decides a row's encoding."""
        return fingerprint_of(self.fields)

    @cached_property
    def dense_columns(self) -> tuple[str, ...]:
        """Names of the dense columns in the training data."""
        return tuple(column.name for column in self.dense)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the category columns in the training data."""
        return tuple(column.name for column in self.features)

    @cached_property
    def pooled(self) -> tuple[Pool, Array]:
        """The pool of all category columns of raw data, and each column's position in it."""
        known = [column.values for column in self.features]
        return pool([values for values in known if isinstance(values, Vocabulary)])

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of all feature columns."""
        return frozenset((*self.dense_columns, *self.columns))

    @cached_property
    def takes_values(self) -> bool:
        """Whether a row has one plain Python value per column, as in `few_rows`."""
        numbers = all(column.takes_values for column in self.dense)
        return numbers and not self.schema.made and all(c.takes_values for c in self.features)

    @property
    def rows(self) -> list[int]:
        """Row count of each category column's table, including the reserved rows of raw data."""
        return [column.rows for column in self.features]

    @property
    def is_blank(self) -> bool:
        """Whether nothing is learned yet."""
        return not all(self.rows)

    @property
    def id_type(self) -> pa.DataType:
        """Arrow type of a column of ids in converted data."""
        return pa.list_(pa.int32()) if self.has_bags else pa.int32()

    @cached_property
    def plain(self) -> Rules:
        """The rules for data that this encoder converted: columns are used unchanged."""
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

    @property
    def tables(self) -> dict[str, int]:
        """Rows of each table by the table's owner; a shared table appears once."""
        if self.is_blank:
            return {}
        return {column.name: column.rows for column in self.features if column.has_table}

    @property
    def share_embedding(self) -> dict[str, str]:
        """Map each column without its own table to the owner of its table."""
        return self.schema.share_embedding

    @property
    def known_tables(self) -> dict[str, str] | None:
        """The name of each category column's table, which is its owner's name.

        None if ids came already encoded, since they may share tables in any way.
        """
        known = self.reserves or self.share_embedding
        return {column.name: column.owner for column in self.features} if known else None

    @property
    def reserves(self) -> bool:
        """Whether each column has ids for missing and for rare values."""
        return all(column.reserves for column in self.features)

    @property
    def labels(self) -> dict[str, str | int]:
        """The name of each label and its kind in plain words, as in a schema."""
        return self.schema.all_labels.kinds

    @property
    def rare_shares(self) -> list[float | None]:
        """Share of rare values in the training data for each category column, if known."""
        return [column.values.rare_share for column in self.features]

    @property
    def model_arguments(self) -> dict[str, Any]:
        """Arguments of a `ClickModel` that depend on the batches."""
        weighted = any(column.rule.weights for column in self.features)
        bags = {"pooling": "sum", "weighted": weighted} if self.has_bags else {}
        return {
            "rows": self.rows,
            "names": self.columns,
            "num_dense": self.num_dense,
            "row_weights": self.schema.weights is not None,
            "share_embedding": self.share_embedding,
            "labels": self.labels,
            **bags,
            **self._of_numbers,
        }

    @property
    def _of_numbers(self) -> dict[str, Any]:
        """Arguments of numeric embeddings that differ from the defaults.

        Numbers are binned if all of them have boundaries that no category column uses.
        """
        cuts = {
            rule.source: rule.boundaries
            for rule in self.schema.derived.values()
            if rule.boundaries is not None
        }
        flags = not self.encoded and self.settings.missing_flags
        numbers = [column for column in self.dense if column.is_number]
        if not numbers or not (flags or cuts):
            return {}
        bins = [column.as_inputs(cuts.get(column.name, ())) for column in numbers]
        all_binned = {column.name for column in numbers} <= self.schema.bins.keys()
        kind = {"numbers": "binned"} if all_binned else {}
        return {"number_bins": bins, "missing_flags": flags, **kind}

    @cached_property
    def known_readers(self) -> dict[Any, Any]:
        """Cache of readers: (labels, weights) to read -> the latest schema and its reader."""
        return {}
