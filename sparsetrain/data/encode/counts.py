# SPDX-License-Identifier: Apache-2.0
"""How often each value of a category column occurs, exactly, in memory.

Each piece of the data is reduced to its distinct keys at once; the reduced pieces are merged
whenever together they outgrow what is merged already, so every key is moved a logarithmic number of
times. Memory: 16 bytes a distinct number at rest, about four times that while merging.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

import numpy as np
import pyarrow.compute as pc
import pyarrow.types as pt

from sparsetrain.data.encode.keys import Keys, split_keys
from sparsetrain.data.values import kinds
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.missing import NanRule
from sparsetrain.data.values.place import Place

_MERGE_AT = 1 << 20


class Counted(Protocol):
    """What a vocabulary is made from: the counts of one column, at rest."""

    def numbers(self) -> tuple[Array, Array]:
        """Return the distinct numbers, ascending, and their counts: two (n,) int64."""

    def texts(self) -> tuple[list[bytes], Array]:
        """Return the distinct texts in the order of their bytes, and their counts (m,) int64."""

    def left_out(self) -> int:
        """Return how often values occur, all together, that were too rare to be kept."""


class ValueCounts:
    """The counts of one column; `add` every piece of it, then read `numbers` and `texts`."""

    def __init__(self) -> None:
        self._pieces: list[tuple[Array, Array]] = []
        self._pending = 0
        self._merged = 0
        self._texts: Counter[bytes] = Counter()

    def add(self, array: Any, nan: NanRule, place: Place) -> None:
        """Count the values of an Arrow array.

        Raises
        ------
        DataError
            If a value can be no category.
        """
        self.add_keys(*keys_of(array, nan, place))

    def add_keys(self, keys: Keys, times: Array) -> None:
        """Count keys, each of them so many times."""
        is_number = ~(keys.missing | keys.is_text) & (times > 0)
        self._add_numbers(keys.numbers[is_number], times[is_number])
        if len(keys.texts):
            self._add_texts(keys.texts, times[keys.is_text])

    def _add_numbers(self, numbers: Array, times: Array) -> None:
        self._pieces.append(reduce_numbers(numbers, times))
        self._pending += len(self._pieces[-1][0])
        if self._pending > max(_MERGE_AT, self._merged):
            self.numbers()

    def _add_texts(self, texts: Any, times: Array) -> None:
        coded = pc.dictionary_encode(texts)
        totals = np.bincount(coded.indices.to_numpy(), weights=times).astype(np.int64)
        self._texts.update(dict(zip(coded.dictionary.to_pylist(), totals.tolist(), strict=True)))

    def numbers(self) -> tuple[Array, Array]:
        """Return the distinct numbers, ascending, and their counts: two (n,) int64."""
        if not self._pieces:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        if len(self._pieces) > 1:
            numbers, times = (np.concatenate(part) for part in zip(*self._pieces, strict=True))
            self._pieces = [reduce_numbers(numbers, times)]
        self._merged, self._pending = len(self._pieces[0][0]), 0
        return self._pieces[0]

    def texts(self) -> tuple[list[bytes], Array]:
        """Return the distinct texts in the order of their bytes, and their counts (m,) int64."""
        texts = sorted(text for text, count in self._texts.items() if count)
        return texts, np.array([self._texts[text] for text in texts], dtype=np.int64)

    def left_out(self) -> int:
        """Return 0: all values are kept."""
        return 0


def keys_of(array: Any, nan: NanRule, place: Place) -> tuple[Keys, Array]:
    """Return keys of an Arrow array, and how often each occurs; a dictionary is keyed once."""
    if not is_coded(array):
        plain = array.dictionary_decode() if pt.is_dictionary(array.type) else array
        return split_keys(plain, nan, place), np.ones(len(plain), dtype=np.int64)
    codes = array.indices.drop_null().to_numpy()
    times = np.bincount(codes, minlength=len(array.dictionary))
    return split_keys(array.dictionary, nan, place), times


def is_coded(array: Any) -> bool:
    """Return whether an array is a dictionary of values that can be keyed once for all rows."""
    if not pt.is_dictionary(array.type):
        return False
    return kinds.kind_of(array.type) in (kinds.INTEGER, kinds.TEXT)


def reduce_numbers(numbers: Array, times: Array) -> tuple[Array, Array]:
    """Return distinct numbers, ascending, and the sums of their times."""
    if len(numbers) and times.min() == times.max() == 1:
        return np.unique(numbers, return_counts=True)
    order = np.argsort(numbers, kind="stable")
    numbers, times = numbers[order], times[order]
    starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]]) if len(numbers) else order
    return numbers[starts], np.add.reduceat(times, starts) if len(starts) else times
