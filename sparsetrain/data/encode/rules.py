# SPDX-License-Identifier: Apache-2.0
"""`Rules`: the columns of an encoder, and their application to a record batch.

Every id produced is below its table's rows and every number finite, so results are not checked
again. Cost: one pass over each column, nothing per row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from sparsetrain.data.columns.category import Category, found_in
from sparsetrain.data.columns.number import EncodedDense, RawDense
from sparsetrain.data.columns.vector import read_vectors
from sparsetrain.data.columns.vocabulary import MIN_CAP
from sparsetrain.data.encode.encoded_rows import Rows
from sparsetrain.data.ragged import Ragged
from sparsetrain.data.schema.columns import Columns, check_treat_as
from sparsetrain.data.schema.schema import ColumnRule, Schema
from sparsetrain.data.shared_tables import owners_of
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.labels import LabelKind, read_labels, read_row_weights
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.numeric import NanRule
from sparsetrain.errors import ConfigError
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
    dense_fill: int | float = 0.0  # read as it was written, for the fingerprint
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
        """Treatment of NaN in raw columns."""
        return NanRule(self.nan)

    @property
    def raw_dense(self) -> RawDense:
        """The rule for raw dense columns, none of them linear."""
        return RawDense(float(self.dense_fill), self.missing_flags, self.nan_rule)

    def limits(self, rule: ColumnRule) -> tuple[int, int | None]:
        """Return `min_count` and `max_rows` of a column that has this rule of its own."""
        return rule.min_count or self.min_count, rule.max_rows or self.max_rows

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


@dataclass(frozen=True, eq=False, repr=False)
class Rules:
    """Settings and columns of an encoder.

    Attributes
    ----------
    settings : Settings
    encoded : bool
        Whether it was fitted on already encoded data.
    dense_columns : tuple of str
        Names of the dense columns it was fitted on.
    features : tuple of Category
        The category columns; if any held lists, batches hold bags for all of them.
    layout : str
        One line that says which columns were found.
    schema : Schema
        What the columns are called and what holds for one of them alone.
    """

    settings: Settings
    encoded: bool
    dense_columns: tuple[str, ...]
    features: tuple[Category, ...]
    layout: str
    schema: Schema

    @property
    def fields(self) -> dict[str, Any]:
        """The arguments by which this was made."""
        return {own.name: getattr(self, own.name) for own in fields(self)}

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the category columns it was fitted on."""
        return tuple(column.name for column in self.features)

    @cached_property
    def lookup(self) -> Any:
        """The hash tables of all category columns of raw data."""
        return self._places[0][0]

    @cached_property
    def asked(self) -> Array:
        """The number in `lookup` of each category column's values, (F,) int32."""
        return np.array([number for _, number in self._places], np.int32)

    @property
    def _places(self) -> list[tuple[Any, int]]:
        known: Any = [column.known for column in self.features]
        return [values.place for values in known]

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of all columns of features."""
        return frozenset((*self.dense_columns, *self.columns))

    @property
    def owners(self) -> tuple[int, ...]:
        """For each category column, the position of the one whose table it looks up."""
        return owners_of(self.columns, self.share_embedding)

    @property
    def share_embedding(self) -> dict[str, str]:
        """From each column without a table of its own to the one whose table it looks up."""
        return self.schema.share_embedding

    @property
    def labels(self) -> dict[str, LabelKind]:
        """The name of each label and its kind: "binary", "real" or a number of classes."""
        return self.schema.label_kinds

    @property
    def rows(self) -> list[int]:
        """Rows of each category column's table; for raw data the two reserved ones included."""
        return [column.rows for column in self.features]

    @property
    def tables(self) -> dict[str, int]:
        """Rows of each table, once where columns share it, by the column that it is named after."""
        if self.is_blank:
            return {}
        return {column.name: column.rows for column in self.features if column.has_table}

    @property
    def is_blank(self) -> bool:
        """Whether nothing was learned yet."""
        return any(column.values is None for column in self.features)

    @property
    def rare_shares(self) -> list[float | None]:
        """For each category column, which share of its training values was rare, if known."""
        return [column.known.rare_share for column in self.features]

    @property
    def num_dense(self) -> int:
        """Width of a batch's dense matrix, flags and vectors included."""
        own = self.dense_rule(self.encoded).width(len(self.dense_columns))
        return own + sum(self.schema.vectors.values())

    def dense_rule(self, encoded: bool) -> RawDense | EncodedDense:
        """Return the rule for dense columns of raw or already encoded data."""
        return EncodedDense() if encoded else self.raw_dense

    @cached_property
    def raw_dense(self) -> RawDense:
        """The rule for raw dense columns."""
        return replace(self.settings.raw_dense, linear=self.schema.linear)

    @cached_property
    def has_bags(self) -> bool:
        """Whether batches hold `Ragged` bags rather than one id per feature."""
        return any(column.is_bag for column in self.features)

    @cached_property
    def has_weights(self) -> bool:
        """Whether the bags have per-sample weights."""
        return any(column.rule.weights for column in self.features)

    @property
    def model_arguments(self) -> dict[str, Any]:
        """What the constructor of a `ClickModel` has to know of the batches."""
        bags = {"pooling": "sum", "weighted": self.has_weights} if self.has_bags else {}
        return {
            "rows": self.rows,
            "names": self.columns,
            "num_dense": self.num_dense,
            "row_weights": self.schema.weights is not None,
            "share_embedding": self.share_embedding,
            "labels": self.labels,
            **bags,
        }

    def encode_piece(
        self,
        piece: pa.RecordBatch,
        columns: Columns,
        location: Location,
    ) -> Rows:
        """Encode a record batch whose columns are known; the loader's inner step."""
        dense = self.dense_rule(columns.encoded).matrix(
            [piece.column(name) for name in columns.dense], columns.dense, location, piece.num_rows
        )
        if columns.vectors:
            dense = np.hstack([dense, *self._read_vectors(piece, columns, location)])
        factors = columns.row_weights
        labels = self._read_labels(piece, columns, location) if columns.labels else None
        weights = (
            read_row_weights(piece.column(factors), location.of_column(factors))
            if factors
            else None
        )
        ids = (self._read_bags if self.has_bags else self._read_ids)(piece, columns, location)
        return Rows(dense, ids, labels, weights)

    def _read_vectors(
        self, piece: pa.RecordBatch, columns: Columns, location: Location
    ) -> Iterator[Array]:
        for name in columns.vectors:
            width, here = self.schema.vectors[name], location.of_column(name)
            yield read_vectors(piece.column(name), width, here)[0]

    def _read_labels(self, piece: pa.RecordBatch, columns: Columns, location: Location) -> Array:
        """Return the labels (n,), or (n, T) with NaN where one of several is missing."""
        kinds = self.schema.label_kinds.values()
        several = len(kinds) > 1
        read = [
            read_labels(piece.column(name), location.of_column(name), kind, several)
            for name, kind in zip(columns.labels, kinds, strict=True)
        ]
        return np.stack(read, axis=1) if several else read[0]

    def _read_ids(self, piece: pa.RecordBatch, columns: Columns, location: Location) -> Array:
        ids = np.empty((len(self.features), piece.num_rows), dtype=np.int32)
        for number, (column, name) in enumerate(found_in(self.features, columns)):
            array, here = piece.column(name), location.of_column(name)
            ids[number] = column.ids(array, here, encoded=columns.encoded)
        return ids.T

    def _read_bags(
        self, piece: pa.RecordBatch, columns: Columns, location: Location
    ) -> tuple[Ragged, ...]:
        bags = []
        for number, (column, name) in enumerate(found_in(self.features, columns)):
            factors = columns.weights_of(number)
            read = column.bags(
                piece.column(name),
                None if factors is None else piece.column(factors),
                self.settings.nan_rule,
                location.of_column(name),
                columns.encoded,
            )
            bags.append(read.weighted() if self.has_weights else read)
        return tuple(bags)
