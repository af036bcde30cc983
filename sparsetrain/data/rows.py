# SPDX-License-Identifier: Apache-2.0
"""`Rows`: encoded rows on their way from pieces to batches: joined, regrouped, permuted.

Ids are one per feature in an array (n, F), or F `Ragged` of n bags each. Code that cuts, joins or
checks rows uses these functions and need not distinguish the two forms. Operations work on whole
arrays and do not change the values in a row. Ids are int32 here and int64 in the batch. A piece is
stored by column, a batch by row.

`ShareMeter` counts reserved ids: missing, and rare or never seen. A model knows nothing about such
values, so a large share means that the data differ from the training data. Encoders of already
encoded data reserve no ids.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from sparsetrain.data.ragged import Ragged, check_bags, concat_bags, one_each
from sparsetrain.data.values.arrays import Array, first_negative, to_ids
from sparsetrain.errors import DataError, DataWarning
from sparsetrain.parsing.identity import MISSING, UNSEEN

Ids = Array | tuple[Ragged, ...]


def joined_ids(features: Sequence[Array | Ragged]) -> Ids:
    """Join the ids of all features; if any has bags, all get bags, and likewise for weights."""
    if not any(isinstance(ids, Ragged) for ids in features):
        return np.stack(features).T  # type: ignore[arg-type]  # each feature contiguous
    bags = [ids if isinstance(ids, Ragged) else one_each(ids) for ids in features]
    if any(each.weights is not None for each in bags):
        bags = [each.weighted() for each in bags]
    return tuple(bags)


def num_features(ids: Ids) -> int:
    """Return the number of features, F."""
    return len(ids) if isinstance(ids, tuple) else int(ids.shape[1])


def by_feature(ids: Ids) -> Sequence[Array]:
    """Return all ids of each feature, with bags concatenated."""
    return [bags.ids for bags in ids] if isinstance(ids, tuple) else ids.T


def arrays_of(ids: Ids) -> Iterator[Array | None]:
    """Yield the arrays that ids are made of; None for bags without weights."""
    for part in ids if isinstance(ids, tuple) else (ids,):
        yield from (part.ids, part.offsets, part.weights) if isinstance(part, Ragged) else (part,)


def take_ids(ids: Ids, index: Array | slice) -> Ids:
    """Return the ids of the rows at `index`: a view for a slice if possible."""
    if isinstance(ids, tuple):
        return tuple(bags.take(index) for bags in ids)
    return rows_at(ids, index)


def rows_at(array: Array, index: Array | slice) -> Array:
    """Return rows of an array: a view for a slice, a copy for an array."""
    # `array[index]` gathers number by number, which takes four times as long.
    return array[index] if isinstance(index, slice) else np.take(array, index, axis=0)


def concat_ids(pieces: Sequence[Any]) -> Ids:
    """Return the ids of the rows of all pieces, in order."""
    if isinstance(pieces[0], tuple):
        return tuple(concat_bags(feature) for feature in zip(*pieces, strict=True))
    return np.concatenate(pieces)


def owned_ids(ids: Ids) -> Ids:
    """Return a copy in int64, as in a batch."""
    if isinstance(ids, tuple):
        return tuple(bags.owned() for bags in ids)
    return ids.astype(np.int64, order="C")


def checked_ids(ids: Any, num_rows: int) -> Ids:
    """Check a user's ids of `num_rows` rows, and return a copy in int64."""
    if isinstance(ids, Ragged):
        raise DataError("ids is one Ragged; give a sequence of them, one for each feature")
    if isinstance(ids, (list, tuple)) and any(isinstance(item, Ragged) for item in ids):
        if not all(isinstance(item, Ragged) for item in ids):
            raise DataError("ids mixes Ragged with something else; give a Ragged for each feature")
        return tuple(check_bags(bags, feature, num_rows) for feature, bags in enumerate(ids))
    array = to_ids(ids, "ids", 2)
    if len(array) != num_rows:
        raise DataError(f"ids have {len(array)} rows, dense has {num_rows}")
    where = first_negative(array)
    if where is not None:
        shown = np.asarray(ids)[where]
        raise DataError(f"ids: row {where[0]}, feature {where[1]}: id {shown} is not in 0..2**63-1")
    return array


