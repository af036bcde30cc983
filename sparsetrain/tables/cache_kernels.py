# SPDX-License-Identifier: Apache-2.0
"""Kernels of a cache of rows: from row numbers to places in the cache, and transfers to a file.

A full cache evicts by the clock algorithm: the hand passes over rows that this batch reads, cools
all other rows that it meets, and takes the place of the first cold row. Transfers run in parallel,
record by record. Cost of a lookup: a cache line per row.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.kernels.builder import (
    Prefetch,
    buffer,
    counter,
    extents,
    kernel,
    pointer,
    put,
    scalar,
)

USED, HAND, MISSES, FULL = range(
    4
)  # indices of notes: places in use, the clock's hand, results of a call
NUM_NOTES = 4
_HOTTEST = 3  # rounds of the clock that a frequently read row survives
_AHEAD = 16  # ids between a prefetch and its use
_WILL_NEED = 3  # POSIX_FADV_WILLNEED


def find_kernel(dtype: str) -> PrimFunc:
    """Replace each row's number by its place; rows without a place get one.

    Arguments: the address and the number of ids; index (V,): a row's place, or ~slot, the record
    that holds it; owner, home and used_in (C,): a place's row, its record, and the last batch that
    read it; heat and dirty (C,) int8; notes (4,); missing and evicted (N,): places to fill from the
    file, and the rows to write from there first, -1 for none; now, the batch's number.
    `notes[FULL]` is 1 if the batch has more rows than the cache; the remaining ids are then
    unchanged. Numbers are int32.
    """
    with kernel() as built:
        rows, places, room = extents(3)
        source, count = pointer("ids", dtype), scalar("count", "int64")
        arrays = {"index": rows, "owner": places, "home": places, "used_in": places}
        a = SimpleNamespace(**{name: buffer(name, (n,), "int32") for name, n in arrays.items()})
        a.heat, a.dirty = (buffer(name, (places,), "int8") for name in ("heat", "dirty"))
        a.notes = buffer("notes", (NUM_NOTES,), "int32")
        a.missing, a.evicted = (buffer(name, (room,), "int32") for name in ("missing", "evicted"))
        a.now = scalar("now", "int32")
        ids = T.decl_buffer((count,), dtype, data=source)
        for note in (MISSES, FULL):
            T.buffer_store(a.notes, const(0, "int32"), [note])
        with T.serial(0, count) as n:
            later = tirx.Cast("int64", ids[tirx.min(n + _AHEAD, count - 1)])
            Prefetch(write=False, near=3).line(a.index, [later])
            row = T.Bind(tirx.Cast("int32", ids[n]))
            place = counter(a.index[row])
            with T.If(place[0] < 0):
                with T.Then():
                    _bring_in(a, place, row)
                with T.Else():
                    _warm(a, place[0])
            with T.If(place[0] >= 0), T.Then():
                T.buffer_store(a.used_in, a.now, [place[0]])
                T.buffer_store(ids, tirx.Cast(dtype, place[0]), [n])
    return built.get()


def _warm(a: SimpleNamespace, place: Any) -> None:
    """Record that a row was read again, once per batch."""
    again = tirx.And(a.used_in[place] != a.now, a.heat[place] < const(_HOTTEST, "int8"))
    with T.If(again), T.Then():
        T.buffer_store(a.heat, a.heat[place] + const(1, "int8"), [place])


def _bring_in(a: SimpleNamespace, place: Any, row: Any) -> None:
    """Give a row a free or evicted place; `place` stays negative if there is none."""
    slot = T.Bind(const(-1, "int32") - place[0])
    with T.If(a.notes[USED] < tirx.Cast("int32", a.owner.shape[0])):
        with T.Then():
            put(place, a.notes[USED])
            T.buffer_store(a.notes, a.notes[USED] + 1, [USED])
            T.buffer_store(a.evicted, const(-1, "int32"), [a.notes[MISSES]])
        with T.Else():
            _evict(a, place)
    with T.If(place[0] < 0):
        with T.Then():
            T.buffer_store(a.notes, const(1, "int32"), [FULL])
        with T.Else():
            here = place[0]
            T.buffer_store(a.missing, here, [a.notes[MISSES]])
            T.buffer_store(a.notes, a.notes[MISSES] + 1, [MISSES])
            T.buffer_store(a.index, here, [row])
            T.buffer_store(a.owner, row, [here])
            T.buffer_store(a.home, slot, [here])
            for array in (a.heat, a.dirty):
                T.buffer_store(array, const(0, "int8"), [here])


def _evict(a: SimpleNamespace, place: Any) -> None:
    """Free a place; the evicted row is then in its record again."""
    tries, places = counter(), tirx.Cast("int32", a.owner.shape[0])
    with T.While(tirx.And(place[0] < 0, tries[0] < places * (_HOTTEST + 2))):
        hand = T.Bind(a.notes[HAND])
        T.buffer_store(a.notes, tirx.truncmod(hand + 1, places), [HAND])
        put(tries, tries[0] + 1)
        with T.If(a.used_in[hand] != a.now), T.Then(), T.If(a.heat[hand] > 0):
            with T.Then():
                T.buffer_store(a.heat, a.heat[hand] - const(1, "int8"), [hand])
            with T.Else():
                put(place, hand)
    with T.If(place[0] >= 0), T.Then():
        here, row = place[0], T.Bind(a.owner[place[0]])
        left = tirx.Select(a.dirty[here] != 0, row, const(-1, "int32"))
        T.buffer_store(a.evicted, left, [a.notes[MISSES]])
        T.buffer_store(a.index, const(-1, "int32") - a.home[here], [row])


def read_kernel() -> PrimFunc:
    """Read records of a file by their numbers.

    Arguments: the file's descriptor int32, slots (N,) int32, records (N, W) float32, and failed
    (1,) int32, which becomes 1 if a read fails.
    """
    with kernel() as built:
        entries, width = extents(2)
        descriptor = scalar("descriptor", "int32")
        slots = buffer("slots", (entries,), "int32")
        records = buffer("records", (entries, width), "float32")
        failed = buffer("failed", (1,), "int32")
        size = T.Bind(width * 4)
        with T.parallel(0, entries) as n:
            wanted = T.address_of(records[n, 0]), size, tirx.Cast("int64", slots[n]) * size
            read = T.Bind(tirx.call_extern("int64", "pread", descriptor, *wanted))
            with T.If(read != size), T.Then():
                T.buffer_store(failed, const(1, "int32"), [0])
    return built.get()


def ask_kernel() -> PrimFunc:
    """Ask the system to prefetch records, so that the disk reads many at once.

    Arguments: the file's descriptor int32, slots (N,) int32, and the bytes of a record.
    """
    with kernel() as built:
        (entries,) = extents(1)
        descriptor = scalar("descriptor", "int32")
        slots = buffer("slots", (entries,), "int32")
        size = scalar("size", "int64")
        with T.parallel(0, entries) as n:
            wanted = tirx.Cast("int64", slots[n]) * size, size, const(_WILL_NEED, "int32")
            T.evaluate(tirx.call_extern("int32", "posix_fadvise", descriptor, *wanted))
    return built.get()
