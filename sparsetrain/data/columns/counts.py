# SPDX-License-Identifier: Apache-2.0
"""Exact counts of the values of a category column, and the column kind that follows from them.

Which values are equal depends on the column's kind, known only after all are counted. So values are
counted by form: numbers, including texts in canonical integer form; texts of 8 hex digits, read as
numbers; other texts.

Each piece is reduced to its distinct values. Reduced pieces are merged when they outgrow the merged
counts, so a value is moved a logarithmic number of times. Memory: 16 bytes per distinct number or
text, plus the text; about four times as much while merging.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import (
    DIGITS,
    as_plain,
    fill_nulls,
    kind_of,
    read_values,
    require_utf8,
)
from sparsetrain.data.values.arrow_values import (
    Integers,
    NanRule,
    as_binary,
    has_names,
    hex_digits,
    texts_of,
    values_of,
)
from sparsetrain.data.values.location import Location
from sparsetrain.parsing.identity import (
    ABSENT,
    HEX,
    HEXADECIMAL,
    LOOSE,
    NUMBER,
    OTHER,
    TEXT,
    WHOLE,
)

Distinct = tuple[Array, Array]  # numbers (n,), ascending, and how often each occurs, both int64
DistinctTexts = tuple[Any, Array]  # an Arrow array of bytes (m,), and how often each occurs, int64


class Counted(NamedTuple):
    """Distinct values of a column by form, and how often each occurs.

    Attributes
    ----------
    numbers, hexes : pair of (n,) int64
        Distinct values, ascending, and their counts; `hexes` are texts of 8 hex digits, as numbers.
    texts : pair of an Arrow array of bytes (m,) and (m,) int64
        Other texts, and their counts.
    written : bool
        Whether some of the numbers were text.
    """

    numbers: Distinct
    hexes: Distinct
    texts: DistinctTexts
    written: bool

    @classmethod
    def of_numbers(cls, numbers: Array) -> Counted:
        """Count integers (n,)."""
        return cls(_distinct(numbers), _NONE, _NO_TEXTS, False)


def count_values(array: Any, nan: NanRule, location: Location) -> Counted:
    """Count the values of an Arrow array; each entry of a dictionary is read once.

    Raises
    ------
    DataError
        If a value is not valid for a category; the message names the row.
    """
    if kind_of(array.type) == DIGITS:
        values, missing = fill_nulls(array.storage)
        found, is_hex = _distinct(values[~missing]), array.type.base == 16
        numbers, hexes = (_NONE, found) if is_hex else (found, _NONE)
        return Counted(numbers, hexes, _NO_TEXTS, bool(len(numbers[0])))
    require_utf8(array, location)
    if not has_names(array):
        return _counted(as_plain(array), None, nan, location)
    codes = array.indices.drop_null().to_numpy()
    times = np.bincount(codes, minlength=len(array.dictionary))
    used = times > 0  # a dictionary entry that no row has does not count
    return _counted(array.dictionary.filter(pa.array(used)), times[used], nan, location)


_NONE: Distinct = np.zeros(0, np.int64), np.zeros(0, np.int64)
_NO_TEXTS: DistinctTexts = pa.nulls(0, pa.large_binary()), np.zeros(0, np.int64)


def _counted(array: Any, times: Array | None, nan: NanRule, location: Location) -> Counted:
    """Count values; each occurs the given number of times, by default once."""
    values = values_of(array, nan, location)
    if isinstance(values, Integers):
        there = ~values.missing
        found = _distinct(values.numbers[there].astype(np.int64), _at(times, there))
        return Counted(found, _NONE, _NO_TEXTS, False)
    from sparsetrain.parsing.lookup import keys_of  # imports TVM

    keys, forms = keys_of(values)
    numbers, hexes = (
        _distinct(keys[forms == form], _at(times, forms == form)) for form in (NUMBER, HEX)
    )
    rest = (forms == LOOSE) | (forms == OTHER)
    others = array.filter(pa.array(rest)).cast(pa.large_binary())
    texts = _distinct_texts(others, _at(times, rest))
    return Counted(numbers, hexes, texts, bool(len(numbers[0])))


def _at(times: Array | None, chosen: Array) -> Array | None:
    return None if times is None else times[chosen]


def _distinct(numbers: Array, times: Array | None = None) -> Distinct:
    if times is None:
        found, counts = np.unique(numbers, return_counts=True)
        return found.astype(np.int64), counts
    return reduce_numbers(numbers, times)


def _distinct_texts(texts: Any, times: Array | None) -> DistinctTexts:
    if not len(texts):
        return _NO_TEXTS
    coded = pc.dictionary_encode(texts)
    counts = np.bincount(coded.indices.to_numpy(), weights=times).astype(np.int64)
    return coded.dictionary, counts


class ValueCounts:
    """Counts of one column: `add` the counts of every piece, then read `total`."""

    def __init__(self) -> None:
        self._numbers, self._hexes = (_Counts(_NONE, _reduce_pieces) for _ in range(2))
        self._texts = _Counts(_NO_TEXTS, _reduce_texts)
        self._written = False

    def read(self, array: Any, nan: NanRule, location: Location) -> None:
        """Add the values of a column, in lists or not."""
        self.add(read_values(array, lambda values, at: count_values(values, nan, at), location)[0])

    def add(self, piece: Counted) -> None:
        """Add the counts of a piece."""
        self._numbers.add(*piece.numbers)
        self._hexes.add(*piece.hexes)
        self._texts.add(*piece.texts)
        self._written |= piece.written

    @property
    def total(self) -> Counted:
        """All counts so far; texts are in no particular order."""
        return Counted(self._numbers.all(), self._hexes.all(), self._texts.all(), self._written)


_MERGE_AT = 1 << 24  # bytes
_LOW = np.uint64(2**32 - 1)


class _Counts:
    """Counts of numbers or texts, as reduced pieces that are merged as they grow."""

    def __init__(self, none: Any, reduce: Callable[[Sequence[Any], Array], Any]) -> None:
        self._none, self._reduce = none, reduce
        self._pieces: list[Any] = []
        self._pending = self._merged = 0  # bytes

    def add(self, values: Any, times: Array) -> None:
        """Add distinct values with their counts."""
        if not len(values):
            return
        self._pieces.append((values, times))
        self._pending += values.nbytes + times.nbytes
        if self._pending > max(_MERGE_AT, self._merged):
            self.all()

    def all(self) -> Any:
        """Return the distinct values and their counts."""
        if not self._pieces:
            return self._none
        if len(self._pieces) > 1:
            values, times = zip(*self._pieces, strict=True)
            self._pieces = [self._reduce(values, np.concatenate(times))]
        self._merged, self._pending = sum(part.nbytes for part in self._pieces[0]), 0
        return self._pieces[0]


def _reduce_pieces(pieces: Sequence[Array], times: Array) -> Distinct:
    return reduce_numbers(np.concatenate(pieces), times)


def _reduce_texts(pieces: Sequence[Any], times: Array) -> DistinctTexts:
    return _distinct_texts(pa.concat_arrays(pieces), times)


class Known(NamedTuple):
    """Counts of the distinct keys of a column of one kind, and of the values without a key."""

    numbers: Array  # (n,) int64, ascending
    number_times: Array  # (n,) int64
    texts: Any  # an Arrow array of bytes (m,), in their order
    text_times: Array  # (m,) int64
    foreign: int = 0  # values without a key: texts in a column of numbers


def kind_of_column(counted: Counted, is_criteo: bool = False) -> str:
    """Return the kind of a column with these values.

    It is `text` if some text is not a number. It is hexadecimal if all text has 8 hex digits and
    either some digit is a letter or the column has one of Criteo's names. Criteo's integer columns
    hold such hashes too.
    """
    forms = _forms(counted.texts[0])[1]
    letters = not _are_decimal(counted.hexes[0]).all()
    decimals = counted.written or len(forms) > 0
    if (forms == OTHER).any() or (letters and decimals):
        return TEXT
    return HEXADECIMAL if letters or (is_criteo and not decimals) else WHOLE


def of_kind(counted: Counted, kind: str) -> Known:
    """Return the counts of the values' keys in a column of this kind."""
    (numbers, times), (hexes, hex_times), (texts, text_times) = counted[:3]
    if kind == TEXT:
        plain = are_integers(hexes)
        texts = pa.concat_arrays([texts, as_binary(hex_digits(hexes[~plain]))])
        order = pc.sort_indices(texts)
        texts = texts.take(order)
        text_times = np.concatenate([text_times, hex_times[~plain]])[order.to_numpy()]
        numbers, times = _joined((numbers, times), (as_decimals(hexes[plain]), hex_times[plain]))
        return Known(numbers, times, texts, text_times)
    keys, forms = _forms(texts)
    loose, decimal = forms == LOOSE, _are_decimal(hexes)
    foreign = int(text_times[~loose].sum())
    if kind == WHOLE:
        foreign += int(hex_times[~decimal].sum())
        hexes, hex_times = as_decimals(hexes[decimal]), hex_times[decimal]
    numbers, times = _joined((numbers, times), (keys[loose], text_times[loose]))
    if kind == HEXADECIMAL:
        numbers = unwrapped(numbers)
    return Known(*_joined((numbers, times), (hexes, hex_times)), *_NO_TEXTS, foreign)