def first_outside(ids: Ids, rows: Sequence[int]) -> tuple[int, int, int] | None:
    """Return (row, feature, id) of the first id outside its table, or None.

    Single ids are checked row by row, bags feature by feature.
    """
    if isinstance(ids, tuple):
        for feature, (bags, limit) in enumerate(zip(ids, rows, strict=True)):
            if len(bags.ids) and bags.ids.max() >= limit:
                place = int(np.argmax(bags.ids >= limit))
                return bags.row_of(place), feature, int(bags.ids[place])
        return None
    outside = ids >= np.asarray(rows, dtype=np.int64)
    if not outside.any():
        return None
    row, feature = (int(i) for i in np.argwhere(outside)[0])
    return row, feature, int(ids[row, feature])


_MOST_IDS = 2**31 - 1  # the most that offsets of a list column can count


def as_columns(ids: Ids) -> Iterator[tuple[pa.Array, pa.Array | None]]:
    """Yield the ids of each feature as an int32 column, and the weights of bags, if any."""
    if isinstance(ids, tuple):
        yield from map(as_lists, ids)
    else:
        yield from ((pa.array(np.ascontiguousarray(column)), None) for column in ids.T)


def as_lists(bags: Ragged) -> tuple[pa.Array, pa.Array | None]:
    """Return the bags as list columns of int32 ids, and of float32 weights if there are weights.

    Raises
    ------
    DataError
        If the bags hold too many ids for the int32 offsets of a list column.
    """
    if bags.offsets[-1] > _MOST_IDS:
        raise DataError(
            f"lists of {len(bags):,} rows hold {bags.offsets[-1]:,} ids, more than "
            f"{_MOST_IDS:,}: limit them by max_length in a schema file"
        )
    offsets = pa.array(bags.offsets.astype(np.int32))
    ids = pa.ListArray.from_arrays(offsets, pa.array(bags.ids.astype(np.int32)))
    if bags.weights is None:
        return ids, None
    return ids, pa.ListArray.from_arrays(offsets, pa.array(bags.weights))


class Rows(NamedTuple):
    """n encoded rows.

    Attributes
    ----------
    dense : (n, F_dense) float32
    ids : (n, F) int32, or F `Ragged` of n bags each
    labels : (n,) or (n, T) float32 or None
    weights : (n,) float32 or None
    """

    dense: Array
    ids: Ids
    labels: Array | None
    weights: Array | None = None

    @property
    def size(self) -> int:
        """Number of rows, n."""
        return len(self.dense)

    def at(self, index: Array | slice) -> Rows:
        """Return the rows at `index`: a view for a slice if possible, a copy for an array."""
        labels, weights = (
            None if array is None else rows_at(array, index)
            for array in (self.labels, self.weights)
        )
        return Rows(rows_at(self.dense, index), take_ids(self.ids, index), labels, weights)

    def plain(self) -> Rows:
        """Return the rows themselves; see `PermutedRows`."""
        return self


class PermutedRows(NamedTuple):
    """Rows of a window in a different order, not gathered yet.

    Gathering batch by batch keeps the memory in cache; the whole window is never gathered.

    Attributes
    ----------
    window : Rows
    order : (n,) int64
        Distinct row numbers in the window.
    """

    window: Rows
    order: Array

    @property
    def size(self) -> int:
        """Number of rows, n."""
        return len(self.order)

    def at(self, index: slice) -> PermutedRows:
        """Return the rows at `index`, as a view."""
        return PermutedRows(self.window, self.order[index])

    def plain(self) -> Rows:
        """Gather the rows."""
        return self.window.at(self.order)


Piece = TypeVar("Piece", Rows, PermutedRows)


