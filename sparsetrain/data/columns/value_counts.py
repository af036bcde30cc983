# SPDX-License-Identifier: Apache-2.0
"""Exact counts of the values of a category column, by key.

A key is a 64-bit number, text that is no such number, or missing. Files that store a value
differently must give the same key: text that spells a whole number *is* that number, in decimal or
in exactly 8 lower-case hex digits. A timestamp is its whole seconds since 1970. Any other text
keeps its bytes.

Text such as `12345678` is a number in both systems. It is hexadecimal in a column that has text of
8 hex digits that is not a decimal number, so it is counted apart until all of the column was seen.
A number from -2**31 to -1 of such a column is a hash that was kept in an int32: the unsigned number
of its 32 bits, whatever type it comes in.

Each piece is reduced to its distinct keys; reduced pieces are merged whenever they outgrow what is
merged already, so a key moves a logarithmic number of times. Memory: 16 bytes a distinct number at
rest, about four times that while merging.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from sparsetrain.data.values import arrow_types
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.numeric import (
    EXACT,
    NanRule,
    exact_integers,
    fill_nulls,
    to_microseconds,
)
from sparsetrain.data.values.text import (
    are_eights,
    as_bytes,
    as_decimals,
    hex_numbers,
    lengths,
    require_utf8,
    whole_numbers,
)


class Keys(NamedTuple):
    """The keys of one column's n values."""

    numbers: Array  # (n,) int64: the key where it is a number, 0 elsewhere
    missing: Array  # (n,) bool: null or empty text
    is_text: Array  # (n,) bool: text that is not a number
    texts: Any  # pyarrow binary array: the values where `is_text`, in order
    eights: Array | None = None  # (n,) bool: `numbers` are hexadecimal, may be decimal; None: none
    hexadecimal: bool | None = None  # some text is 8 hex digits and no decimal; None without text


def split_keys(
    array: Any, nan: NanRule, location: Location, hexadecimal: bool | None = None
) -> Keys:
    """Return the keys of a plain (not dictionary) Arrow array.

    In a column known to be `hexadecimal` no text can be read in two ways.
    """
    if arrow_types.kind_of(array.type) == arrow_types.TEXT:
        return _from_text(array, bool(hexadecimal))
    if arrow_types.kind_of(array.type) == arrow_types.SPELLED:
        return _from_spelled(array, bool(hexadecimal))
    return _BY_KIND[arrow_types.kind_of(array.type) or arrow_types.EMPTY](array, nan, location)


def _all_numbers(numbers: Array, missing: Array) -> Keys:
    return Keys(numbers, missing, np.zeros(len(numbers), dtype=bool), pa.array([], pa.binary()))


def _from_integers(array: Any, nan: NanRule, location: Location) -> Keys:
    values, missing = fill_nulls(array)
    return _all_numbers(values.astype(np.int64), missing)


def _from_floats(array: Any, nan: NanRule, location: Location) -> Keys:
    whole = exact_integers(array)  # of decimals, which have more digits than a float
    if whole is not None:
        return _all_numbers(whole[0].astype(np.int64), whole[1])
    values, missing = nan.split(array, location)
    odd = (values != np.trunc(values)) | (np.abs(values) >= EXACT)
    location.refuse(
        odd,
        lambda row: f"category {values[row]} is not a whole number below 2**53; store it as text",
    )
    return _all_numbers(values.astype(np.int64), missing)


def _from_text(array: Any, hexadecimal: bool) -> Keys:
    array = as_bytes(array)
    sizes = lengths(array)
    numbers, is_hex = hex_numbers(array, sizes)
    missing = sizes == 0
    eights = None if hexadecimal else is_hex & are_eights(numbers)
    is_text = ~(is_hex | missing)
    if is_text.any():
        decimals, is_decimal = whole_numbers(array, sizes, is_text)
        numbers, is_text = numbers + decimals, is_text & ~is_decimal
    texts = array.filter(pa.array(is_text)) if is_text.any() else pa.array([], pa.binary())
    seen = None if eights is None or missing.all() else bool((is_hex & ~eights).any())
    return Keys(numbers, missing, is_text, texts, eights, seen)


def _from_spelled(array: Any, hexadecimal: bool) -> Keys:
    values, missing = fill_nulls(array.storage)
    keys = _all_numbers(values.astype(np.int64), missing)
    return keys if missing.all() or hexadecimal else _with_readings(keys, array.type)


