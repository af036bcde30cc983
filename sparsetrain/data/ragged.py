# SPDX-License-Identifier: Apache-2.0
"""`Ragged`: bags of ids of one feature, on the host, with functions that cut, join and check them.

The convention is `torch.nn.EmbeddingBag`'s with `include_last_offset=True`: bag `b` holds
`ids[offsets[b]:offsets[b + 1]]`. `Ragged` itself checks nothing; `Batch` does, since it knows the
number of rows and the feature. Ids are int32 while rows are encoded, and int64 in a batch.
Gathering bags allocates an index array with one entry per id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparsetrain.data.values.arrays import (
    Array,
    as_array,
    as_readonly,
    first_negative,
    to_ids,
    to_weights,
)
from sparsetrain.errors import DataError


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Ragged:
    """One feature's bags, any number of ids in each.

    Parameters
    ----------
    ids : array-like (N,) of integers
        The ids of all bags, concatenated.
    offsets : array-like (B + 1,) of integers
        Position in `ids` at which each bag begins, then N; the first is 0.
    weights : array-like (N,) float32, optional
        A factor for each looked-up row.

    Examples
    --------
    >>> Ragged([7, 8, 9], [0, 2, 2, 3])  # bags {7, 8}, {} and {9}
    <Ragged: bags=3, ids=3>
    """

    ids: Array
    offsets: Array
    weights: Array | None

    def __init__(
        self, ids: npt.ArrayLike, offsets: npt.ArrayLike, weights: npt.ArrayLike | None = None
    ) -> None:
        object.__setattr__(self, "ids", as_array(ids, "ids"))
        object.__setattr__(self, "offsets", as_array(offsets, "offsets"))
        object.__setattr__(
            self, "weights", None if weights is None else as_array(weights, "weights")
        )

    def __repr__(self) -> str:
        return f"<Ragged: bags={len(self)}, ids={len(self.ids)}>"

    def __len__(self) -> int:
        """Return the number of bags, B."""
        return max(0, len(self.offsets) - 1)

    def row_of(self, position: int) -> int:
        """Return the bag that `ids[position]` belongs to."""
        return int(np.searchsorted(self.offsets, position, side="right")) - 1

    def rows(self) -> Array:
        """Return the bag that each id belongs to, (N,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def places(self) -> Array:
        """Return each id's position within its bag, (N,) from 0."""
        return np.arange(len(self.ids)) - np.repeat(self.offsets[:-1], np.diff(self.offsets))

    def take(self, index: Array | slice) -> Ragged:
        """Return the bags at `index`; a slice with step 1 is a view."""
        if not isinstance(index, slice):
            return self.between(self.offsets[:-1][index], self.offsets[1:][index])
        first, stop, _ = index.indices(len(self))
        offsets = self.offsets[first : max(first, stop) + 1]
        own = slice(offsets[0], offsets[-1])
        weights = None if self.weights is None else self.weights[own]
        return Ragged(self.ids[own], offsets - offsets[0], weights)

    def between(self, starts: Array, stops: Array) -> Ragged:
        """Return new bags: bag b has ``ids[starts[b] : stops[b]]``."""
        lengths = stops - starts
        offsets = offsets_of(lengths)
        kept = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        weights = None if self.weights is None else self.weights[kept]
        return Ragged(self.ids[kept], offsets, weights)

    def first(self, count: int) -> Ragged:
        """Return the first `count` ids of each bag; a shorter bag is unchanged."""
        return self._cut(self.offsets[:-1], np.minimum(self.offsets[:-1] + count, self.offsets[1:]))

    def last(self, count: int) -> Ragged:
        """Return the last `count` ids of each bag; a shorter bag is unchanged."""
        return self._cut(np.maximum(self.offsets[1:] - count, self.offsets[:-1]), self.offsets[1:])

    def without_first(self) -> Ragged:
        """Return each bag without its first id; an empty bag stays empty."""
        return self._cut(np.minimum(self.offsets[:-1] + 1, self.offsets[1:]), self.offsets[1:])

    def without_last(self) -> Ragged:
        """Return each bag without its last id; an empty bag stays empty."""
        return self._cut(self.offsets[:-1], np.maximum(self.offsets[1:] - 1, self.offsets[:-1]))

    def where(self, chosen: npt.ArrayLike) -> Ragged:
        """Return the positions, within each bag, of the ids for which `chosen` (N,) is true."""
        found = np.flatnonzero(chosen)
        return Ragged(self.places()[found], np.searchsorted(found, self.offsets))

    def at(self, places: Ragged) -> Ragged:
        """Return the ids at these positions within their bags, as returned by `where`."""
        first = np.repeat(self.offsets[:-1], np.diff(places.offsets))
        return Ragged(self.ids[first + places.ids], places.offsets)

    def append(self, ids: npt.ArrayLike) -> Ragged:
        """Return the bags with an id appended to each: (B,) ids, or one for all bags."""
        longer = np.insert(self.ids, self.offsets[1:], ids)
        return Ragged(longer, self.offsets + np.arange(len(self.offsets)))

    def weighted(self) -> Ragged:
        """Return the bags with weights; by default each id has weight 1."""
        ones = np.ones(len(self.ids), np.float32)
        return self if self.weights is not None else Ragged(self.ids, self.offsets, ones)

    def changes(self) -> Array:
        """Return whether each bag differs from the previous one, (B,) bool; True for the first."""
        lengths = np.diff(self.offsets)
        arrays = [self.ids] if self.weights is None else [self.ids, self.weights]
        if len(lengths) and (lengths == lengths[0]).all():  # ten times as fast
            return np.any([changes(each.reshape(len(self), lengths[0])) for each in arrays], axis=0)
        rows, differ = self.rows(), changes(lengths)
        # For each id, the id at the same position in the previous bag, if that has equal length.
        before = np.arange(len(rows)) - lengths[rows]
        for bits in map(_as_bits, arrays):
            differ[rows[bits != bits[before]]] = True
        return differ

    def as_lists(self, values: Any) -> pa.Array:
        """Return a list column with these bags' lengths and values (N,) instead of ids."""
        return pa.LargeListArray.from_arrays(pa.array(self.offsets, pa.int64()), pa.array(values))

    def owned(self) -> Ragged:
        """Return a read-only copy in int64, as in a batch."""
        ids, offsets = (np.array(array, np.int64) for array in (self.ids, self.offsets))
        weights = None if self.weights is None else as_readonly(self.weights.copy())
        return Ragged(as_readonly(ids), as_readonly(offsets), weights)

    def check_offsets(self, what: str, num_rows: int) -> None:
        """Refuse offsets that do not divide the ids into this number of bags.

        Raises
        ------
        DataError
            The message begins with `what`.
        """
        offsets, num_ids = self.offsets, len(self.ids)
        if len(offsets) != num_rows + 1:
            raise DataError(
                f"{what}{len(offsets)} offsets for {num_rows} rows; "
                "give rows + 1, the last being the number of ids"
            )
        if offsets[0] != 0 or offsets[-1] != num_ids:
            raise DataError(
                f"{what}offsets go from {offsets[0]} to {offsets[-1]}; "
                f"they must go from 0 to the number of ids, {num_ids}"
            )
        falls = np.diff(offsets) < 0
        if falls.any():
            row = int(np.argmax(falls))
            raise DataError(
                f"{what}offsets fall at row {row}, from {offsets[row]} to {offsets[row + 1]}"
            )

    def _cut(self, starts: Array, stops: Array) -> Ragged:
        """Return each bag's ids from its start to its stop; `self` if these are all ids."""
        whole = (stops - starts).sum() == len(self.ids)
        return self if whole else self.between(starts, stops)


def one_each(ids: npt.ArrayLike) -> Ragged:
    """Return bags with one id each."""
    array = np.asarray(ids)
    return Ragged(array, np.arange(len(array) + 1))


def offsets_of(lengths: npt.ArrayLike) -> Array:
    """Return the beginning of each of B bags, then the end of the last, (B + 1,) int64."""
    counts = np.asarray(lengths)
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def concat_bags(pieces: Sequence[Ragged]) -> Ragged:
    """Return the bags of all pieces, in order."""
    weights = [piece.weights for piece in pieces if piece.weights is not None]
    return Ragged(
        np.concatenate([piece.ids for piece in pieces]),
        offsets_of(np.concatenate([np.diff(piece.offsets) for piece in pieces])),
        np.concatenate(weights) if weights else None,
    )


def check_bags(bags: Ragged, feature: int, num_rows: int) -> Ragged:
    """Return an owned copy of `bags` in int64 and float32.

    Raises
    ------
    DataError
        If ids or offsets are not integers, the offsets do not cut N ids into `num_rows` bags, or an
        id is negative.
    """
    what = f"feature {feature}: "
    ids = to_ids(bags.ids, what + "ids", 1)
    offsets = to_ids(bags.offsets, what + "offsets", 1)
    weights = None if bags.weights is None else to_weights(bags.weights, what + "weights", len(ids))
    owned = Ragged(ids, offsets, weights)
    owned.check_offsets(what, num_rows)
    where = first_negative(ids)
    if where is not None:
        row, shown = owned.row_of(where[0]), bags.ids[where]
        raise DataError(f"ids: row {row}, feature {feature}: id {shown} is not in 0..2**63-1")
    return owned


def changes(rows: Array) -> Array:
    """Return whether each row of (B, ...) differs from the previous one; True for the first."""
    bits = _as_bits(rows.reshape(len(rows), -1))
    differ = np.ones(len(bits), bool)
    differ[1:] = (bits[1:] != bits[:-1]).any(axis=1)
    return differ


def _as_bits(values: Array) -> Array:
    """Return the bits of float32 values, so that 0.0 and -0.0 differ; other values unchanged."""
    is_float = values.dtype == np.float32
    return np.ascontiguousarray(values).view(np.int32) if is_float else values
