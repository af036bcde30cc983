# SPDX-License-Identifier: Apache-2.0
"""`Reader`: an encoder's columns in data of one schema, and the encoding of rows.

Columns match by their position within a naming family: an encoder fitted on `I1..`, `C1..` also
reads `int_0..`, `cat_0..`. Converted files carry the fingerprint of their encoder and hold its
result for the raw rows, so a model trained on them also scores raw rows; any different encoder
refuses them. Data, schema and encoder must agree on the column of row weights.

Every id is below its table's rows and every number finite, so results are not checked again. Cost:
one pass over each column, nothing per row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice, product
from typing import Any

import numpy as np
import pyarrow as pa

from sparsetrain.data.batch import Batch, Rows, concat_rows, joined_ids
from sparsetrain.data.columns.category import Category
from sparsetrain.data.columns.dense import FLAG, Number, input_names
from sparsetrain.data.dense.kind import Dense
from sparsetrain.data.encode.rules import Rules
from sparsetrain.data.read.added_columns import with_constants, with_derived
from sparsetrain.data.read.source import Part, Source, encoder_fingerprint
from sparsetrain.data.read.tables import as_table, table_parts
from sparsetrain.data.rows import BatchSource
from sparsetrain.data.schema.columns import (
    Columns,
    check_same_row_weights,
    describe_labels,
    find_columns,
    find_labels,
    require_columns,
    with_row_weights,
)
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.arrays import Array, Weight
from sparsetrain.data.values.arrow_types import is_bag
from sparsetrain.data.values.arrow_values import read_of_rows
from sparsetrain.data.values.location import Location
from sparsetrain.errors import ConfigError, DataError

Read = Callable[[Any, Location], Array]  # (array (n,), location) -> (n,) float32


@dataclass(frozen=True, eq=False)
class Reader:
    """The columns of an encoder, with their names in data of one schema.

    Attributes
    ----------
    rules : Rules
        Encodes the data; see `of`.
    found : Columns
    """

    rules: Rules
    found: Columns

    @classmethod
    def of(cls, rules: Rules, found: Columns) -> Reader:
        """Return a reader; data that the encoder converted are read unchanged."""
        return cls(rules.plain if found.encoded else rules, found)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all columns to read."""
        return self.found.names

    @property
    def is_plain(self) -> bool:
        """Whether ids and numbers are used unchanged."""
        return self.found.encoded

    @cached_property
    def labels(self) -> list[tuple[str, Read]]:
        """Names of the labels to read, and their readers; with several labels, NaN is accepted."""
        labels = self.rules.schema.all_labels.values()
        pairs = zip(self.found.labels, labels, strict=True) if self.found.labels else ()
        several = len(labels) > 1
        return [(n, partial(read_of_rows, kind=label, missing=several)) for n, label in pairs]

    @property
    def weights(self) -> list[tuple[str, Read]]:
        """Name of the column with row weights, if any, and its reader."""
        name = self.found.row_weights
        return [(name, partial(read_of_rows, kind=Weight()))] if name else []

    @cached_property
    def dense(self) -> list[tuple[str, Dense]]:
        """Each dense column's name in the data, and the column."""
        return [*zip(self.found.dense, self.rules.dense, strict=True)]

    @cached_property
    def categories(self) -> list[tuple[str, str | None, Category]]:
        """Each category column's name in the data, its weights' column, and the column."""
        found = self.found
        factors = found.weights or (None,) * len(found.categories)
        return [*zip(found.categories, factors, self.rules.features, strict=True)]

    def columns(
        self, of_category: Callable[..., Any] = Category.encode
    ) -> list[tuple[tuple[str | None, ...], Callable[..., Any]]]:
        """Return each column's array names, and a function that reads these arrays and a location.

        Dense columns are read as numbers, categories by `of_category`, a method of `Category`.
        """
        single = [*self.labels, *self.weights, *((name, own.checked) for name, own in self.dense)]
        categories = (
            ((name, factors), partial(of_category, column))
            for name, factors, column in self.categories
        )
        return [*(((name,), read) for name, read in single), *categories]

    def encode(self, piece: pa.RecordBatch, location: Location) -> Rows:
        """Encode a record batch; the loader's inner step."""

        def read(columns: Sequence[tuple[str, Read]]) -> list[Array]:
            return [each(piece.column(name), location.of_column(name)) for name, each in columns]

        dense = np.empty((self.rules.num_dense, piece.num_rows), np.float32)  # by column
        for name, column in self.dense:
            column.write(piece.column(name), location.of_column(name), dense)
        labels, weights = read(self.labels), read(self.weights)
        ids = [
            column.encode(
                piece.column(name), piece.column(f) if f else None, location.of_column(name)
            )
            for name, f, column in self.categories
        ]
        return Rows(
            dense.T,
            joined_ids(ids),
            (np.stack(labels, axis=1) if len(labels) > 1 else labels[0]) if labels else None,
            weights[0] if weights else None,
        )

    def check_dense(self, part: Part) -> None:
        """Refuse "already encoded" floats that look like raw counts: large whole numbers."""
        names = self.found.dense
        if not self.is_plain or not self.rules.settings.guesses or not names:
            return
        for location, piece in islice(part.pieces(names), 1):
            columns = [c.read(piece.column(n), location.of_column(n))[0] for n, c in self.dense]
            dense = np.array(columns)
            top = dense.max()
            if top > _LARGEST_LOG and (dense == np.trunc(dense)).all():
                raise location.error(
                    f"the dense columns are floats but hold whole numbers up to {top:.0f}; use "
                    "treat_as='raw' if they are counts, or treat_as='encoded' if the model "
                    "takes them unchanged"
                )

    def warn_of_floor(self, part: Part) -> None:
        """Warn of dense columns if many numbers of the first piece become equal in the logarithm.

        A stream is not checked, since it can be read only once. Bad rows and values are ignored
        here: the next reader refuses them or leaves them out.
        """
        logarithms = [(n, c) for n, c in self.dense if isinstance(c, Number) and c.linear is None]
        if not logarithms or part.is_stream:
            return
        pieces = []
        with suppress(DataError):
            names = [name for name, _ in logarithms]
            pieces = [*islice(part.pieces(names, self.found.categories), 1)]
        for (name, column), (location, piece) in product(logarithms, pieces):
            with suppress(DataError):
                column.warn_of_floor(piece.column(name), location.of_column(name))


