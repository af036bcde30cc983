# SPDX-License-Identifier: Apache-2.0
"""Settings of single columns, and of text files, in a `Schema`."""

from __future__ import annotations

from dataclasses import dataclass

from sparsetrain.system.argument_checks import as_float

KEEP = ("first", "last")


@dataclass(frozen=True)
class ColumnRule:
    """Settings of one category column; None means the encoder's setting.

    Attributes
    ----------
    min_count, max_rows : int or None
        Override the encoder's settings of the same names.
    max_length : int or None
        For a list column: the most ids to keep per row.
    keep : {"first", "last"}
        Which ids of a longer list to keep.
    weights : str or None
        For a list column: the parallel list column with a factor for each id.
    share_embedding : str or None
        The column that owns the table which this column uses: equal values have the same row. The
        owner's `min_count`, `max_rows` and `kind` apply.
    kind : {"whole", "hexadecimal", "text"}, optional
        Which values are equal. "whole": 12, "12" and "012"; "hexadecimal": also text of 8 hex
        digits and its number; "text": only "12" and 12. By default the training values decide, see
        docs/data.md.
    """

    min_count: int | None = None
    max_rows: int | None = None
    max_length: int | None = None
    keep: str = "first"
    weights: str | None = None
    share_embedding: str | None = None
    kind: str | None = None


@dataclass(frozen=True)
class Linear:
    """A dense column that becomes `(x - center) / scale` instead of a logarithm.

    Attributes
    ----------
    center : float
        Subtracted from each value. It also replaces missing values, which therefore become 0.
    scale : float
        Divisor; not 0.
    """

    center: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("center", "scale"):  # JSON can store Python's floats, not NumPy's
            object.__setattr__(self, name, as_float(getattr(self, name)))


@dataclass(frozen=True)
class TextFormat:
    """Format of text files; None infers it from the file's name and first line.

    Attributes
    ----------
    delimiter : str or None
        The character between fields.
    header : bool or None
        Whether the first line holds the column names.
    names : tuple of str or None
        The column names, for files without a header line.
    null : tuple of str
        Texts that mark a missing value, besides the empty text.
    """

    delimiter: str | None = None
    header: bool | None = None
    names: tuple[str, ...] | None = None
    null: tuple[str, ...] = ()
