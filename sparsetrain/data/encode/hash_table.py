# SPDX-License-Identifier: Apache-2.0
"""Hash table from 64-bit keys to ids, vectorised over whole arrays.

Open addressing with linear probing over two flat arrays, at most half full; small tables at most a
quarter, which halves the time to miss. Each round handles all unresolved keys, so the number of
Python steps is the longest probe. Cost: 12 bytes a slot, about 5 to 20 ns a lookup; a binary search
over 5 million keys takes 460.
"""

from __future__ import annotations

import numpy as np

from sparsetrain.data.values.arrays import Array
from sparsetrain.system.memory import aligned_empty

_SMALL = 1 << 20  # keys
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: spreads both dense and random keys
_PLAIN_GOLDEN, _64_BITS = int(_GOLDEN), 2**64 - 1  # Python's numbers, for one key


class IdTable:
    """An immutable map from distinct int64 keys (n,) to ids (n,) that fit int32.

    Every other key has the id `default`, which none of `ids` is: it marks a slot as empty.
    """

    def __init__(self, keys: Array, ids: Array, default: int) -> None:
        self._default = default
        bits = max(1, ((4 if len(keys) < _SMALL else 2) * len(keys)).bit_length())
        self._plain_shift = 64 - bits
        self._shift, self._mask = np.uint64(64 - bits), (1 << bits) - 1
        self._keys = aligned_empty(8 << bits).view(np.int64)
        self._ids = aligned_empty(4 << bits).view(np.int32)
        self._keys[:], self._ids[:] = 0, default
        self._insert(keys, ids)

    def _slots(self, keys: Array) -> Array:
        return ((keys.view(np.uint64) * _GOLDEN) >> self._shift).view(np.int64)

    def _insert(self, keys: Array, ids: Array) -> None:
        slots = self._slots(keys)
        while len(keys):
            free = self._ids[slots] == self._default
            self._keys[slots[free]] = keys[free]  # of keys that share a slot, one stays
            self._ids[slots[free]] = ids[free]
            left = np.flatnonzero(self._keys[slots] != keys)
            keys, ids, slots = keys[left], ids[left], (slots[left] + 1) & self._mask

    def find(self, keys: Array) -> Array:
        """Return the ids (n,) int32 of `keys` (n,) int64, in any order and with repeats."""
        slots = self._slots(keys)
        ids: Array = np.take(self._ids, slots)
        lost = np.flatnonzero((np.take(self._keys, slots) != keys) & (ids != self._default))
        slots = slots[lost]
        while len(lost):
            slots = (slots + 1) & self._mask
            ids[lost] = found = self._ids[slots]
            again = (self._keys[slots] != keys[lost]) & (found != self._default)
            lost, slots = lost[again], slots[again]
        return ids

    def find_short(self, keys: Array) -> Array:
        """As `find`, of keys (n,) uint32, by a kernel."""
        from sparsetrain.parsing.lookup import look_up  # imports TVM, as whoever read them did

        shift = self._plain_shift - 32
        if shift < 0:  # with gigabytes of slots
            return self.find(keys.astype(np.int64))
        return look_up(keys, self._keys, self._ids, _PLAIN_GOLDEN, shift, self._default)

    def find_one(self, key: int) -> int:
        """Return the id of one key, as `find` does of many."""
        slot = (key * _PLAIN_GOLDEN & _64_BITS) >> self._plain_shift
        while (id_ := self._ids.item(slot)) != self._default and self._keys.item(slot) != key:
            slot = (slot + 1) & self._mask
        return id_
