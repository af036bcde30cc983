# SPDX-License-Identifier: Apache-2.0
"""`Vocabulary`: the values of one category column and the table rows they map to.

Id 0 is for missing values (null or empty text) and 1 for rare or unseen ones. The other values have
the ids 2, 3, ... by falling count. Equal counts are ordered by value, numbers before texts, so ids
depend only on the counts.

With a cap of `max_rows` only the most frequent values get a row of their own. An eighth of the rows
(at least one) are buckets, and the hash of every remaining frequent value selects one of them.
Values below the minimum count still map to 1.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sparsetrain.data.columns.counts import Counted, count_values, kind_of_column, of_kind
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import Digits, as_plain, fill_nulls, require_utf8
from sparsetrain.data.values.arrow_values import Integers, NanRule, has_names, texts_of, values_of
from sparsetrain.data.values.location import Location
from sparsetrain.parsing.identity import HEXADECIMAL, KINDS, WHOLE, Texts, Values
from sparsetrain.parsing.identity import MISSING as MISSING
from sparsetrain.parsing.identity import UNSEEN as UNSEEN

FIRST = UNSEEN + 1
MIN_CAP = FIRST + 2  # one value's own row and one bucket
_BUCKET_SHARE = 8


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The values that have a row, and their rows.

    Attributes
    ----------
    kind : {"whole", "hexadecimal", "text"}
        Decides which values are equal; see `sparsetrain.parsing.identity`.
    numbers, number_ids : (n,) int64
        Numeric keys, all distinct, and their ids.
    texts : tuple of m bytes
        Text keys, in UTF-8.
    text_ids : (m,) int64
    rows : int
        Rows of the table, including the two reserved rows; every id is below it. 0 until it is
        fitted.
    nan : NanRule
    rare_share : float
        Share of the non-missing training values that were too rare for a row, over all columns that
        share the table. No id depends on it.
    """

    # first row of a value; the rows before it are for missing and rare values
    first: ClassVar[int] = FIRST

    kind: str
    numbers: Array
    number_ids: Array
    texts: tuple[bytes, ...]
    text_ids: Array
    rows: int
    nan: NanRule = field(default_factory=NanRule)
    rare_share: float | None = None

    def __repr__(self) -> str:
        return f"<Vocabulary: {self.rows} rows>"

    @classmethod
    def blank(cls, nan: NanRule) -> Vocabulary:
        """Return an empty vocabulary, without rows."""
        none = np.zeros(0, np.int64)
        return cls(WHOLE, none, none, (), none, 0, nan)

    def count(self, array: Any, location: Location) -> Counted:
        """Count the values of an array."""
        return count_values(array, self.nan, location)

    def learnt(
        self,
        counts: Counted,
        kind: str | None,
        is_criteo: bool,
        min_count: int,
        max_rows: int | None,
    ) -> Vocabulary:
        """Give ids to the values that occur at least `min_count` times.

        Without a `kind`, it is inferred from the counts and from `is_criteo`: whether the column
        has one of Criteo's names.
        """
        kind = kind or kind_of_column(counts, is_criteo)
        found = replace(self, kind=kind, rows=FIRST).extended(counts, min_count)
        if max_rows is None or found.rows <= max_rows:
            return found
        ids = np.concatenate([found.number_ids, found.text_ids])
        ids = _cap(ids, _hashes(found.numbers, found.texts), max_rows)
        number_ids, text_ids = np.split(ids, [len(found.numbers)])
        return replace(found, number_ids=number_ids, text_ids=text_ids, rows=max_rows)

    def extended(self, counts: Counted, min_count: int, cap: int | None = None) -> Vocabulary:
        """Give rows to values that occur at least `min_count` times and have no row.

        The most frequent value comes first; at equal counts, numbers precede texts. Values beyond
        `cap` rows get no row, nor does text in a column of numbers.
        """
        numbers, times, texts, text_times, foreign = of_kind(counts, self.kind)
        is_new, text_is_new = np.ones(len(numbers), bool), np.ones(len(texts), bool)
        if self.rows > FIRST:
            is_new = self.find_numbers(numbers) == UNSEEN
            text_is_new = self.find_texts(texts_of(texts)) == UNSEEN
        lost = int(times[is_new].sum() + text_times[text_is_new].sum()) + foreign
        seen = int(times.sum() + text_times.sum()) + foreign
        is_new &= times >= min_count
        text_is_new &= text_times >= min_count
        new_times = np.concatenate([times[is_new], text_times[text_is_new]])
        order = np.argsort(-new_times, kind="stable")
        order = order[: None if cap is None else max(cap - self.rows, 0)]
        ids = np.full(len(new_times), UNSEEN)
        ids[order] = self.rows + np.arange(len(order))
        number_ids, text_ids = np.split(ids, [np.count_nonzero(is_new)])
        kept, text_kept = number_ids != UNSEEN, text_ids != UNSEEN
        keys = np.concatenate([self.numbers, numbers[is_new][kept]])
        ascending = np.argsort(keys, kind="stable")
        text_is_new[text_is_new] = text_kept
        return replace(
            self,
            numbers=keys[ascending],
            number_ids=np.concatenate([self.number_ids, number_ids[kept]])[ascending],
            texts=(*self.texts, *texts.filter(pa.array(text_is_new)).to_pylist()),
            text_ids=np.concatenate([self.text_ids, text_ids[text_kept]]),
            rows=self.rows + len(order),
            rare_share=(lost - int(new_times[order].sum())) / max(seen, 1),
        )

    def values(self) -> list[int | str | None]:
        """Return the value of each row; None for reserved rows and buckets."""
        found: list[int | str | None] = [None] * self.rows
        times = np.bincount(np.concatenate([self.number_ids, self.text_ids]), minlength=self.rows)
        for number, row in zip(self.numbers.tolist(), self.number_ids.tolist(), strict=True):
            found[row] = number if times[row] == 1 else None
        for text, row in zip(self.texts, self.text_ids.tolist(), strict=True):
            found[row] = text.decode(errors="backslashreplace") if times[row] == 1 else None
        return found

    def examples(self) -> list[int | str]:
        """Return a few of the values."""
        texts = [text.decode(errors="replace") for text in self.texts[:2]]
        return [*self.numbers[:2].tolist(), *texts]

    @cached_property
    def place(self) -> tuple[Pool, int]:
        """The pool that holds this vocabulary, and its position; `pool` makes a pool of several."""
        return pool_of([self]), 0

    def find_numbers(self, numbers: Array) -> Array:
        """Return the ids (n,) int32 of integers (n,)."""
        pool, column = self.place
        return pool.lookup.number_ids(column, numbers)

    def find_texts(self, texts: Texts) -> Array:
        """Return the ids (n,) int32 of texts."""
        pool, column = self.place
        return pool.lookup.text_ids(column, texts)

    def encode(self, array: Any, location: Location) -> Array:
        """Return the ids (n,) int32 of an Arrow array, all below `rows`."""
        require_utf8(array, location)
        if not has_names(array):
            return self._encode(as_plain(array), location)
        # The dictionary's values are looked up once, then each row's code selects a result.
        ids = np.append(self._encode(array.dictionary, location), np.int32(MISSING))
        codes, missing = fill_nulls(array.indices)
        if array.indices.null_count:
            codes = codes.astype(np.int64) + missing * (len(ids) - 1)
        return np.take(ids, codes)

    def _encode(self, array: Any, location: Location) -> Array:
        pool, column = self.place
        lookup = pool.lookup
        if self.kind == HEXADECIMAL and isinstance(array.type, Digits):
            return lookup.number_ids(column, *fill_nulls(array.storage))
        values = values_of(array, self.nan, location)
        if isinstance(values, Integers):
            return lookup.number_ids(column, *values)
        return lookup.text_ids(column, values)


