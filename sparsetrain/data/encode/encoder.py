# SPDX-License-Identifier: Apache-2.0
"""`Encoder`: the public class that fits, extends, saves and applies encodings.

It is fitted once, on the training data alone, and saved with the model, so that raw rows can be
scored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparsetrain.data.batch import Batch
from sparsetrain.data.columns.category import Values, blank_categories, with_values
from sparsetrain.data.columns.dense import dense_columns
from sparsetrain.data.columns.plain import PlainIds
from sparsetrain.data.columns.settings import Settings
from sparsetrain.data.columns.vocabulary import Vocabulary
from sparsetrain.data.encode.encoded_rows import concat_rows
from sparsetrain.data.encode.encoder_state import (
    ENCODER_FILE,
    State,
    fingerprint_of,
    read_rules,
    read_state,
    write_state,
)
from sparsetrain.data.encode.learn import Sizes, extend, learn
from sparsetrain.data.encode.quantiles import read_boundaries
from sparsetrain.data.encode.reader import Reader, match
from sparsetrain.data.encode.rules import Rules
from sparsetrain.data.read.blank_columns import with_blanks
from sparsetrain.data.read.derived_columns import with_derived
from sparsetrain.data.read.open_source import open_rows
from sparsetrain.data.read.source import Part, encoder_fingerprint
from sparsetrain.data.read.tables import as_table, names_in, table_parts
from sparsetrain.data.schema.columns import (
    check_row_weights,
    check_same_row_weights,
    find_columns,
    require_row_weights,
)
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.shared_tables import owners_of
from sparsetrain.data.values.arrays import Array
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.system.argument_checks import require_int
from sparsetrain.system.html import escape, table


class Encoder(Rules):
    """Turns tables into batches; make one with `Encoder.fit` or `Encoder.from_state`.

    Attributes
    ----------
    settings, encoded, dense, features, layout, schema
        As in `Rules`.
    """

    def __repr__(self) -> str:
        features, rows = len(self.columns), sum(self.tables.values())
        return f"<Encoder: dense={self.num_dense}, features={features}, rows={rows}>"

    def _repr_html_(self) -> str:
        learned = () if self.is_blank else self.features
        rows = [(c.name, c.values.kind or "ids", c.rows, c.owner) for c in learned]
        head = ("category", "kind", "rows", "table")
        return f"<b>{escape(repr(self))}</b>\n{table(rows, head)}"

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that decides a row's encoding."""
        return fingerprint_of(self)

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
        schema: Schema | str | Path | None = None,
        weights: str | None = None,
        sizes: Sizes | None = None,
    ) -> Encoder:
        """Learn an encoder from the training data.

        Already encoded data (dense columns all floats, categories all integers) is used as it is:
        its tables have as many rows as the largest id says, or `sizes` states. `min_count` and
        `dense_fill` say nothing about it; `max_rows`, `missing_flags` and `nan="missing"` are
        refused with it. Data that `convert` wrote brings the encoder it was written with; settings
        that differ from that encoder's are refused.

        Parameters
        ----------
        source : anything `open_source` takes, except batches
        min_count : int
            Times a value must occur to get a row of its own; rarer ones share id 1.
        max_rows : int, optional
            Most rows of one table; see `vocabulary` for who shares then.
        dense_fill : float
            Replaces a missing dense value, in raw units, before the logarithm.
        missing_flags : bool
            Adds a 0/1 dense column for each dense column, which flags missing values.
        nan : {"error", "missing"}
            Meaning of a NaN in a raw column. A null is always missing.
        treat_as : {"auto", "raw", "encoded"}
            Overrides the rule that recognises already encoded data.
        schema : Schema or path, optional
            Names the columns where they are not Criteo's; see `Schema`.
        weights : str, optional
            The column with a factor of 0 or more for each row's loss; for models with
            ``row_weights=True``. It must be in the training data, and is read wherever it is.
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
        schema = Schema.read(schema, weights)
        opened = open_rows(source, schema)
        known = cls.read_converted(opened.parts[0])
        if known is not None:
            known._check_asked(settings, schema)
        for part in opened.parts if schema.weights else ():
            names = names_in(source) or part.schema.names  # not only the columns that can matter
            require_row_weights(names, schema, part.location)
        if known is not None:
            known.bind(opened.parts, require_label=False)
            return known
        if schema.quantiles:
            schema = read_boundaries(schema, opened.parts)
        blank = cls.blank(opened.parts[0], settings, schema)
        parts = blank.bind(opened.parts, require_label=False)
        parts[0][1].warn_of_floor(parts[0][0])
        return replace(blank, features=learn(blank.features, parts, settings, schema, sizes))

    def _check_asked(self, settings: Settings, schema: Schema) -> None:
        """Refuse settings that differ from the data's conversion."""
        settings.check_converted(self.settings)
        check_row_weights(schema, self.schema, "the data are converted", "convert the raw data")
        asked = schema.share_embedding
        if asked and asked != self.share_embedding:
            raise ConfigError(
                f"share_embedding is {asked}, but the data are converted with "
                f"{self.share_embedding or 'a table for each column'}; leave it out, or convert "
                "the raw data again"
            )

    @classmethod
    def read_converted(cls, part: Part) -> Encoder | None:
        """Return the encoder in the folder of a converted file; None for other data."""
        path = Path(part.location.name).with_name(ENCODER_FILE)
        return read_encoder(path) if part.is_converted and path.is_file() else None

    @classmethod
    def blank(cls, part: Part, settings: Settings, schema: Schema) -> Encoder:
        """Return an encoder that knows the columns of a part and has learned nothing yet."""
        if schema.derived:
            part = with_derived(part, schema.derived)
        first = find_columns(
            part.schema,
            part.location.name,
            label=False,
            treat_as=settings.treat_as,
            described=schema,
        )
        if schema.share_embedding:
            owners_of(first.categories, schema.share_embedding)  # refused before anything is read
        values = PlainIds() if first.encoded else Vocabulary.blank(settings.nan_rule)
        features = blank_categories(first, part.schema, schema, values)
        dense = dense_columns(first.dense, first.encoded, settings, schema)
        made = cls(settings, first.encoded, dense, features, first.layout, schema)
        made._matched[False, None] = part.schema, Reader(made, first)
        return made

    def with_values(self, learned: Mapping[str, Values]) -> Encoder:
        """Return this encoder with the values of each table, by the column it is named after."""
        return replace(self, features=with_values(self.features, learned))

    def extended(self, source: Any, *, min_count: int | None = None) -> Encoder:
        """Return an encoder that knows the values of newer data too.

        Every value keeps its row; new ones get the rows behind, the most frequent first. For
        `Trainer.extended`, which makes the tables as long. Of already encoded data, a table gets as
        many rows as the largest id says.

        Parameters
        ----------
        source : anything `open_source` takes, except batches and converted files
        min_count : int, optional
            Times a new value must occur in `source` to get a row; by default as this encoder was
            fitted or last extended with. A column's rule in the schema wins. Under `max_rows`,
            values without room stay with the rare ones.

        Raises
        ------
        DataError
            If the data cannot be read, or are encoded by `convert`.
        ConfigError
            If `min_count` is not a whole number of 1 or more.
        """
        settings = self.settings
        if min_count is not None:
            settings = replace(settings, min_count=require_int("min_count", min_count))
        opened = open_rows(source, self.schema)
        for part in opened.parts:
            if part.is_converted:
                raise DataError(
                    f"{part.location.name}: it was converted, which left new values out; give the "
                    "raw data"
                )
        parts = self.bind(opened.parts, require_label=False)
        return replace(self, settings=settings, features=extend(self.features, parts, settings))

    def values(self, column: str) -> list[int | str | None]:
        """Return the value of each row of a column's table.

        Parameters
        ----------
        column : str
            One of `columns`.

        Returns
        -------
        list
            As long as the table. In a hexadecimal column, text is the number that it spells. None
            for row 0 (missing), row 1 (rare) and, under `max_rows`, rows that several values share.

        Raises
        ------
        ConfigError
            If there is no such column, or the data were encoded already: ids are rows then.
        """
        found = next((known for known in self.features if known.name == column), None)
        if found is None:
            names = ", ".join(self.columns)
            raise ConfigError(f"no category column {column!r}; there are {names}")
        return found.value_of_rows()

    def extends(self, other: Encoder) -> bool:
        """Return whether this encodes like `other`, except for values that `other` lacks."""
        same = (
            replace(self.schema, weights=None) == replace(other.schema, weights=None)
            and (self.dense, self.encoded) == (other.dense, other.encoded)
            and len(self.features) == len(other.features)
        )
        if not same:
            return False
        pairs = zip(self.features, other.features, strict=True)
        return all(column.extends(known) for column, known in pairs)

    def bind(
        self,
        parts: Sequence[Part],
        *,
        require_label: bool = True,
        read_weights: bool = True,
        optional: Collection[str] = (),
    ) -> list[tuple[Part, Reader]]:
        """Pair every part with a reader of it; weights of rows are read only with their labels.

        Each file's schema is looked at once; converted files have their derived columns already.
        Absent `optional` columns are missing values.

        Raises
        ------
        DataError
            If one is missing, or the data is encoded and the encoder for raw data, or the reverse.
        """
        weights = self.schema.weights if require_label and read_weights else None
        readers: dict[str, Reader] = {}
        bound = []
        for part in parts:
            where = part.location.name
            if optional:
                blank = 0 if self.encoded or part.is_converted else None
                part = with_blanks(part, optional, blank)
            if self.schema.derived and not part.is_converted:
                part = with_derived(part, self.schema.derived)
            if where not in readers:
                readers[where] = self._reader(part, require_label, weights)
            bound.append((part, readers[where]))
        if len(readers) > 1:
            check_same_row_weights({where: reader.found for where, reader in readers.items()})
        return bound

    def _reader(self, part: Part, require_label: bool, weights: str | None) -> Reader:
        """Return a reader of a part; the last schema's is cached."""
        known = self._matched.get((require_label, weights))
        if known is None or not known[0].equals(part.schema, check_metadata=True):
            fingerprint = encoder_fingerprint(part.schema)
            if fingerprint is not None and fingerprint != self.fingerprint:
                raise DataError(
                    f"{part.location.name}: converted with a different encoder than this one; "
                    "convert the raw data with this one (convert --encoder), or train on this data"
                )
            known = part.schema, match(self, part, require_label, weights)
            self._matched[require_label, weights] = known
        return known[1]

    @cached_property
    def _matched(self) -> dict[tuple[bool, str | None], tuple[pa.Schema, Reader]]:
        """Whether labels and which weights were read -> the last schema, and its reader."""
        return {}

    def encode(self, table: Any, *, require_label: bool = True, where: str = "table") -> Batch:
        """Encode all rows of a table.

        Parameters
        ----------
        table : pyarrow Table or RecordBatch, pandas DataFrame, dict of arrays, list of rows
        require_label : bool
            Whether the label column is read; without it the batch has none.
        where : str
            Name of the table in messages.

        Returns
        -------
        Batch

        Raises
        ------
        DataError
            If a column is missing or a value is bad; it names column and row.
        """
        if isinstance(table, (list, tuple)) and not table:
            raise DataError(f"{where}: no rows")
        arrow = as_table(table, self.schema)
        if arrow is None:
            raise DataError(
                f"{where}: cannot encode a {type(table).__name__}; "
                "give an Arrow table, a DataFrame, a dict of arrays or a list of rows"
            )
        if not arrow.num_rows:
            raise DataError(f"{where}: no rows")
        bound = self.bind([*table_parts(arrow, where)], require_label=require_label)
        rows = [
            reader.encode(piece, location)
            for part, reader in bound
            for location, piece in part.pieces(reader.names)
        ]
        return concat_rows(rows).batch()

    def to_state(self) -> State:
        """Return all of it as (a manifest that JSON can hold, named numeric arrays)."""
        return write_state(self)

    @classmethod
    def from_state(cls, manifest: Mapping[str, Any], arrays: Mapping[str, Array]) -> Encoder:
        """Rebuild an encoder exactly from the result of `to_state`.

        Raises
        ------
        CheckpointError
            If anything is missing or inconsistent; nothing in it is trusted.
        """
        return cls(**read_state(manifest, arrays).fields)


def read_encoder(path: Path) -> Encoder:
    """Read the encoder that `convert` wrote.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged or of a different kind.
    """
    return Encoder(**read_rules(path).fields)
