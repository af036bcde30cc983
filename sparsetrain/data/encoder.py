# SPDX-License-Identifier: Apache-2.0
"""`Encoder`: what was learnt from the training data, and how a table becomes a batch by it.

It is fitted once, on the training data alone, and saved with the model, so that raw rows can be
scored. Columns are matched by their position within a naming family: an encoder fitted on `I1..`,
`C1..` reads `int_0..`, `cat_0..` as well. Every id it gives is below its table's rows, and every
value finite, so batches made here are not checked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sparsetrain.errors import ConfigError, DataError

from .batch import Batch
from .convert import Array
from .encoder_state import State, read_state, write_state
from .fit import Sizes, given_sizes, learn_sizes, learn_vocabularies
from .inputs import open_source
from .labels import read_labels
from .place import Place
from .plain_ids import PlainIds
from .rows import Rows, joined
from .schema import Columns, find_columns
from .settings import Settings
from .source import BatchSource, Part
from .tables import as_table, table_source
from .vocabulary import Vocabulary


@dataclass(frozen=True, eq=False, repr=False)
class Encoder:
    """Turns tables into batches; make one with `Encoder.fit` or `Encoder.from_state`.

    Attributes
    ----------
    settings : Settings
    encoded : bool
        Whether it was fitted on already encoded data.
    dense_columns, columns : tuple of str
        Names of the dense and the category columns it was fitted on.
    categories : tuple of Vocabulary or PlainIds
        The rule of each category column.
    layout : str
        One line that says which columns were found.
    """

    settings: Settings
    encoded: bool
    dense_columns: tuple[str, ...]
    columns: tuple[str, ...]
    categories: tuple[Vocabulary | PlainIds, ...]
    layout: str

    def __repr__(self) -> str:
        features, rows = len(self.columns), sum(self.rows)
        return f"<Encoder: dense={self.num_dense}, features={features}, rows={rows}>"

    @property
    def rows(self) -> list[int]:
        """Rows of each category column's table; for raw data the two reserved ones included."""
        return [rule.rows for rule in self.categories]

    @property
    def num_dense(self) -> int:
        """Width of a batch's dense matrix, flags included."""
        return self.settings.dense(self.encoded).width(len(self.dense_columns))

    @classmethod
    def fit(
        cls,
        source: Any,
        *,
        min_count: int = 5,
        max_rows: int | None = None,
        dense_fill: float = 0.0,
        missing_flags: bool = False,
        nan: str = "error",
        treat_as: str = "auto",
        sizes: Sizes | None = None,
    ) -> Encoder:
        """Learn an encoder from the training data.

        Already encoded data (dense columns all floats, categories all integers) is used as it is:
        its tables have as many rows as the largest id says, or `sizes` states. `min_count` and
        `dense_fill` say nothing about it; `max_rows`, `missing_flags` and `nan="missing"` are
        refused with it.

        Parameters
        ----------
        source : anything `open_source` takes, except batches
        min_count : int
            Times a value must occur to get a row of its own; rarer ones share id 1.
        max_rows : int, optional
            Most rows of one table; see `vocabulary` for who shares then.
        dense_fill : float
            Stands for a missing dense value, in raw units, before the logarithm.
        missing_flags : bool
            Adds a 0/1 dense column for each dense column, which says what was missing.
        nan : {"error", "missing"}
            What a NaN in a raw column is. A null is always missing.
        treat_as : {"auto", "raw", "encoded"}
            Overrides the rule that recognises already encoded data.
        sizes : mapping from column to int, or sequence of int, optional
            Rows of each table of already encoded data; the data is then not read.

        Returns
        -------
        Encoder

        Raises
        ------
        DataError
            If the data cannot be read; see `open_source` and `find_columns`.
        ConfigError
            If a setting is out of range or does not go with the data.
        """
        settings = Settings(min_count, max_rows, dense_fill, missing_flags, nan, treat_as)
        opened = open_source(source)
        if isinstance(opened, BatchSource):
            raise DataError(f"{opened.name}: batches are encoded already; there is nothing to fit")
        first = find_columns(
            opened.parts[0].schema, opened.parts[0].place.name, label=False, treat_as=treat_as
        )
        blank = cls(settings, first.encoded, first.dense, first.categories, (), first.layout)
        parts = blank.bind(opened.parts, require_label=False)
        return cls(*blank._head, _learn(parts, settings, sizes), first.layout)

    @property
    def _head(self) -> tuple[Settings, bool, tuple[str, ...], tuple[str, ...]]:
        return self.settings, self.encoded, self.dense_columns, self.columns

    def find(self, schema: pa.Schema, where: str, *, require_label: bool = True) -> Columns:
        """Find this encoder's columns in a schema.

        Raises
        ------
        DataError
            If one is missing, or the data is encoded and the encoder for raw data, or the reverse.
        """
        found = find_columns(
            schema,
            where,
            label=require_label,
            num_dense=len(self.dense_columns),
            num_categories=len(self.columns),
            treat_as=self.settings.treat_as,
        )
        if found.encoded != self.encoded:
            words = ("raw", "already encoded")
            raise DataError(
                f"{where}: {found.layout}; the encoder was fitted on {words[self.encoded]} data, "
                "give the same kind (or fit with treat_as)"
            )
        return found

    def bind(
        self, parts: Sequence[Part], *, require_label: bool = True
    ) -> list[tuple[Part, Columns]]:
        """Pair every part with its columns; each file's schema is looked at once."""
        found: dict[str, Columns] = {}
        for part in parts:
            if part.place.name not in found:
                found[part.place.name] = self.find(
                    part.schema, part.place.name, require_label=require_label
                )
        return [(part, found[part.place.name]) for part in parts]

    def encode(self, table: Any, *, require_label: bool = True, where: str = "table") -> Batch:
        """Encode all rows of a table.

        Parameters
        ----------
        table : pyarrow Table or RecordBatch, pandas DataFrame, dict of arrays
        require_label : bool
            Whether the label column is read; without it the batch has none.
        where : str
            What to call the table in a message.

        Returns
        -------
        Batch

        Raises
        ------
        DataError
            If a column is missing or a value is bad; it names column and row.
        """
        arrow = as_table(table)
        source = None if arrow is None else table_source(arrow)
        if arrow is None or source is None:
            raise DataError(
                f"{where}: cannot encode a {type(table).__name__}; "
                "give an Arrow table, a DataFrame or a dict of arrays"
            )
        if not arrow.num_rows:
            raise DataError(f"{where}: no rows")
        columns = self.find(arrow.schema, where, require_label=require_label)
        pieces = (item for part in source.parts for item in part.pieces(columns.names))
        rows = [
            self.encode_piece(piece, columns, Place(where, None, place.first_row))
            for place, piece in pieces
        ]
        return joined(rows).batch()

    def encode_piece(self, piece: pa.RecordBatch, columns: Columns, place: Place) -> Rows:
        """Encode a record batch whose columns are known; the loader's inner step."""
        dense = self.settings.dense(self.encoded).matrix(
            [piece.column(name) for name in columns.dense], columns.dense, place
        )
        ids = np.empty((piece.num_rows, len(columns.categories)), dtype=np.int64)
        for index, (rule, name) in enumerate(zip(self.categories, columns.categories, strict=True)):
            ids[:, index] = rule.encode(piece.column(name), place.of(name))
        label = columns.label
        return Rows(
            dense, ids, read_labels(piece.column(label), place.of(label)) if label else None
        )

    def to_state(self) -> State:
        """Return all of it as (a manifest that JSON can hold, named numeric arrays)."""
        return write_state(*self._head, self.categories, self.layout)

    @classmethod
    def from_state(cls, manifest: Mapping[str, Any], arrays: Mapping[str, Array]) -> Encoder:
        """Rebuild an encoder, exactly, from what `to_state` gave.

        Raises
        ------
        CheckpointError
            If anything is missing or inconsistent; nothing in it is trusted.
        """
        return cls(*read_state(manifest, arrays))


def _learn(
    parts: list[tuple[Part, Columns]], settings: Settings, sizes: Sizes | None
) -> tuple[Vocabulary | PlainIds, ...]:
    columns = parts[0][1]
    if columns.encoded:
        settings.check_encoded()
        return (
            learn_sizes(parts, settings)
            if sizes is None
            else given_sizes(columns.categories, sizes)
        )
    if sizes is not None:
        raise ConfigError(
            "sizes is for already encoded data, this is raw; leave it out or use treat_as='encoded'"
        )
    return learn_vocabularies(parts, settings)
