# SPDX-License-Identifier: Apache-2.0
"""`Lookup`: the hash tables of several columns, and calls of the key kernel on NumPy arrays.

Tables are at most half full, small ones at most a quarter, which halves the time of a miss. Cost:
16 to 32 bytes per number; per text, twice as much and its own bytes; 4 ns per number and 10 ns per
text of 8 characters if the table is in cache.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np

from sparsetrain.kernels.builder import LINE_BYTES
from sparsetrain.parsing import keys
from sparsetrain.parsing.identity import Entries, Texts
from sparsetrain.parsing.keys import FIELDS, GOLDEN
from sparsetrain.runtime.compiling import host_kernel
from sparsetrain.runtime.tensors import as_numpy, as_tensor, empty, tensor_at, zeros
from sparsetrain.system.locks import with_builder_lock
from sparsetrain.system.memory import aligned_empty

_SMALL = 1 << 20  # keys
_FEW = 1 << 12  # bytes; the arguments of a request are this small
_NUMBERS = ("int32", "uint32", "int64")  # the rest are converted

_keys = cache(with_builder_lock(host_kernel("keys of texts", keys.keys_kernel)))
_hashes = cache(with_builder_lock(host_kernel("hashes of texts", keys.hashes_kernel)))
_text_ids = cache(with_builder_lock(host_kernel("ids of texts", keys.text_ids_kernel)))
_number_ids = cache(with_builder_lock(host_kernel("ids of numbers", keys.number_ids_kernel)))


class Lookup:
    """Ids of the values of several columns."""

    def __init__(self, columns: Sequence[Entries]) -> None:
        self._values = tuple(columns)

    def __getstate__(self) -> dict[str, Any]:
        """Drop the tables; a copy builds them again, in aligned memory."""
        return {"_values": self._values}

    @cached_property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The tables, in the layout of `keys._Tables`."""
        columns = np.zeros((len(self._values), FIELDS), np.int64)
        short, long, text = _Slots(1), _Slots(2), _Slots(2)
        pool, size = [np.zeros(8, np.uint8)], 8
        for column, values in zip(columns, self._values, strict=True):
            column[0] = values.kind
            numbers, ids = values.numbers, values.number_ids
            fits = (numbers >= 0) & (numbers < 1 << 32)
            column[1:3] = short.add(numbers[fits], numbers[fits] << 32 | ids[fits])
            column[3:5] = long.add(numbers[~fits], numbers[~fits], ids[~fits])
            texts = values.texts
            places = texts.offsets + 4 * np.arange(len(texts.offsets))
            hashes, entries = hashes_of(texts), size + places[:-1]
            column[5:] = text.add(hashes, entries, hashes << 32 | values.text_ids)
            pool.append(_behind_lengths(texts, places))
            size += len(pool[-1])
        words = np.concatenate(pool, out=aligned_empty(size))
        return columns, short.joined().view(np.uint64).ravel(), long.joined(), text.joined(), words

    @cached_property
    def _tables(self) -> tuple[Any, ...]:
        return tuple(map(_tensor, self.arrays))

    def text_ids(self, column_ids: int | np.ndarray, texts: Texts) -> np.ndarray:
        """Return the ids (n,) int32 of texts.

        `column_ids` is their column, or columns (m,) that repeat cyclically.
        """
        tables, ids = self._tables, empty((len(texts.offsets) - 1,), "int32")
        _text_ids(texts.offsets.dtype.name, not isinstance(column_ids, int))(
            *_texts(texts), _columns(column_ids), *tables, ids
        )
        return as_numpy(ids, writable=True)

    def number_ids(
        self, column_ids: int | np.ndarray, numbers: np.ndarray, missing: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the ids (n,) int32 of integers (n,), of any type; `missing` (n,) bool."""
        if numbers.dtype.name not in _NUMBERS:
            numbers = numbers.astype(np.int64)
        tables, ids = self._tables, empty(numbers.shape, "int32")
        arguments = (
            _argument("numbers", numbers),
            _mask(missing, len(numbers)),
            _columns(column_ids),
        )
        _number_ids(numbers.dtype.name, not isinstance(column_ids, int))(*arguments, *tables, ids)
        return as_numpy(ids, writable=True)


def _behind_lengths(texts: Texts, places: np.ndarray) -> np.ndarray:
    """Return the texts with 4 bytes of length before each; `places` are their beginnings."""
    heads = places[:-1, None] + np.arange(4)
    found, is_text = np.empty(places[-1], np.uint8), np.ones(places[-1], bool)
    found[heads] = np.diff(texts.offsets).astype("<u4").view(np.uint8).reshape(-1, 4)
    is_text[heads] = False
    found[is_text] = texts.data
    return found


class _Slots:
    """The slots of all hash tables of one kind; the first slot is empty."""

    def __init__(self, words: int) -> None:
        self._parts, self._size = [np.zeros((1, words), np.int64)], 1

    def add(self, keys: np.ndarray, *words: np.ndarray) -> tuple[int, int]:
        """Add a table with keys (n,) int64 and slot contents; return its start and bits."""
        if not len(keys):
            return 0, 0
        bits = ((4 if len(keys) < _SMALL else 2) * len(keys)).bit_length()
        part = aligned_empty(8 * len(words) << bits).view(np.int64).reshape(-1, len(words))
        part[:] = 0
        part[own_slots(keys, bits)] = np.stack(words, axis=1)
        self._parts.append(part)
        start, self._size = self._size, self._size + len(part)
        return start, bits

    def joined(self) -> np.ndarray:
        whole = aligned_empty(self._size * self._parts[0].shape[1] * 8).view(np.int64)
        return np.concatenate(self._parts, out=whole.reshape(self._size, -1))


def own_slots(keys: np.ndarray, bits: int) -> np.ndarray:
    """Return a slot for each key: the first free slot from its hash on."""
    holders = np.full(1 << bits, -1, np.int32)
    hashes = keys.view(np.uint64) * np.uint64(GOLDEN)
    slots, left = (hashes >> np.uint64(64 - bits)).view(np.int64), np.arange(len(keys))
    while len(left):
        free = holders[slots[left]] < 0
        holders[slots[left[free]]] = left[free]  # if keys share a slot, one of them keeps it
        left = left[holders[slots[left]] != left]
        slots[left] = (slots[left] + 1) & ((1 << bits) - 1)
    return slots


def keys_of(texts: Texts) -> tuple[np.ndarray, np.ndarray]:
    """Return the key of each text (n,) int64, and its form (n,) uint8: see `keys`."""
    shape = (len(texts.offsets) - 1,)
    found, what = empty(shape, "int64"), empty(shape, "uint8")
    _keys(texts.offsets.dtype.name)(*_texts(texts), found, what)
    return as_numpy(found, writable=True), as_numpy(what)


def hashes_of(texts: Texts) -> np.ndarray:
    """Return the hash of each text (n,) int64."""
    found = empty((len(texts.offsets) - 1,), "int64")
    _hashes(texts.offsets.dtype.name)(*_texts(texts), found)
    return as_numpy(found)


def _columns(column_ids: int | np.ndarray) -> Any:
    return (
        _column(column_ids) if isinstance(column_ids, int) else _argument("column_ids", column_ids)
    )


@lru_cache
def _column(column_ids: int) -> Any:
    return as_tensor(np.array([column_ids], np.int32))


def _texts(texts: Texts) -> tuple[Any, Any, Any]:
    data, offsets = _argument("data", texts.data, padded=True), _argument("offsets", texts.offsets)
    return data, offsets, _mask(texts.missing, len(texts.offsets) - 1)


def _mask(missing: np.ndarray | None, count: int) -> Any:
    if missing is not None:
        return _argument("missing", missing.view(np.uint8))
    return _no_mask(count) if count <= _FEW else zeros((count,), "uint8")


@lru_cache
def _no_mask(count: int) -> Any:
    return zeros((count,), "uint8")


def _argument(role: str, array: np.ndarray, padded: bool = False) -> Any:
    """Return an array as a kernel argument; copy a small one to memory that the thread reuses.

    It is valid until the thread's next call with this role.
    """
    if array.nbytes > _FEW:
        return _tensor(array)
    size = max(8, 1 << (len(array) - 1).bit_length()) if padded else len(array)
    key = role, size, array.dtype.char
    known = _memory.known.get(key)
    if known is None:
        tensor = empty((size,), array.dtype.name)
        known = _memory.known[key] = tensor, as_numpy(tensor, writable=True)
    known[1][: len(array)] = array
    return known[0]


class _Memory(threading.local):
    def __init__(self) -> None:
        self.known: dict[tuple[str, int, str], tuple[Any, np.ndarray]] = {}


_memory = _Memory()


def _tensor(array: np.ndarray) -> Any:
    """Return an array as a kernel argument, without a copy if its memory is aligned."""
    whole = array.flags.c_contiguous and array.ctypes.data % LINE_BYTES == 0
    return tensor_at(array) if whole and array.size and array.flags.writeable else as_tensor(array)
