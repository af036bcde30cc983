# SPDX-License-Identifier: Apache-2.0
"""Bad rows: found one by one by the readers that refuse them, so the two can never differ.

Each reader is asked again for the rows before and behind the one that it refused: it may look for
one thing in all rows before it looks for the next. That is slow for many bad rows, and a file of
mostly bad rows is not what its user thinks it is: beyond half of a piece it stops.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from sparsetrain.data.conversion.strict import Read, StrictReader
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.schema.columns import Columns
from sparsetrain.data.values.place import Place, RowError

POLICIES = ("error", "skip", "quarantine")


class Fault(NamedTuple):
    """A bad row.

    Attributes
    ----------
    row : int
        In its piece; -1 for a line that is no row.
    number : int
        Row or line of the file.
    column : str or None
    reason : str
        The whole message.
    """

    row: int
    number: int
    column: str | None
    reason: str


def find_faults(
    piece: pa.RecordBatch, columns: Columns, place: Place, encoder: Encoder
) -> list[Fault]:
    """Return the bad rows of a piece, each once, in order.

    Raises
    ------
    DataError
        If more than half of the rows are bad.
    """
    faults: dict[int, Fault] = {}
    for name, read in StrictReader(columns, encoder).each():
        for fault in _in_column(piece, name, read, place.of(name)):
            faults.setdefault(fault.row, fault)
            if 2 * len(faults) > piece.num_rows > 1:
                raise place.error(
                    f"more than half of {piece.num_rows} rows are bad, which no rule about bad "
                    f"rows is meant for; one of them: {fault.reason}"
                )
    return [faults[row] for row in sorted(faults)]


def _in_column(piece: pa.RecordBatch, name: str, read: Read, place: Place) -> Iterator[Fault]:
    unread = [(0, piece.num_rows)]
    while unread:
        first, end = unread.pop()
        try:
            if first < end:
                read(piece.slice(first, end - first), place.moved(first))
        except RowError as error:
            if error.row is None:
                raise
            row = first + error.row
            yield Fault(row, place.number(row), name, str(error))
            unread += [(row + 1, end), (first, row)]
