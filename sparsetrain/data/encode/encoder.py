# SPDX-License-Identifier: Apache-2.0
"""`Encoder`: the public class that fits, extends, saves and applies encodings.

It is fitted once, on the training data only, and saved with the model, which can then score raw
rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparsetrain.data.encode.encoder_state import read_file, read_state
from sparsetrain.data.encode.learn import Sizes, extended, learn
from sparsetrain.data.encode.reader import encode
from sparsetrain.data.encode.rules import Rules, Settings
from sparsetrain.data.schema.numbers import Numbers
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.arrays import Array
from sparsetrain.errors import ConfigError
from sparsetrain.system.html import escape, table


class Encoder(Rules):
    """Converts tables to batches; make one with `Encoder.fit` or `Encoder.from_state`.

    Attributes
    ----------
    settings, dense, features, layout, schema
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
        numbers: Numbers = "scaled",
    ) -> Encoder:
        """Learn an encoder from the training data.

        Already encoded data (dense columns all floats, categories all integers) are used unchanged:
        tables get rows up to the largest id, or as many as `sizes` gives. `min_count` and
        `dense_fill` have no effect then; `max_rows`, `missing_flags` and `nan="missing"` are
        refused. Data that `convert` wrote use the encoder of the conversion; different settings are
        refused.

        Parameters
        ----------
        source : anything `open_source` takes, except batches
        min_count : int
            Number of occurrences from which a value gets its own row; rarer values share id 1.
        max_rows : int, optional
            Largest number of rows of a table; beyond it, values share rows, see `category`.
        dense_fill : float
            Replaces a missing dense value, in raw units, before the logarithm.
        missing_flags : bool
            Adds a 0/1 dense column for each dense column, which flags missing values.
        nan : {"error", "missing"}
            Meaning of a NaN in a raw column. A null is always missing.
        treat_as : {"auto", "raw", "encoded"}
            Overrides the detection of already encoded data.
        schema : Schema or path, optional
            Names the columns if they do not have Criteo's names; see `Schema`.
        weights : str, optional
            The column with a factor of 0 or more for each row's loss; for models with
            ``row_weights=True``. It must be in the training data; other data may lack it.
        sizes : mapping from column to int, or sequence of int, optional
            Rows of each table of already encoded data; the data are then not read.
        numbers : {"scaled", "quantiles", "logarithms", "piecewise", "binned", "best"}
            Use of numbers besides scaled inputs, see `with_buckets`. "piecewise" and "binned" set
            `missing_flags`; "best" leaves already encoded data as they are.

        Returns
        -------
        Encoder

        Raises
        ------
        DataError
            If the data cannot be read; see `open_source` and `find_columns`.
        ConfigError
            If a setting is out of range or does not apply to the data.
        """
        settings = Settings(min_count, max_rows, dense_fill, missing_flags, nan, treat_as)
        return cls(**learn(source, settings, Schema.read(schema, weights), sizes, numbers).fields)

    extended = extended  # methods that are defined where their work is done
    encode = encode

    def values(self, column: str) -> list[int | str | None]:
        """Return the value of each row of a column's table.

        Parameters
        ----------
        column : str
            One of `columns`.

        Returns
        -------
        list
            A value for each row. In a hexadecimal column, text is returned as its number. None for
            row 0 (missing), row 1 (rare) and, with `max_rows`, rows that several values share.

        Raises
        ------
        ConfigError
            If there is no such column, or the data were already encoded, so that ids are rows.
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
            and self.dense == other.dense
            and len(self.features) == len(other.features)
        )
        if not same:
            return False
        pairs = zip(self.features, other.features, strict=True)
        return all(column.extends(known) for column, known in pairs)

    @classmethod
    def from_state(cls, manifest: Mapping[str, Any], arrays: Mapping[str, Array]) -> Encoder:
        """Rebuild an encoder exactly from the result of `to_state`.

        Raises
        ------
        CheckpointError
            If anything is missing or inconsistent; every entry is checked.
        """
        return cls(**read_state(manifest, arrays))


def read_encoder(path: Path) -> Encoder:
    """Read the encoder that `convert` wrote.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged or of a different kind.
    """
    return Encoder(**read_file(path))