def _from_moments(array: Any, nan: NanRule, location: Location) -> Keys:
    microseconds, missing = fill_nulls(to_microseconds(array, location))
    return _all_numbers(microseconds // 1_000_000, missing)


_BY_KIND = {
    arrow_types.INTEGER: _from_integers,
    arrow_types.FLOAT: _from_floats,
    arrow_types.EMPTY: _from_integers,
    arrow_types.MOMENT: _from_moments,
}


_MERGE_AT = 1 << 20
_LOW = np.uint64(2**32 - 1)


class _NumberCounts:
    """Counts of numbers; reduced pieces, merged as they grow."""

    def __init__(self) -> None:
        self._pieces: list[tuple[Array, Array]] = []
        self._pending = 0
        self._merged = 0

    def add(self, numbers: Array, times: Array) -> None:
        """Count numbers, each of them so many times."""
        self.add_distinct(*reduce_numbers(numbers, times))

    def add_distinct(self, numbers: Array, times: Array) -> None:
        """As `add`, of what `all` of another returned."""
        self._pieces.append((numbers, times))
        self._pending += len(numbers)
        if self._pending > max(_MERGE_AT, self._merged):
            self.all()

    def all(self) -> tuple[Array, Array]:
        """Return the distinct numbers, ascending, and their counts: two (n,) int64."""
        if not self._pieces:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        if len(self._pieces) > 1:
            numbers, times = (np.concatenate(part) for part in zip(*self._pieces, strict=True))
            self._pieces = [reduce_numbers(numbers, times)]
        self._merged, self._pending = len(self._pieces[0][0]), 0
        return self._pieces[0]


class ValueCounts:
    """The counts of one column; `add` every piece of it, then read `numbers` and `texts`."""

    def __init__(self) -> None:
        self._numbers, self._eights = _NumberCounts(), _NumberCounts()
        self._texts: Counter[bytes] = Counter()
        self.hexadecimal: bool | None = None

    def add(self, array: Any, nan: NanRule, location: Location) -> None:
        """Count the values of an Arrow array."""
        self.add_keys(*count_keys(array, nan, location))

    def add_keys(self, keys: Keys, times: Array) -> None:
        """Count keys, each of them so many times."""
        is_number = ~(keys.missing | keys.is_text) & (times > 0)
        if keys.eights is not None and keys.eights.any():
            self._eights.add(keys.numbers[keys.eights], times[keys.eights])
            is_number &= ~keys.eights
        self._numbers.add(keys.numbers[is_number], times[is_number])
        self._add_texts(keys.texts, times[keys.is_text])
        self._note(keys.hexadecimal)

    def add_counted(
        self,
        numbers: tuple[Array, Array],
        eights: tuple[Array, Array],
        texts: tuple[list[bytes], Array],
        hexadecimal: bool | None,
    ) -> None:
        """Count what another of such found; arguments as its methods return them."""
        self._numbers.add_distinct(*numbers)
        self._eights.add_distinct(*eights)
        self._texts.update(dict(zip(texts[0], texts[1].tolist(), strict=True)))
        self._note(hexadecimal)

    def _note(self, hexadecimal: bool | None) -> None:
        if hexadecimal is not None:
            self.hexadecimal = bool(self.hexadecimal) or hexadecimal

    def _add_texts(self, texts: Any, times: Array) -> None:
        if not len(texts):
            return
        coded = pc.dictionary_encode(texts)
        totals = np.bincount(coded.indices.to_numpy(), weights=times).astype(np.int64)
        self._texts.update(dict(zip(coded.dictionary.to_pylist(), totals.tolist(), strict=True)))

    def numbers(self) -> tuple[Array, Array]:
        """Return the distinct numbers, ascending, and their counts: two (n,) int64."""
        return self._numbers.all()

    def eights(self) -> tuple[Array, Array]:
        """As `numbers`, of texts of 8 digits, which can be read in two ways, in hexadecimal."""
        return self._eights.all()

    def texts(self) -> tuple[list[bytes], Array]:
        """Return the distinct other texts in the order of their bytes, and their counts (m,)."""
        counts = {text: count for text, count in self._texts.items() if count}
        texts = sorted(counts)
        return texts, np.array([counts[text] for text in texts], dtype=np.int64)


class ResolvedCounts(NamedTuple):
    """Counts of a column all of whose text is read in one way."""

    numbers: Array  # (n,) int64, ascending
    number_times: Array  # (n,) int64
    texts: list[bytes]
    text_times: Array  # (m,) int64
    hexadecimal: bool | None


def resolved(
    counts: ValueCounts, known: bool | None = None, *, wraps: bool = False
) -> ResolvedCounts:
    """Return counts in which texts of 8 digits are numbers: decimal or, by the column, hexadecimal.

    What is `known` of the column's earlier values decides. Numbers of hexadecimal columns, and of
    those known to wrap, are unsigned.
    """
    hexadecimal = counts.hexadecimal if known is None else known
    (numbers, times), (eights, eight_times) = counts.numbers(), counts.eights()
    if len(eights):
        read = eights if hexadecimal else as_decimals(eights)
        numbers, times = np.concatenate([numbers, read]), np.concatenate([times, eight_times])
        numbers, times = reduce_numbers(numbers, times)
    if (hexadecimal or wraps) and are_wrapped(numbers).any():
        numbers, times = reduce_numbers(unwrapped(numbers), times)
    return ResolvedCounts(numbers, times, *counts.texts(), hexadecimal)


def are_wrapped(numbers: Array) -> Array:
    """Return which of numbers (n,) int64 may be hashes of 32 bits that an int32 made negative."""
    return (numbers < 0) & (numbers >= -(2**31))


def unwrapped(numbers: Array) -> Array:
    """Return the unsigned number of the bits of each that `are_wrapped`; others as they are."""
    return np.where(are_wrapped(numbers), numbers + 2**32, numbers)


def count_keys(array: Any, nan: NanRule, location: Location) -> tuple[Keys, Array]:
    """Return keys of an Arrow array, and how often each occurs; a dictionary is keyed once."""
    if arrow_types.kind_of(array.type) == arrow_types.SPELLED:
        return _count_spelled(array)
    require_utf8(array, location)
    if not has_keyable_dictionary(array):
        plain = array.dictionary_decode() if pt.is_dictionary(array.type) else array
        return split_keys(plain, nan, location), np.ones(len(plain), dtype=np.int64)
    codes = array.indices.drop_null().to_numpy()
    times = np.bincount(codes, minlength=len(array.dictionary))
    used = times > 0  # a value that no row has decides nothing
    return split_keys(array.dictionary.filter(pa.array(used)), nan, location), times[used]


def _count_spelled(array: Any) -> tuple[Keys, Array]:
    """Sort 32-bit numbers, and key each once."""
    values, missing = fill_nulls(array.storage)
    numbers, times = np.unique(values, return_counts=True)
    nulls = np.count_nonzero(missing)
    if nulls:  # which are 0 there
        times[0] -= nulls
    keys = _all_numbers(numbers.astype(np.int64), np.zeros(len(numbers), dtype=bool))
    return (keys if nulls == len(values) else _with_readings(keys, array.type)), times


def _with_readings(keys: Keys, type_: arrow_types.Spelled) -> Keys:
    eights = are_eights(keys.numbers) if type_.eights else None
    return keys._replace(eights=eights, hexadecimal=type_.hexadecimal)


def has_keyable_dictionary(array: Any) -> bool:
    """Return whether an array is a dictionary of values that can be keyed once for all rows."""
    if not pt.is_dictionary(array.type):
        return False
    return arrow_types.kind_of(array.type) in (arrow_types.INTEGER, arrow_types.TEXT)


def reduce_numbers(numbers: Array, times: Array) -> tuple[Array, Array]:
    """Return distinct numbers, ascending, and the sums of their times."""
    if (numbers[1:] > numbers[:-1]).all():
        return numbers, times
    if times.min() == times.max() == 1:
        return np.unique(numbers, return_counts=True)
    if numbers.min() >= 0 and max(numbers.max(), times.max()) < 2**32:
        # Sorted with its times in one word, a number takes half as long as by an order of both.
        words = numbers.view(np.uint64) << np.uint64(32) | times.view(np.uint64)
        words.sort()
        numbers = (words >> np.uint64(32)).view(np.int64)
        times = np.bitwise_and(words, _LOW, out=words).view(np.int64)
    else:
        order = np.argsort(numbers, kind="stable")
        numbers, times = numbers[order], times[order]
    ends = np.flatnonzero(np.append(numbers[1:] != numbers[:-1], True))
    return numbers[ends], np.diff(np.cumsum(times)[ends], prepend=0)
