# SPDX-License-Identifier: Apache-2.0
"""`Ragged`: bags of ids of one feature, and their validation.

The convention is `torch.nn.EmbeddingBag`'s with `include_last_offset=True`: bag `b` holds
`ids[offsets[b]:offsets[b + 1]]`. `Ragged` itself checks nothing; `Batch` does, since it knows the
number of rows and the feature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsetrain.data.values.arrays import Array, as_array, first_negative, to_ids, to_weights
from sparsetrain.errors import DataError


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Ragged:
    """One feature's bags, any number of ids in each.

    Parameters
    ----------
    ids : array-like (N,) of integers
        The ids of all bags, one after the other.
    offsets : array-like (B + 1,) of integers
        Where each bag begins in `ids`; the first is 0 and the last is N.
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
        return f"<Ragged: bags={len(self.offsets) - 1}, ids={len(self.ids)}>"

    def row_of(self, position: int) -> int:
        """Return the bag that `ids[position]` belongs to."""
        return int(np.searchsorted(self.offsets, position, side="right")) - 1

    def rows(self) -> Array:
        """Return the bag that each id belongs to, (N,)."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def last(self, count: int) -> Ragged:
        """Return the last `count` ids of each bag, or all of a shorter one."""
        return self._cut(np.maximum(self.offsets[1:] - count, self.offsets[:-1]), self.offsets[1:])

    def without_first(self) -> Ragged:
        """Return each bag but for its first id; an empty one stays empty."""
        starts, stops = self.offsets[:-1], self.offsets[1:]
        return self._cut(np.minimum(starts + 1, stops), stops)

    def without_last(self) -> Ragged:
        """Return each bag but for its last id; an empty one stays empty."""
        starts, stops = self.offsets[:-1], self.offsets[1:]
        return self._cut(starts, np.maximum(stops - 1, starts))

    def where(self, chosen: npt.ArrayLike) -> Ragged:
        """Return the places, within each bag, of the ids for which `chosen` (N,) is true."""
        found = np.flatnonzero(chosen)
        offsets = np.searchsorted(found, self.offsets)
        return Ragged(found - np.repeat(self.offsets[:-1], np.diff(offsets)), offsets)

    def at(self, places: Ragged) -> Ragged:
        """Return the ids at places within their bags, as `where` gives them."""
        first = np.repeat(self.offsets[:-1], np.diff(places.offsets))
        return Ragged(self.ids[first + places.ids], places.offsets)

    def append(self, ids: npt.ArrayLike) -> Ragged:
        """Return the bags with one more id at the end of each: (B,), or one for all."""
        longer = np.insert(self.ids, self.offsets[1:], ids)
        return Ragged(longer, self.offsets + np.arange(len(self.offsets)))

    def _cut(self, starts: Array, stops: Array) -> Ragged:
        """Return of each bag the ids at `starts` to `stops`."""
        lengths = stops - starts
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        if offsets[-1] == len(self.ids):
            return self
        kept = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        weights = None if self.weights is None else self.weights[kept]
        return Ragged(self.ids[kept], offsets, weights)


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
    _check_offsets(offsets, what, num_rows, len(ids))
    weights = None if bags.weights is None else to_weights(bags.weights, what + "weights", len(ids))
    owned = Ragged(ids, offsets, weights)
    where = first_negative(ids)
    if where is not None:
        row, shown = owned.row_of(where[0]), bags.ids[where]
        raise DataError(f"ids: row {row}, feature {feature}: id {shown} is not in 0..2**63-1")
    return owned


def _check_offsets(offsets: Array, what: str, num_rows: int, num_ids: int) -> None:
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