_LARGEST_LOG = 50.0  # the logarithm of any 64-bit number is far smaller


def encode(rules: Rules, table: Any, *, require_label: bool = True, where: str = "table") -> Batch:
    """Encode all rows of a table.

    Parameters
    ----------
    table : pyarrow Table or RecordBatch, pandas DataFrame, dict of arrays, list of rows
    require_label : bool
        Whether to read the label column; otherwise the batch has no labels.
    where : str
        Name of the table in messages.

    Returns
    -------
    Batch

    Raises
    ------
    DataError
        If a column is missing or a value is bad; the message names the column and the row.
    """
    if isinstance(table, (list, tuple)) and not table:
        raise DataError(f"{where}: no rows")
    arrow = as_table(table, rules.schema)
    if arrow is None:
        raise DataError(
            f"{where}: cannot encode a {type(table).__name__}; "
            "give an Arrow table, a DataFrame, a dict of arrays or a list of rows"
        )
    if not arrow.num_rows:
        raise DataError(f"{where}: no rows")
    bound = bind(rules, [*table_parts(arrow, where)], require_label=require_label)
    rows = [
        reader.encode(piece, location)
        for part, reader in bound
        for location, piece in part.pieces(reader.names)
    ]
    return Batch._of(concat_rows(rows))


def bind(
    rules: Rules,
    parts: Sequence[Part],
    *,
    require_label: bool = True,
    read_weights: bool = True,
    optional: Collection[str] = (),
) -> list[tuple[Part, Reader]]:
    """Pair every part with its reader; row weights are read only together with labels.

    Each schema is examined once; converted files already have their derived columns. Columns in
    `optional` that a part lacks are added, with missing values (0 in encoded data).

    Raises
    ------
    DataError
        If a column is missing, or raw data meet an encoder of encoded data, or the reverse.
    """
    weights = rules.schema.weights if require_label and read_weights else None
    readers: dict[str, Reader] = {}
    bound = []
    for part in parts:
        where = part.location.name
        if optional:
            blank = pa.scalar(None if rules.reserves and not part.is_converted else 0)
            part = with_constants(part, dict.fromkeys(optional, blank))
        if rules.schema.made and not part.is_converted:
            part = with_derived(part, rules.schema.made)
        if where not in readers:
            readers[where] = _reader(rules, part, require_label, weights)
        bound.append((part, readers[where]))
    if len(readers) > 1:
        check_same_row_weights({where: reader.found for where, reader in readers.items()})
    return bound


