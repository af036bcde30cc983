# SPDX-License-Identifier: Apache-2.0
"""`Rules`: the columns of an encoder, with learned and given settings; they describe themselves.

The description, a manifest for JSON and plain arrays, is saved; `encoder_state` reads it back. The
shares of rare values, and whether a column was unsigned, affect no id, so fingerprints omit them.
Arrays hold the values of all columns one after another; values of a shared table are stored once.
`number_starts` and `text_starts` (F + 1,) have the position at which each column begins. Texts are
UTF-8 bytes, split by `text_offsets`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from sparsetrain.data.columns.category import (
    MIN_CAP,
    Category,
    Limits,
    Pool,
    Values,
    Vocabulary,
)
from sparsetrain.data.columns.counts import Counted
from sparsetrain.data.columns.dense import Number, input_names
from sparsetrain.data.columns.plain import PlainIds, PlainNumber
from sparsetrain.data.dense.kind import Dense
from sparsetrain.data.schema.column_rule import ColumnRule
from sparsetrain.data.schema.columns import AUTO, check_treat_as
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_values import NanRule, texts_of
from sparsetrain.errors import ConfigError
from sparsetrain.system.argument_checks import require_int

State = tuple[dict[str, Any], dict[str, Array]]
FORMAT, VERSION = "sparsetrain.encoder", 4
Own = TypeVar("Own", bound="Rules")


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

    def limits(self, rule: ColumnRule) -> Limits:
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


@dataclass(frozen=True, eq=False, repr=False)
class Rules:
    """Settings and columns of an encoder.

    Attributes
    ----------
    settings : Settings
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
    dense: tuple[Dense, ...]
    features: tuple[Category, ...]
    layout: str
    schema: Schema

    def __post_init__(self) -> None:
        _ = self.pooled  # now, before a vocabulary builds a pool of its own

    @property
    def fields(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {own.name: getattr(self, own.name) for own in fields(self)}

    @property
    def manifest(self) -> dict[str, Any]:
        """Everything that decides a row's encoding except the columns' values, for JSON."""
        columns = ((c.name, c.rows, c.values.kind, c.is_bag) for c in self.features)
        return {
            "format": FORMAT,
            "version": VERSION,
            "settings": asdict(self.settings),
            "dense": [c.name for c in self.dense if c.name not in self.schema.inputs],
            "columns": [
                {"name": name, "rows": rows, "kind": kind, "lists": lists}
                for name, rows, kind, lists in columns
            ],
            "layout": self.layout,
            "schema": self.schema.to_dict(),
        }

    def to_state(self) -> State:
        """Return the encoder as a manifest for JSON, and numeric arrays by name."""
        manifest = self.manifest
        for described, column in zip(manifest["columns"], self.features, strict=True):
            described["rare_share"] = column.values.rare_share
            described["unsigned"] = column.is_unsigned
        return manifest, _arrays(self.features)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that decides a row's encoding."""
        arrays = _arrays(self.features)
        digest = hashlib.sha256(json.dumps(self.manifest, sort_keys=True).encode())
        for name in sorted(arrays):
            digest.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
        return digest.hexdigest()[:32]

    def learn(self, column: Category, counts: Counted) -> Values:
        """Return the values, with rows, that a column's table learns from their counts."""
        limits = self.settings.limits(column.rule)
        return column.learnt(counts, limits, self.schema.categories is None)

    def with_values(self: Own, learnt: Mapping[str, Values]) -> Own:
        """Return an encoder whose tables have these values, given by the tables' owners."""
        features = tuple(replace(column, values=learnt[column.owner]) for column in self.features)
        return replace(self, features=features)

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
        each = [c.values for c in self.features if isinstance(c.values, Vocabulary)]
        positions = {values: at for at, values in enumerate(dict.fromkeys(each))}  # by identity
        made = Pool(tuple(values.entries for values in positions))
        for values, position in positions.items():
            values.__dict__["place"] = made, position
        return made, np.array([positions[values] for values in each], np.int32)

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
        if not self.reserves:
            return self
        features = tuple(replace(each, values=PlainIds(each.rows)) for each in self.features)
        dense = tuple(PlainNumber(name, at) for at, name in enumerate(input_names(self.dense)))
        return Rules(self.settings, dense, features, self.layout, self.schema)

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

    @cached_property
    def reserves(self) -> bool:
        """Whether columns have ids for missing and rare values; encoded training data have none."""
        return all(column.reserves for column in self.features)

    @property
    def encoded(self) -> bool:
        """Whether it was fitted on already encoded data."""
        return not self.reserves

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
        flags = self.reserves and self.settings.missing_flags
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


def dense_columns(
    names: Sequence[str], encoded: bool, settings: Settings, schema: Schema
) -> tuple[Dense, ...]:
    """Return the number columns with these names, then the schema's columns of other kinds."""
    numbers = [name for name in names if name not in schema.inputs]
    found: list[Dense] = []
    for place, name in enumerate(numbers):
        if encoded:
            found.append(PlainNumber(name, place))
            continue
        flag = len(numbers) + place if settings.missing_flags else None
        law, fill = schema.linear.get(name), float(settings.dense_fill)
        found.append(Number(name, place, flag, law, fill, settings.nan_rule))
    place = sum(len(column.inputs) for column in found)
    for column in schema.inputs.values():
        found.append(replace(column, place=place))
        place += len(column.inputs)
    return tuple(found)


def _arrays(features: Sequence[Category]) -> dict[str, Array]:
    """Return the values of all tables, a shared table's once; already encoded ids have none."""
    tables = [
        column.values if column.has_table else Vocabulary.blank(column.values.nan)
        for column in features
        if isinstance(column.values, Vocabulary)
    ]
    if not tables:
        return {}
    texts = texts_of(pa.concat_arrays([each.texts for each in tables]))
    return {
        "numbers": np.concatenate([each.numbers for each in tables]),
        "number_ids": np.concatenate([each.number_ids for each in tables]),
        "number_starts": _starts([len(each.numbers) for each in tables]),
        "texts": texts.data,
        "text_offsets": texts.offsets.astype(np.int64),
        "text_ids": np.concatenate([each.text_ids for each in tables]),
        "text_starts": _starts([len(each.texts) for each in tables]),
    }


def _starts(lengths: list[int]) -> Array:
    return np.cumsum([0, *lengths], dtype=np.int64)
