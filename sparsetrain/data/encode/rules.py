# SPDX-License-Identifier: Apache-2.0
"""`Rules`: settings and learned rules of all columns, and their application to a record batch.

Every id produced is below its table's rows and every number finite, so results are not checked
again. Cost: one pass over each column, nothing per row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from sparsetrain.data.encode.bags import as_list_column, read_bags
from sparsetrain.data.encode.dense import EncodedDense, RawDense
from sparsetrain.data.encode.encoded_rows import Rows
from sparsetrain.data.encode.vocabulary import MIN_CAP, Vocabulary
from sparsetrain.data.ragged import Ragged
from sparsetrain.data.schema.columns import Columns, check_treat_as
from sparsetrain.data.schema.schema import ColumnRule, Schema
from sparsetrain.data.shared_tables import owners_of
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.labels import LabelKind, read_labels, read_row_weights
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.numeric import NanRule, fill_nulls
from sparsetrain.errors import ConfigError
from sparsetrain.system.argument_checks import require_int

# No table has so many rows; Criteo's hashes reach 2**32, or go below 0 when kept in an int32.
LIMIT = 1 << 31

_HASHES = "if the column holds hashes rather than ids, use treat_as='raw'"


@dataclass(frozen=True)
class PlainIds:
    """Ids used as they are.

    Attributes
    ----------
    rows : int
        Rows of the table.
    """

    rare_share: ClassVar[None] = None  # no id stands for rare values
    hexadecimal: ClassVar[None] = None  # no text is read

    rows: int

    def encode(self, array: Any, location: Location) -> Array:
        """Return the ids (n,) int32 of an integer Arrow array."""
        ids = plain_ids(array, location)
        if len(ids) and ids.max() >= self.rows:
            row = int(np.argmax(ids >= self.rows))
            raise location.error(
                f"id {ids[row]} is outside its table of {self.rows} rows; "
                "give the rows of each table as sizes when fitting the encoder",
                row,
            )
        return ids


def plain_ids(array: Any, location: Location) -> Array:
    """Return already encoded ids (n,) int32, none missing, negative or beyond any table."""
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        row = array.is_null().index(True).as_py()
        raise location.error(
            "the id is null in already encoded data; if it is raw, use treat_as='raw'", row
        )
    ids, _ = fill_nulls(array)
    if len(ids) and (ids.min() < 0 or ids.max() >= LIMIT):
        row = int(np.argmax((ids < 0) | (ids >= LIMIT)))
        raise location.error(f"id {ids[row]} is not in 0..{LIMIT - 1}; {_HASHES}", row)
    return ids.astype(np.int32)


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


CategoryRule = Vocabulary | PlainIds
CategoryRules = tuple[CategoryRule, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Rules:
    """Settings and learned rules of an encoder.

    Attributes
    ----------
    settings : Settings
    encoded : bool
        Whether it was fitted on already encoded data.
    dense_columns, columns : tuple of str
        Names of the dense and the category columns it was fitted on.
    categories : tuple of Vocabulary or PlainIds
        The rule of each category column; of columns that share a table one and the same.
    layout : str
        One line that says which columns were found.
    schema : Schema
        What the columns are called and what holds for one of them alone.
    bags : tuple of bool
        Which category columns held lists; if any did, batches hold bags for all of them.
    unsigned : tuple of str
        Category columns of uint64: a value from 2**63 on is the key of its bits, which is below 0.
    """

    settings: Settings
    encoded: bool
    dense_columns: tuple[str, ...]
    columns: tuple[str, ...]
    categories: CategoryRules
    layout: str
    schema: Schema
    bags: tuple[bool, ...]
    unsigned: tuple[str, ...] = ()

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
        return [rule.rows for rule in self.categories]

    @property
    def tables(self) -> dict[str, int]:
        """Rows of each table, once where columns share it, by the column that it is named after."""
        learnt = zip(self.columns, self.categories, strict=False)  # a blank encoder has no rules
        return {name: rule.rows for name, rule in learnt if name not in self.share_embedding}

    @property
    def rare_shares(self) -> list[float | None]:
        """For each category column, which share of its training values was rare, if known."""
        return [rule.rare_share for rule in self.categories]

    @property
    def num_dense(self) -> int:
        """Width of a batch's dense matrix, flags included."""
        return self.dense_rule(self.encoded).width(len(self.dense_columns))

    def dense_rule(self, encoded: bool) -> RawDense | EncodedDense:
        """Return the rule for dense columns of raw or already encoded data."""
        return EncodedDense() if encoded else self.raw_dense

    @cached_property
    def raw_dense(self) -> RawDense:
        """The rule for raw dense columns."""
        return replace(self.settings.raw_dense, linear=self.schema.linear)

    @property
    def has_bags(self) -> bool:
        """Whether batches hold `Ragged` bags rather than one id per feature."""
        return any(self.bags)

    @property
    def has_weights(self) -> bool:
        """Whether the bags have per-sample weights."""
        return any(self.schema.rule(name).weights for name in self.columns)

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
        factors = columns.row_weights
        labels = self._read_labels(piece, columns, location) if columns.labels else None
        weights = (
            read_row_weights(piece.column(factors), location.of_column(factors))
            if factors
            else None
        )
        ids = (
            _read_bags(self, piece, columns, location)
            if self.has_bags
            else _read_ids(self, piece, columns, location)
        )
        return Rows(dense, ids, labels, weights)

    def _read_labels(self, piece: pa.RecordBatch, columns: Columns, location: Location) -> Array:
        """Return the labels (n,), or (n, T) with NaN where one of several is missing."""
        kinds = self.schema.label_kinds.values()
        several = len(kinds) > 1
        read = [
            read_labels(piece.column(name), location.of_column(name), kind, several)
            for name, kind in zip(columns.labels, kinds, strict=True)
        ]
        return np.stack(read, axis=1) if several else read[0]


def _category_rules(rules: Rules, columns: Columns) -> Iterator[tuple[int, str, CategoryRule]]:
    """Yield number, name and rule of each category column; converted data has plain ids."""
    for index, (name, rule) in enumerate(zip(columns.categories, rules.categories, strict=True)):
        yield index, name, (PlainIds(rule.rows) if columns.encoded else rule)


def _read_ids(rules: Rules, piece: pa.RecordBatch, columns: Columns, location: Location) -> Array:
    ids = np.empty((len(columns.categories), piece.num_rows), dtype=np.int32)
    for index, name, rule in _category_rules(rules, columns):
        ids[index] = rule.encode(piece.column(name), location.of_column(name))
    return ids.T


def _read_bags(
    rules: Rules,
    piece: pa.RecordBatch,
    columns: Columns,
    location: Location,
) -> tuple[Ragged, ...]:
    bags, nan = [], rules.settings.nan_rule
    for index, name, rule in _category_rules(rules, columns):
        factors = columns.weights_of(index)
        array = piece.column(name)
        read = read_bags(
            as_list_column(array, nan) if rules.bags[index] else array,
            None if factors is None else as_list_column(piece.column(factors), NanRule("error")),
            rules.schema.rule(rules.columns[index]),
            rule.encode,
            location.of_column(name),
        )
        bags.append(read.weighted() if rules.has_weights else read)
    return tuple(bags)