def _reader(rules: Rules, part: Part, require_label: bool, weights: str | None) -> Reader:
    """Return a reader of a part; the reader of the previous schema is cached."""
    known = rules.known_readers.get((require_label, weights))
    if known is None or not known[0].equals(part.schema, check_metadata=True):
        where, fingerprint = part.location.name, encoder_fingerprint(part.schema)
        if fingerprint is not None and fingerprint != rules.fingerprint:
            raise DataError(
                f"{where}: converted with a different encoder than this one; convert the raw data "
                "with this one (convert --encoder), or train on this data"
            )
        find = _columns if fingerprint is None else _converted_columns
        found = find(rules, part.schema, where, require_label)
        found = with_row_weights(found, weights, part.schema, where)
        known = part.schema, Reader.of(rules, found)
        rules.known_readers[require_label, weights] = known
    reader: Reader = known[1]
    return reader


LABEL = "label"
WEIGHTS = "_weights"  # suffix of the name of a list column's weights


def label_names(schema: Schema) -> tuple[str, ...]:
    """Return the names of the label columns of converted data."""
    return tuple(schema.labels) if len(schema.labels) > 1 else (LABEL,)


def labels_in(schema: Schema, part: Part) -> tuple[str, ...]:
    """Return the names of the labels that a part should have."""
    return label_names(schema) if part.is_converted else tuple(schema.all_labels.kinds)


def require_labels(source: Source | BatchSource, schema: Schema | None = None) -> None:
    """Check, without reading rows, that every raw file has the label columns.

    The labels of converted data are checked later, by their encoder.

    Raises
    ------
    DataError
        If a label column is missing.
    """
    if isinstance(source, BatchSource):
        return
    for name, part in {part.location.name: part for part in source.parts}.items():
        if not part.is_converted:
            find_labels(part.schema.names, schema, Location(name))


def weight_names(rules: Rules) -> tuple[str | None, ...]:
    """Return, for each category column of converted data, the column of its weights."""
    return tuple(f"{c.name}{WEIGHTS}" if c.rule.weights else None for c in rules.features)


def check_converted_names(rules: Rules) -> None:
    """Refuse columns that would have equal names in converted data."""
    more = (*weight_names(rules), rules.schema.weights, *label_names(rules.schema))
    names = Counter([*input_names(rules.dense), *rules.columns, *(name for name in more if name)])
    for name, count in names.items():
        if count > 1 and name == LABEL:
            raise ConfigError(
                f"{name!r} is a feature here, and the label's name in converted data: rename the "
                "column, or train on the raw data"
            )
        if count > 1:
            raise ConfigError(
                f"converted data would have two columns {name!r}: {FLAG} stands for the flags of a "
                f"dense column, {WEIGHTS} for the weights of a list; rename one"
            )


def _converted_columns(rules: Rules, schema: pa.Schema, where: str, require_label: bool) -> Columns:
    """Return the columns of a converted file."""
    labels = label_names(rules.schema) if require_label else ()
    require_columns(schema.names, labels, "label", Location(where))
    dense, weights = input_names(rules.dense), weight_names(rules)
    there = {*schema.names}
    for name in (*dense, *rules.columns, *(name for name in weights if name)):
        if name not in there:
            raise Location(where, column=name).error(
                "the column is missing; convert the data again"
            )
    layout = f"converted: {len(dense)} dense, {len(rules.columns)} ids, used as they are"
    layout += describe_labels(labels)
    return Columns(dense, rules.columns, labels, True, layout, weights=weights)


def _columns(rules: Rules, schema: pa.Schema, where: str, require_label: bool) -> Columns:
    """Return the columns of data that were not converted."""
    found = find_columns(
        schema,
        where,
        label=require_label,
        num_dense=len(rules.dense_columns),
        num_categories=len(rules.features),
        treat_as=rules.settings.treat_as,
        described=rules.schema,
    )
    if found.encoded == rules.reserves:
        words = ("already encoded", "raw")
        raise DataError(
            f"{where}: {found.layout}; the encoder was fitted on {words[rules.reserves]} data, "
            "give the same kind (or fit with treat_as)"
        )
    for column, name in zip(rules.features, found.categories, strict=True):
        if is_bag(schema.field(name).type) and not column.is_bag:
            raise Location(where, column=name).error(
                "holds lists, but single values in the training data; give single values, or fit "
                "the encoder on lists"
            )
    return found
