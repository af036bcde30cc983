# SPDX-License-Identifier: Apache-2.0
"""Exact counts of the values of a category column, and the kind of column that they make it.

Values are counted by their form, so that their identity can be settled once all were seen: numbers,
with the texts written as integers are; texts of 8 hex digits, by the number that these spell; other
texts.

Each piece is reduced to its distinct values; reduced pieces are merged whenever they outgrow what
is merged already, so a value moves a logarithmic number of times. Memory: 16 bytes a distinct
number at rest, about four times as much while merging.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparsetrain.data.columns.arrow_values import (
    Integers,
    as_plain,
    has_names,
    hex_digits,
    values_of,
)
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import DIGITS, kind_of
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.numeric import NanRule, fill_nulls
from sparsetrain.data.values.text import require_utf8
from sparsetrain.parsing.identity import (
    ABSENT,
    HEX,
    HEXADECIMAL,
    LOOSE,
    NUMBER,
    OTHER,
    TEXT,
    WHOLE,
    Texts,
)

Distinct = tuple[Array, Array]  # numbers (n,), ascending, and how often each occurs, both int64


class Counted(NamedTuple):
    """Distinct values of a column by their form, and how often each occurs.

    Attributes
    ----------
    numbers, hexes : pair of (n,) int64
        The distinct numbers, ascending, and their counts; of texts of 8 hex digits those that they
        spell.
    texts : pair of a list of m bytes and (m,) int64
        Other texts, and their counts.
    written : bool
        Whether some of the numbers were text.
    """

    numbers: Distinct
    hexes: Distinct
    texts: tuple[list[bytes], Array]
    written: bool


def count_values(array: Any, nan: NanRule, location: Location) -> Counted:
    """Count the values of an Arrow array; those of a dictionary are read once.

    Raises
    ------
    DataError
        If a value is none that a category has; names the row.
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
    used = times > 0  # a value that no row has decides nothing
    return _counted(array.dictionary.filter(pa.array(used)), times[used], nan, location)


_NONE: Distinct = np.zeros(0, np.int64), np.zeros(0, np.int64)
_NO_TEXTS: tuple[list[bytes], Array] = [], np.zeros(0, np.int64)


def _counted(array: Any, times: Array | None, nan: NanRule, location: Location) -> Counted:
    """Count values, each of them so many times, or once."""
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
    texts = _distinct_texts(array.filter(pa.array(rest)), _at(times, rest))
    return Counted(numbers, hexes, texts, bool(len(numbers[0])))


def _at(times: Array | None, chosen: Array) -> Array | None:
    return None if times is None else times[chosen]


def _distinct(numbers: Array, times: Array | None = None) -> Distinct:
    if times is None:
        found, counts = np.unique(numbers, return_counts=True)
        return found.astype(np.int64), counts
    return reduce_numbers(numbers, times)


def _distinct_texts(array: Any, times: Array | None) -> tuple[list[bytes], Array]:
    if not len(array):
        return _NO_TEXTS
    coded = pc.dictionary_encode(array)
    counts = np.bincount(coded.indices.to_numpy(), weights=times).astype(np.int64)
    return coded.dictionary.cast(pa.large_binary()).to_pylist(), counts


class ValueCounts:
    """Counts of one column; `add` those of every piece, then read their `total`."""

    def __init__(self) -> None:
        self._numbers, self._hexes = _NumberCounts(), _NumberCounts()
        self._texts: Counter[bytes] = Counter()
        self._written = False

    def add(self, piece: Counted) -> None:
        """Add the counts of a piece."""
        self._numbers.add(*piece.numbers)
        self._hexes.add(*piece.hexes)
        texts, times = piece.texts
        self._texts.update(dict(zip(texts, times.tolist(), strict=True)))
        self._written |= piece.written

    @property
    def total(self) -> Counted:
        """All that was counted, texts in the order of their bytes."""
        texts = sorted(self._texts)
        times = np.array([self._texts[text] for text in texts], dtype=np.int64)
        return Counted(self._numbers.all(), self._hexes.all(), (texts, times), self._written)


_MERGE_AT = 1 << 20
_LOW = np.uint64(2**32 - 1)


