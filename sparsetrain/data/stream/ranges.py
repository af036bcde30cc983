# SPDX-License-Identifier: Apache-2.0
"""Ids checked against their tables by the row groups' statistics, before any row is read.

Parquet keeps the least and greatest value of every column of a row group in the footer. Where it
does, an id beyond its table is found at once rather than hours into the training.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparsetrain.data.encode.bags import read_values
from sparsetrain.data.encode.plain_ids import PlainIds
from sparsetrain.data.read.source import Part
from sparsetrain.data.schema.columns import Columns


def check_ranges(parts: Sequence[tuple[Part, Columns]], rows: Sequence[int]) -> None:
    """Look at every part of encoded data.

    Raises
    ------
    DataError
        If an id is negative or not below its table's rows; it names file, row and column.
    """
    for part, columns in parts:
        if columns.encoded:
            for name, limit in zip(columns.categories, rows, strict=True):
                _check(part, name, limit)


def _check(part: Part, name: str, limit: int) -> None:
    known = part.range_of(name)
    if known is None or all(0 <= id_ < limit for id_ in known):
        return
    for place, piece in part.pieces([name]):  # which row it is, for the message
        read_values(piece.column(name), PlainIds(limit).encode, place.of(name))
    raise part.place.of(name).error("its statistics do not fit its data; write the file again")
