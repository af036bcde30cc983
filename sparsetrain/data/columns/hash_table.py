# SPDX-License-Identifier: Apache-2.0
"""Hash table from 64-bit keys to ids, vectorised over whole arrays.

Open addressing with linear probing over flat arrays, at most half full; small tables at most a
quarter, which halves the time to miss. Each round handles all unresolved keys, so the number of
Python steps is the longest probe. Cost: 12 bytes a slot, about 5 to 20 ns a lookup; a binary search
over 5 million keys takes 460. Keys of 32 bits have a table of their own, 8 bytes a slot, which lies
in a cache more often. Either is made when it is first asked.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from sparsetrain.data.values.arrays import Array
from sparsetrain.system.memory import aligned_empty

_SMALL = 1 << 20  # keys
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: spreads both dense and random keys
_PLAIN_GOLDEN, _64_BITS = int(_GOLDEN), 2**64 - 1  # Python's numbers, for one key


def first_slots(keys: Array, bits: int) -> Array:
    """Return where each key (n,) of 64 bits is looked for first among 2**bits slots, (n,) int64."""
    return ((keys.view(np.uint64) * _GOLDEN) >> np.uint64(64 - bits)).view(np.int64)


def own_slots(keys: Array, bits: int) -> Array:
    """Return a slot of its own for each key: the first free one from `first_slots` on."""
    owners = np.full(1 << bits, -1, np.int32)
    slots, left = first_slots(keys, bits), np.arange(len(keys), dtype=np.int32)
    while len(left):
        free = owners[slots[left]] < 0
        owners[slots[left[free]]] = left[free]  # of keys that share a slot, one stays
        left = left[owners[slots[left]] != left]
        slots[left] = (slots[left] + 1) & ((1 << bits) - 1)
    return slots


class IdTable:
    """An immutable map from distinct int64 keys (n,) to ids (n,) that fit int32.

    Every other key has the id `default`, which none of `ids` is: it marks a slot as empty.
    """

    def __init__(self, keys: Array, ids: Array, default: int) -> None:
        self._default, self._known = default, (keys, ids)
        self._bits = max(1, ((4 if len(keys) < _SMALL else 2) * len(keys)).bit_length())
        self._mask = (1 << self._bits) - 1

    def __getstate__(self) -> dict[str, Any]:
        """A copy makes its tables anew, whose memory is aligned."""
        made = ("_table", "_short_table")
        return {name: value for name, value in self.__dict__.items() if name not in made}

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """The key and the id of each slot, (S,) int64 and (S,) int32."""
        keys, ids = self._known
        there = np.zeros(1 << self._bits, np.int64)
        ids_there = np.full(1 << self._bits, self._default, np.int32)
        slots = own_slots(keys, self._bits)
        there[slots], ids_there[slots] = keys, ids
        return there, ids_there

    @cached_property
    def _short_table(self) -> Array:
        """The key of each slot above its id, (S,) uint64, of keys of 32 bits."""
        keys, ids = self._known
        short = (keys >= 0) & (keys < 2**32)
        words = aligned_empty(8 << self._bits).view(np.uint64)
        words[:] = self._default
        packed = keys[short].view(np.uint64) << np.uint64(32) | ids[short].view(np.uint64)
        words[own_slots(keys[short], self._bits)] = packed
        return words

    def find(self, keys: Array) -> Array:
        """Return the ids (n,) int32 of `keys` (n,) int64, in any order and with repeats."""
        there, ids_there = self._table
        slots = first_slots(keys, self._bits)
        ids: Array = np.take(ids_there, slots)
        lost = np.flatnonzero((np.take(there, slots) != keys) & (ids != self._default))
        slots = slots[lost]
        while len(lost):
            slots = (slots + 1) & self._mask
            ids[lost] = found = ids_there[slots]
            again = (there[slots] != keys[lost]) & (found != self._default)
            lost, slots = lost[again], slots[again]
        return ids

    def find_short(self, keys: Array) -> Array:
        """As `find`, of keys (n,) uint32, by a kernel."""
        from sparsetrain.parsing.lookup import look_up  # imports TVM, as whoever read them did

        shift = 32 - self._bits
        if shift < 0:  # with gigabytes of slots
            return self.find(keys.astype(np.int64))
        return look_up(keys, self._short_table, _PLAIN_GOLDEN, shift, self._default)

    def find_one(self, key: int) -> int:
        """Return the id of one key, as `find` does of many."""
        keys, ids = self._table
        slot = (key * _PLAIN_GOLDEN & _64_BITS) >> (64 - self._bits)
        while (id_ := ids.item(slot)) != self._default and keys.item(slot) != key:
            slot = (slot + 1) & self._mask
        return id_
