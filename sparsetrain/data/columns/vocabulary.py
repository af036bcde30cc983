# SPDX-License-Identifier: Apache-2.0
"""`Vocabulary`: the values of one category column and the table rows they map to.

Ids: 0 = missing (null or empty text), 1 = rare or never seen, then 2, 3, ... by falling count.
Equal counts are ordered by value, numbers before texts, so ids depend on the counts alone.

With a cap of `max_rows` only the most frequent values get a row of their own. An eighth of the rows
(at least one) are buckets, and the hash of every other frequent value selects one of them. Values
below the minimum count still map to 1.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow.compute as pc
import pyarrow.types as pt

from sparsetrain.data.columns.hash_table import IdTable
from sparsetrain.data.columns.value_counts import (
    ValueCounts,
    are_wrapped,
    has_keyable_dictionary,
    resolved,
    split_keys,
    unwrapped,
)
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import Spelled
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.numeric import EXACT, NanRule, fill_nulls
from sparsetrain.data.values.text import as_decimals, require_utf8, spelled_number

MISSING, UNSEEN, FIRST = 0, 1, 2
MIN_CAP = FIRST + 2  # one value's own row and one bucket
_BUCKET_SHARE = 8


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The values that have a row, and which.

    Attributes
    ----------
    numbers, number_ids : (n,) int64
        Keys that are numbers, all different, and their ids.
    texts : tuple of m bytes
        Keys that are text, UTF-8.
    text_ids : (m,) int64
    rows : int
        Rows of the table, the two reserved ones included; every id is below it.
    nan : NanRule
    rare_share : float
        Share of the training data's values, missing ones apart, that were too rare for a row; of
        columns that share a table, of the values of all. No id depends on it.
    hexadecimal : bool or None
        How text of 8 decimal digits is read. None, of a column without text: as a decimal number,
        and where that was never seen, as a hexadecimal one.
    wraps : bool
        Whether a number from -2**31 to -1 without a row is sought as the unsigned one of its bits,
        as in every hexadecimal column.
    """

    first: ClassVar[int] = FIRST  # row of a value; those before it stand for missing and rare ones

    numbers: Array
    number_ids: Array
    texts: tuple[bytes, ...]
    text_ids: Array
    rows: int
    nan: NanRule = field(default_factory=NanRule)
    rare_share: float | None = None
    hexadecimal: bool | None = None
    wraps: bool = False

    def __repr__(self) -> str:
        return f"<Vocabulary: {self.rows} rows>"

    @cached_property
    def _by_text(self) -> dict[bytes, int]:
        return dict(zip(self.texts, self.text_ids.tolist(), strict=True))

    @cached_property
    def _by_number(self) -> IdTable:
        return IdTable(self.numbers, self.number_ids, UNSEEN)

    @classmethod
    def from_counts(
        cls,
        counts: ValueCounts,
        min_count: int,
        max_rows: int | None,
        nan: NanRule,
        wraps: bool = False,
    ) -> Vocabulary:
        """Give ids to the values that were seen at least `min_count` times."""
        none = np.zeros(0, np.int64)
        found = cls(none, none, (), none, FIRST, nan, wraps=wraps).extended(counts, min_count)
        if max_rows is None or found.rows <= max_rows:
            return found
        ids = np.concatenate([found.number_ids, found.text_ids])
        ids = _cap(ids, _hashes(found.numbers, found.texts), max_rows)
        number_ids, text_ids = np.split(ids, [len(found.numbers)])
        return replace(found, number_ids=number_ids, text_ids=text_ids, rows=max_rows)

    def extended(self, counts: ValueCounts, min_count: int, cap: int | None = None) -> Vocabulary:
        """Give rows to values that were seen at least `min_count` times and have none.

        The most frequent one comes first, of equals numbers before texts. Values for which there is
        no room below `cap` rows stay without.
        """
        numbers, times, texts, text_times, hexadecimal = resolved(
            counts, self.hexadecimal, wraps=self.wraps
        )
        is_new = np.ones(len(numbers), bool)
        if len(self.numbers):
            is_new = self.find_numbers(numbers) == UNSEEN
        text_is_new = self.find_texts(texts) == UNSEEN
        lost = int(times[is_new].sum() + text_times[text_is_new].sum())
        seen = int(times.sum() + text_times.sum())
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
        new_texts = [texts[i] for i in np.flatnonzero(text_is_new)[text_kept]]
        return replace(
            self,
            numbers=keys[ascending],
            number_ids=np.concatenate([self.number_ids, number_ids[kept]])[ascending],
            texts=(*self.texts, *new_texts),
            text_ids=np.concatenate([self.text_ids, text_ids[text_kept]]),
            rows=self.rows + len(order),
            rare_share=(lost - int(new_times[order].sum())) / max(seen, 1),
            hexadecimal=hexadecimal,
        )

    def values(self) -> list[int | str | None]:
        """Return the value of each row; None for the reserved ones and those that values share."""
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

    def find_numbers(self, numbers: Array) -> Array:
        """Return the ids (n,) int32 of keys (n,) int64 that are numbers."""
        ids = self._by_number.find(numbers)
        if self._may_wrap and numbers.min(initial=0) < 0:
            unseen = are_wrapped(numbers) & (ids == UNSEEN)
            ids[unseen] = self._by_number.find(unwrapped(numbers[unseen]))
        return ids

    @property
    def _may_wrap(self) -> bool:
        return bool(self.hexadecimal) or self.wraps

    def _find_number(self, number: int) -> int:
        """As `find_numbers`, of one."""
        found = self._by_number.find_one(number)
        if found == UNSEEN and self._may_wrap and -(2**31) <= number < 0:
            return self._by_number.find_one(number + 2**32)
        return found

    def find_texts(self, texts: Sequence[bytes]) -> Array:
        """Return the ids (n,) int32 of keys that are text."""
        return np.array([self._by_text.get(text, UNSEEN) for text in texts], dtype=np.int32)

    def find_value(self, value: Any) -> int | None:
        """Return the id of a plain Python value; None if only a column of Arrow's can tell.

        Raises
        ------
        UnicodeEncodeError
            If it is text with half a surrogate pair.
        """
        if type(value) is str:
            return self._find_text(value) if value else MISSING
        if value is None:
            return MISSING
        if type(value) is float and value.is_integer() and abs(value) < EXACT:
            value = int(value)
        if type(value) is not int or not -(2**63) <= value < 2**64:
            return None
        return self._find_number((value + 2**63) % 2**64 - 2**63)

    def _find_text(self, text: str) -> int:
        hexadecimal, decimal = spelled_number(text)
        if hexadecimal is None and decimal is None:
            return self._by_text.get(text.encode(), UNSEEN)
        if hexadecimal is None or (decimal is not None and not self.hexadecimal):
            assert decimal is not None
            found = self._find_number(decimal)
            if found != UNSEEN or hexadecimal is None or self.hexadecimal is not None:
                return found
        return self._by_number.find_one(hexadecimal)

    def encode(self, array: Any, location: Location) -> Array:
        """Return the ids (n,) int32 of an Arrow array, all below `rows`."""
        require_utf8(array, location)
        if has_keyable_dictionary(array):
            return self._encode_codes(array, location)
        return self._encode(
            array.dictionary_decode() if pt.is_dictionary(array.type) else array, location
        )

    def _encode_codes(self, array: Any, location: Location) -> Array:
        """Look the dictionary up once, then each row's code in what was found."""
        ids = np.append(self._encode(array.dictionary, location), np.int32(MISSING))
        codes, missing = fill_nulls(array.indices)
        if array.indices.null_count:
            codes = codes.astype(np.int64) + missing * (len(ids) - 1)
        return np.take(ids, codes)

    def _encode(self, array: Any, location: Location) -> Array:
        if isinstance(array.type, Spelled) and (self.hexadecimal or not array.type.eights):
            return self._encode_spelled(array)
        keys = split_keys(array, self.nan, location, self.hexadecimal)
        ids = self.find_numbers(keys.numbers)
        if keys.eights is not None and keys.eights.any():
            ids[keys.eights] = self._find_eights(keys.numbers[keys.eights], ids[keys.eights])
        ids[keys.missing] = MISSING
        if len(keys.texts):
            coded = pc.dictionary_encode(keys.texts)
            found = self.find_texts(coded.dictionary.to_pylist())
            ids[keys.is_text] = found[coded.indices.to_numpy()]
        return ids

    def _encode_spelled(self, array: Any) -> Array:
        values, missing = fill_nulls(array.storage)
        ids = self._by_number.find_short(values)
        if array.null_count:
            ids *= ~missing  # MISSING is 0, and a product needs no branch
        return ids

    def _find_eights(self, hexes: Array, ids: Array) -> Array:
        """Return the ids of texts of 8 digits; `ids` are those of them as hexadecimal numbers."""
        found = self.find_numbers(as_decimals(hexes))
        return found if self.hexadecimal is not None else np.where(found == UNSEEN, ids, found)


def _cap(ids: Array, hashes: Array, max_rows: int) -> Array:
    """Keep the ids below the buckets and let the hash choose a bucket for the others."""
    buckets = max(1, (max_rows - FIRST) // _BUCKET_SHARE)
    own = max_rows - buckets
    # Unsigned before the remainder, so that no hash can give a negative bucket.
    bucket = own + (hashes % np.uint64(buckets)).astype(np.int64)
    return np.where(ids < own, ids, bucket)


def _hashes(numbers: Array, texts: Sequence[bytes]) -> Array:
    """Return (n + m,) uint64: MurmurHash3's 64-bit finaliser of each number or text's CRC."""
    checksums = np.array([zlib.crc32(text) for text in texts], dtype=np.uint64)
    x = np.concatenate([numbers.view(np.uint64), checksums])
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xFF51AFD7ED558CCD)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))
