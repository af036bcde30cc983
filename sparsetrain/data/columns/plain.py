# SPDX-License-Identifier: Apache-2.0
"""Plain columns of already encoded data, used unchanged: ids of table rows, and floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sparsetrain.data.columns.counts import Counted
from sparsetrain.data.dense.kind import Dense, Law
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import as_plain, fill_nulls
from sparsetrain.data.values.arrow_values import NanRule, plain_floats
from sparsetrain.data.values.location import Location

# More rows than any table has. Criteo's hashes reach 2**32 (or are negative as int32), so they are
# not mistaken for ids.
LIMIT = 1 << 31

_RAW = "in already encoded data; if it is raw, use treat_as='raw'"
_HASHES = "if the column holds hashes rather than ids, use treat_as='raw'"


@dataclass(frozen=True)
class PlainIds:
    """The values of an already encoded column: ids, used unchanged.

    Attributes
    ----------
    rows : int
        Rows of the table; 0 until it is fitted.
    """

    first: ClassVar[int] = 0  # first row of a value: none are reserved
    rare_share: ClassVar[None] = None  # there is no id for rare values
    kind: ClassVar[None] = None  # no text is read
    nan: ClassVar[NanRule] = NanRule()

    rows: int = 0

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

    def count(self, array: Any, location: Location) -> Counted:
        """Return counts that hold only the array's largest id."""
        return Counted.of_numbers(plain_ids(array, location).max(keepdims=True, initial=0))

    def learnt(
        self, counts: Counted, kind: str | None, is_criteo: bool, *limits: int | None
    ) -> PlainIds:
        """Set the number of rows to the largest id plus one."""
        return self.extended(counts)

    def extended(self, counts: Counted, *limits: int | None) -> PlainIds:
        """Extend the table to the largest id; it never shrinks."""
        return PlainIds(max(self.rows, int(counts.numbers[0].max(initial=0)) + 1))


def plain_ids(array: Any, location: Location) -> Array:
    """Return already encoded ids (n,) int32; refuse missing, negative and very large ones."""
    array = as_plain(array)
    if array.null_count:
        row = array.is_null().index(True).as_py()
        raise location.error(f"the id is null {_RAW}", row)
    ids, _ = fill_nulls(array)
    if len(ids) and (ids.min() < 0 or ids.max() >= LIMIT):
        row = int(np.argmax((ids < 0) | (ids >= LIMIT)))
        raise location.error(f"id {ids[row]} is not in 0..{LIMIT - 1}; {_HASHES}", row)
    return ids.astype(np.int32)


@dataclass(frozen=True)
class PlainNumber(Dense):
    """An already encoded column of floats, used unchanged; none may be missing."""

    is_number: ClassVar[bool] = True

    @property
    def law(self) -> Law:
        """How an exported model computes its inputs."""
        return Law()

    @property
    def inputs(self) -> dict[int, str]:
        """The position of its input, and its name."""
        return {self.place: self.name}

    def read(self, array: Any, location: Location) -> tuple[Array, Array]:
        """Return numbers (n,) float32, and a mask of missing ones, which is all False."""
        values = plain_floats(array, location, _RAW)
        return values, np.zeros(len(values), bool)

    def write(self, array: Any, location: Location, dense: Array) -> None:
        """Write its input to a row of `dense` (F_dense, n) float32."""
        dense[self.place] = plain_floats(array, location, _RAW)