def concat_rows(pieces: list[Rows]) -> Rows:
    """Return the rows of all pieces, in order."""
    if len(pieces) == 1:
        return pieces[0]
    dense, ids, labels, weights = zip(*pieces, strict=True)
    return Rows(
        np.concatenate(dense),
        concat_ids(ids),
        None if labels[0] is None else np.concatenate(labels),
        None if weights[0] is None else np.concatenate(weights),
    )


def regroup(pieces: Iterable[Rows | PermutedRows], size: int) -> Iterator[Rows]:
    """Yield the rows of `pieces`, in order, in groups of `size`; the last may be smaller.

    Permuted pieces are gathered before the next piece is read.
    """
    open_: list[Rows] = []
    missing = size
    for piece in pieces:
        start = 0
        while piece.size - start >= missing:
            yield concat_rows([*open_, piece.at(slice(start, start + missing)).plain()])
            start, open_, missing = start + missing, [], size
        if start < piece.size:
            open_.append(piece.at(slice(start, None)).plain())
            missing -= piece.size - start
    if open_:
        yield concat_rows(open_)


def skip_rows(pieces: Iterable[Piece], count: int) -> Iterator[Piece]:
    """Yield the rows of `pieces` after the first `count`."""
    for piece in pieces:
        if count < piece.size:
            yield piece.at(slice(count, None)) if count else piece
        count = max(0, count - piece.size)


def first_rows(pieces: Iterable[Piece], count: int) -> Iterator[Piece]:
    """Yield the first `count` rows of `pieces`; later pieces are not read."""
    for piece in pieces if count > 0 else ():
        yield piece if piece.size <= count else piece.at(slice(count))
        count -= piece.size
        if count <= 0:
            return


class Share(NamedTuple):
    """A category column's number of ids read, and how many of them are reserved."""

    column: str
    ids: int
    missing: int
    unseen: int

    @property
    def missing_share(self) -> float:
        """Share of ids of missing values."""
        return self.missing / max(self.ids, 1)

    @property
    def unseen_share(self) -> float:
        """Share of ids of rare or unseen values."""
        return self.unseen / max(self.ids, 1)

    def lost_share(self, rare_in_training: float) -> float:
        """Share of values that are unknown here but would be known in rows like the training rows.

        Parameters
        ----------
        rare_in_training : float
            The vocabulary's `rare_share`.

        Returns
        -------
        float
            1 if no value is known, 0 if as many are known as in training, negative if more are.
        """
        known_then = 1 - rare_in_training
        known = 1 - self.unseen / max(self.ids - self.missing, 1)
        return 1 - known / known_then if known_then > 0 else 0.0


_ENOUGH = 100  # number of unknown values from which a column is reported


def warn_of_unknown(name: str, shares: Sequence[Share], columns: Sequence[Any]) -> None:
    """Warn of columns without a known value, if most training values were known."""
    for share, column in zip(shares, columns, strict=True):
        values = column.values
        there = share.ids - share.missing
        if there >= _ENOUGH and share.unseen == there and share.lost_share(values.rare_share) > 0.5:
            known = ", ".join(repr(value) for value in values.examples())
            warnings.warn(
                f"{name}: column {share.column}: all of its {there:,} values were rare or never "
                f"seen in training, where they were such as {known}: is it the same column, "
                "written the same way?",
                DataWarning,
                stacklevel=4,
            )


class ShareMeter:
    """Counts reserved ids; `add` every piece of rows, then read `shares`."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._counts = np.zeros((3, len(self._columns)), dtype=np.int64)  # ids, missing, unseen

    def add(self, rows: Rows) -> None:
        """Count the ids of some rows."""
        if not self._columns:
            return
        for index, ids in enumerate(by_feature(rows.ids)):
            self._counts[:, index] += _count(ids)

    @property
    def shares(self) -> tuple[Share, ...]:
        """The shares of every column, in the order of the columns."""
        counts = self._counts.T.tolist()
        return tuple(Share(name, *count) for name, count in zip(self._columns, counts, strict=True))


def _count(ids: Array) -> tuple[int, ...]:
    counts = (np.count_nonzero(ids == reserved) for reserved in (MISSING, UNSEEN))
    return len(ids), *(int(count) for count in counts)