class _NumberCounts:
    """Counts of numbers; reduced pieces, merged as they grow."""

    def __init__(self) -> None:
        self._pieces: list[Distinct] = []
        self._pending = 0
        self._merged = 0

    def add(self, numbers: Array, times: Array) -> None:
        """Count distinct numbers, each of them so many times."""
        if not len(numbers):
            return
        self._pieces.append((numbers, times))
        self._pending += len(numbers)
        if self._pending > max(_MERGE_AT, self._merged):
            self.all()

    def all(self) -> Distinct:
        """Return the distinct numbers, ascending, and their counts."""
        if not self._pieces:
            return _NONE
        if len(self._pieces) > 1:
            numbers, times = (np.concatenate(part) for part in zip(*self._pieces, strict=True))
            self._pieces = [reduce_numbers(numbers, times)]
        self._merged, self._pending = len(self._pieces[0][0]), 0
        return self._pieces[0]


class Known(NamedTuple):
    """Counts of a column of one kind: of its distinct keys, and of values that have none in it."""

    numbers: Array  # (n,) int64, ascending
    number_times: Array  # (n,) int64
    texts: list[bytes]
    text_times: Array  # (m,) int64
    foreign: int = 0  # times of text in a column of numbers


def kind_of_column(counted: Counted, is_criteo: bool = False) -> str:
    """Return the kind of a column with these values.

    It is `text` if some text is no number. It is hexadecimal if all text has 8 hex digits, with a
    letter somewhere or where the column has a name of Criteo's, whose columns without text hold
    such hashes too.
    """
    forms = _forms(counted.texts[0])[1]
    letters = not _are_decimal(counted.hexes[0]).all()
    decimals = counted.written or len(forms) > 0
    if (forms == OTHER).any() or (letters and decimals):
        return TEXT
    return HEXADECIMAL if letters or (is_criteo and not decimals) else WHOLE


def of_kind(counted: Counted, kind: str) -> Known:
    """Return the counts of the keys that values have in a column of a kind."""
    (numbers, times), (hexes, hex_times), (texts, text_times) = counted[:3]
    keys, forms = _forms(texts)
    loose, decimal = forms == LOOSE, _are_decimal(hexes)
    if kind == TEXT:
        plain = are_integers(hexes)
        texts = [*texts, *hex_texts(hexes[~plain])]
        text_times = np.concatenate([text_times, hex_times[~plain]])
        order = sorted(range(len(texts)), key=texts.__getitem__)
        texts, text_times = [texts[i] for i in order], text_times[order]
        numbers, times = _joined((numbers, times), (as_decimals(hexes[plain]), hex_times[plain]))
        return Known(numbers, times, texts, text_times)
    foreign = int(text_times[~loose].sum())
    if kind == WHOLE:
        foreign += int(hex_times[~decimal].sum())
        hexes, hex_times = as_decimals(hexes[decimal]), hex_times[decimal]
    numbers, times = _joined((numbers, times), (keys[loose], text_times[loose]))
    if kind == HEXADECIMAL:
        numbers = unwrapped(numbers)
    return Known(*_joined((numbers, times), (hexes, hex_times)), [], np.zeros(0, np.int64), foreign)


def hex_texts(numbers: Array) -> list[bytes]:
    """Return the 8 hex digits of numbers (n,) below 2**32."""
    digits = hex_digits(numbers).tobytes()
    return [digits[begin : begin + 8] for begin in range(0, len(digits), 8)]


def unwrapped(numbers: Array) -> Array:
    """Return hashes (n,) int64; those that an int32 made negative, as the numbers of their bits."""
    return np.where((numbers < 0) & (numbers >= -(2**31)), numbers + 2**32, numbers)


def _forms(texts: Sequence[bytes]) -> tuple[Array, Array]:
    """Return the key and the form of each text."""
    if not texts:
        return np.zeros(0, np.int64), np.full(0, ABSENT, np.uint8)
    from sparsetrain.parsing.lookup import keys_of  # imports TVM

    return keys_of(Texts.of(texts))


def _joined(one: Distinct, other: Distinct) -> Distinct:
    numbers, times = (np.concatenate(pair) for pair in zip(one, other, strict=True))
    return reduce_numbers(numbers, times)


def _are_decimal(hexes: Array) -> Array:
    """Return which of (n,) numbers are spelled by 8 hex digits without a letter."""
    return ((hexes >> 3) & ((hexes >> 2) | (hexes >> 1)) & 0x11111111) == 0


def are_integers(hexes: Array) -> Array:
    """Return which 8 hex digits, by the numbers (n,) that they spell, are an integer as written."""
    return _are_decimal(hexes) & (hexes >= 0x10000000)


def as_decimals(hexes: Array) -> Array:
    """Return what 8 digits say as decimal numbers, (n,) int64."""
    return sum(((hexes >> 4 * i) & 15) * 10**i for i in range(8))


def reduce_numbers(numbers: Array, times: Array) -> Distinct:
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