@dataclass(frozen=True, eq=False)
class Pool:
    """Vocabularies that share a lookup, which is built at first use."""

    values: tuple[Values, ...]

    @cached_property
    def lookup(self) -> Any:
        """The `Lookup` of all values."""
        from sparsetrain.parsing.lookup import Lookup  # imports TVM

        return Lookup(self.values)


def pool_of(vocabularies: Iterable[Vocabulary]) -> Pool:
    """Return a pool of vocabularies, in order."""
    return Pool(
        tuple(
            Values(KINDS.index(v.kind), v.numbers, v.number_ids, v.texts, v.text_ids)
            for v in vocabularies
        )
    )


def pool(vocabularies: Sequence[Vocabulary]) -> tuple[Pool, Array]:
    """Make one lookup for several vocabularies, which may repeat.

    Returns the pool and each vocabulary's position in it, (F,) int32.
    """
    distinct = dict.fromkeys(vocabularies)  # by identity
    made, columns = pool_of(distinct), {each: n for n, each in enumerate(distinct)}
    for vocabulary, column in columns.items():
        vocabulary.__dict__["place"] = made, column
    return made, np.array([columns[each] for each in vocabularies], np.int32)


def _cap(ids: Array, hashes: Array, max_rows: int) -> Array:
    """Keep ids below the first bucket; replace others by the bucket that the hash selects."""
    buckets = max(1, (max_rows - FIRST) // _BUCKET_SHARE)
    own = max_rows - buckets
    # The remainder is of the unsigned hash, so that no bucket is negative.
    bucket = own + (hashes % np.uint64(buckets)).astype(np.int64)
    return np.where(ids < own, ids, bucket)


def _hashes(numbers: Array, texts: Sequence[bytes]) -> Array:
    """Return (n + m,) uint64: MurmurHash3's 64-bit finalizer of each number or text's CRC."""
    checksums = np.array([zlib.crc32(text) for text in texts], dtype=np.uint64)
    x = np.concatenate([numbers.view(np.uint64), checksums])
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xFF51AFD7ED558CCD)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))