def unwrapped(numbers: Array) -> Array:
    """Return hashes (n,) int64, with negative 32-bit numbers read as unsigned."""
    return np.where((numbers < 0) & (numbers >= -(2**31)), numbers + 2**32, numbers)


def _forms(texts: Any) -> tuple[Array, Array]:
    """Return the key and the form of each text."""
    if not len(texts):
        return np.zeros(0, np.int64), np.full(0, ABSENT, np.uint8)
    from sparsetrain.parsing.lookup import keys_of  # imports TVM

    return keys_of(texts_of(texts))


def _joined(one: Distinct, other: Distinct) -> Distinct:
    numbers, times = (np.concatenate(pair) for pair in zip(one, other, strict=True))
    return reduce_numbers(numbers, times)


def _are_decimal(hexes: Array) -> Array:
    """Return which of (n,) numbers are written in 8 hex digits without a letter."""
    return ((hexes >> 3) & ((hexes >> 2) | (hexes >> 1)) & 0x11111111) == 0


def are_integers(hexes: Array) -> Array:
    """Return which texts of 8 hex digits, given as numbers (n,), are canonical decimal integers."""
    return _are_decimal(hexes) & (hexes >= 0x10000000)


def as_decimals(hexes: Array) -> Array:
    """Return numbers written in 8 hex digits, read as decimals, (n,) int64."""
    return sum(((hexes >> 4 * i) & 15) * 10**i for i in range(8))


def reduce_numbers(numbers: Array, times: Array) -> Distinct:
    """Return distinct numbers in ascending order, and the sums of their counts."""
    if (numbers[1:] > numbers[:-1]).all():
        return numbers, times
    if times.min() == times.max() == 1:
        return np.unique(numbers, return_counts=True)
    if numbers.min() >= 0 and max(numbers.max(), times.max()) < 2**32:
        # Sorting numbers and counts packed in one word takes half as long as an argsort.
        words = numbers.view(np.uint64) << np.uint64(32) | times.view(np.uint64)
        words.sort()
        numbers = (words >> np.uint64(32)).view(np.int64)
        times = np.bitwise_and(words, _LOW, out=words).view(np.int64)
    else:
        order = np.argsort(numbers, kind="stable")
        numbers, times = numbers[order], times[order]
    ends = np.flatnonzero(np.append(numbers[1:] != numbers[:-1], True))
    return numbers[ends], np.diff(np.cumsum(times)[ends], prepend=0)
