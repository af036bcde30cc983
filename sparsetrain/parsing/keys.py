# SPDX-License-Identifier: Apache-2.0
"""The key kernel: turns text or a number into a 64-bit key, and a key into the id of a row.

Every conversion of a value to an id runs this code: for frames, files, requests and, in an exported
folder, C. `identity` defines which values are equal.

Ids are found by linear probing in three hash tables: for numbers below 2**32 (with slots of 8
bytes), for larger numbers, and for texts. The tables of all columns share one memory, so one call
can look up values of several columns. Texts are read in tiles: first all keys, then all slots, so
that cache misses overlap. The kernel is serial; callers encode blocks and requests on several
threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.kernels.builder import buffer, extents, kernel, put
from sparsetrain.parsing.identity import (
    ABSENT,
    HEX,
    HEXADECIMAL,
    KINDS,
    LOOSE,
    MISSING,
    NUMBER,
    OTHER,
    TEXT,
    UNSEEN,
)
from sparsetrain.parsing.words import (
    ZERO,
    are_decimal,
    are_hex,
    behind_zeros,
    hex_digits,
    int32,
    joined,
    same_bytes,
    uint64,
    variable,
    when,
)

GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: spreads both dense and random keys
_TILE = 128
_LOW, _MOST = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
_MINUS, _POINT = ord("-"), ord(".")
_BOOLEANS = {b"true": 1, b"True": 1, b"TRUE": 1, b"false": 0, b"False": 0, b"FALSE": 0}


class _Tables(NamedTuple):
    """Hash tables. The first slot of each is empty, for columns without such keys."""

    columns: Any  # (C, FIELDS) int64
    short: Any  # (S,) uint64: a key (upper 32 bits) and its id
    long: Any  # (L, 2) int64: a key, its id
    text: Any  # (M, 2) int64: position of the text in the pool; its hash (upper bits) and id
    pool: Any  # (P,) uint8: 4 bytes of length before each text


class _Texts(NamedTuple):
    data: Any
    offsets: Any
    missing: Any


def keys_kernel(offset: str) -> PrimFunc:
    """Return the kernel that finds the key and form of each text, for a column of any kind.

    Arguments: data (N,) uint8, N >= 8; offsets (n + 1,) of type `offset`; missing (n,) uint8; keys
    (n,) int64; the form of each (n,) uint8.
    """
    with kernel("keys") as built:
        texts, count = _text_arguments(offset)
        keys, what = buffer("keys", (count,), "int64"), buffer("what", (count,), "uint8")
        with T.serial(0, count) as i:
            begin, size = _text(texts, i)
            found = _Key.absent()
            with when(size > 0):
                _read(texts.data, begin, size, const(True, "bool"), found)
            T.buffer_store(keys, found.key[0], [i])
            T.buffer_store(what, tirx.Cast("uint8", found.what[0]), [i])
    return built.get()


def hashes_kernel(offset: str) -> PrimFunc:
    """Return the kernel that hashes texts; arguments are as in `keys_kernel`, without the last."""
    with kernel("hashes") as built:
        texts, count = _text_arguments(offset)
        hashes = buffer("hashes", (count,), "int64")
        with T.serial(0, count) as i:
            begin, size = _text(texts, i)
            T.buffer_store(hashes, _hash(texts.data, begin, size), [i])
    return built.get()


def text_ids_kernel(offset: str, turns: bool = True) -> PrimFunc:
    """Return the kernel that finds the id of each text.

    Arguments: data (N,) uint8, N >= 8; offsets (n + 1,) of type `offset`; missing (n,) uint8;
    column_ids (m,) int32: the columns of successive values, repeated cyclically, or one column
    without `turns`; the five arrays of `_Tables`; ids (n,) int32.
    """
    with kernel("text_ids") as built:
        texts, count = _text_arguments(offset)
        column_ids, tables = _table_arguments()
        ids = buffer("ids", (count,), "int32")
        keys, whats = T.alloc_local((_TILE,), "int64"), T.alloc_local((_TILE,), "int32")
        read_column, next_column = (_columns(column_ids, tables, turns) for _ in range(2))
        with T.serial(0, (count + _TILE - 1) // _TILE) as tile:
            first = T.Bind(tile * _TILE)
            rows = T.Bind(tirx.min(count - first, const(_TILE, "int64")))
            with T.serial(0, rows) as j:
                begin, size = _text(texts, first + j)
                kind = read_column().kind
                found = _Key.absent()
                with when(size > 0):
                    _read(texts.data, begin, size, _is(kind, HEXADECIMAL), found)
                    with when(tirx.And(_is(kind, TEXT), found.what[0] == LOOSE)):
                        found.put(_hash(texts.data, begin, size), OTHER)
                T.buffer_store(keys, found.key[0], [j])
                T.buffer_store(whats, _sought(kind, found.what[0]), [j])
            with T.serial(0, rows) as j:
                column, what = next_column(), T.Bind(whats[j])
                id_ = variable("int32", tirx.Select(what == ABSENT, int32(MISSING), int32(UNSEEN)))
                with when(what == NUMBER):
                    _find_number(tables, column, keys[j], id_)
                with when(what == OTHER):
                    begin, size = _text(texts, first + j)
                    _find_text(tables, column, keys[j], (texts.data, begin, size), id_)
                T.buffer_store(ids, id_[0], [first + j])
    return built.get()


def _is(number: Any, kind: str) -> Any:
    return number == KINDS.index(kind)


def _sought(kind: Any, what: Any) -> Any:
    """Return the form to look up in a column of this kind: a number, a text, or neither."""
    is_number = tirx.And(what != ABSENT, what != OTHER)
    text = tirx.Select(_is(kind, TEXT), int32(OTHER), int32(LOOSE))
    neither = tirx.Select(what == ABSENT, int32(ABSENT), text)
    return tirx.Select(is_number, int32(NUMBER), neither)


def number_ids_kernel(dtype: str, turns: bool = True) -> PrimFunc:
    """Return the kernel that finds the id of each number.

    Arguments: numbers (n,) of integer type `dtype`; missing (n,) uint8; column_ids (m,) int32: the
    columns of successive values, repeated cyclically, or one column without `turns`; the five
    arrays of `_Tables`; ids (n,) int32.
    """
    with kernel("number_ids") as built:
        (count,) = extents(1)
        numbers = buffer("numbers", (count,), dtype)
        missing = buffer("missing", (count,), "uint8")
        column_ids, tables = _table_arguments()
        ids, next_column = buffer("ids", (count,), "int32"), _columns(column_ids, tables, turns)
        with T.serial(0, count) as i:
            column, id_ = next_column(), variable("int32", MISSING)
            with when(missing[i] == const(0, "uint8")):
                _find_number(tables, column, T.Bind(tirx.Cast("int64", numbers[i])), id_)
            T.buffer_store(ids, id_[0], [i])
    return built.get()


def _text_arguments(offset: str) -> tuple[_Texts, Any]:
    length, count = extents(2)
    data, offsets = buffer("data", (length,), "uint8"), buffer("offsets", (count + 1,), offset)
    return _Texts(data, offsets, buffer("missing", (count,), "uint8")), count


def _table_arguments() -> tuple[Any, _Tables]:
    period, columns, short, long, text, pool = extents(6)
    return buffer("column_ids", (period,), "int32"), _Tables(
        buffer("columns", (columns, FIELDS), "int64"),
        buffer("short", (short,), "uint64"),
        buffer("long", (long, 2), "int64"),
        buffer("text", (text, 2), "int64"),
        buffer("pool", (pool,), "uint8"),
    )


class _Column(NamedTuple):
    """A row of `_Tables.columns`."""

    kind: Any
    short: Any  # first slot of the table, and log2 of its number of slots
    short_bits: Any
    long: Any
    long_bits: Any
    text: Any
    text_bits: Any


FIELDS = len(_Column._fields)


def _columns(column_ids: Any, tables: _Tables, turns: bool) -> Callable[[], _Column]:
    """Return a function that emits the column of the next value; a single column is read once."""

    def column(number: Any) -> _Column:
        return _Column(*(T.Bind(tables.columns[number, field]) for field in range(FIELDS)))

    if not turns:
        only = column(T.Bind(column_ids[0]))
        return lambda: only
    turn = variable("int64")

    def next_column() -> _Column:
        found = column(T.Bind(column_ids[turn[0]]))
        after = T.Bind(turn[0] + 1)
        put(turn, tirx.Select(after == column_ids.shape[0], const(0, "int64"), after))
        return found

    return next_column


class _Key(NamedTuple):
    """A key that is computed in steps, and the form of its value."""

    key: Any
    what: Any

    @classmethod
    def absent(cls) -> _Key:
        return cls(variable("int64"), variable("int32", ABSENT))

    def put(self, key: Any, what: Any) -> None:
        put(self.key, key)
        put(self.what, int32(what) if isinstance(what, int) else what)


def _text(texts: _Texts, i: Any) -> tuple[Any, Any]:
    """Return where a text begins, and its number of bytes; 0 if it is missing."""
    begin = T.Bind(tirx.Cast("int64", texts.offsets[i]))
    size = tirx.Cast("int64", texts.offsets[i + 1]) - begin
    there = texts.missing[i] == const(0, "uint8")
    return begin, T.Bind(tirx.Select(there, size, const(0, "int64")))


def _read(data: Any, begin: Any, size: Any, prefers_hex: Any, found: _Key) -> None:
    """Find the key of a non-empty text."""
    last = T.Bind(data.shape[0] - 8)
    first = T.Bind(tirx.min(begin, last))
    stored = T.reinterpret("uint64", data[tirx.Ramp(first, 1, 8)])
    chars = T.Bind(stored >> tirx.Cast("uint64", 8 * (begin - first)))
    digits = T.Bind(behind_zeros(chars ^ same_bytes(ZERO), size))
    with T.If(tirx.And(prefers_hex, tirx.And(size == 8, are_hex(chars)))):
        with T.Then():
            found.put(tirx.Cast("int64", joined(hex_digits(chars), 16)), HEX)
        with T.Else(), T.If(tirx.And(size <= 8, are_decimal(digits))):
            with T.Then():
                plain = tirx.Or(size == 1, (chars & uint64(0xFF)) != uint64(ZERO))
                number = tirx.Cast("int64", joined(digits, 10))
                found.put(number, tirx.Select(plain, int32(NUMBER), int32(LOOSE)))
            with T.Else():
                found.put(const(0, "int64"), OTHER)
                _read_number(data, begin, size, found)
                _read_boolean(chars, size, found)
                with when(found.what[0] == OTHER):
                    put(found.key, _hash(data, begin, size))


def _read_number(data: Any, begin: Any, size: Any, found: _Key) -> None:
    """Read a whole number byte by byte."""
    sign = T.Bind(tirx.Cast("int64", _byte(data, begin) == _MINUS))
    number, valid = variable("uint64"), variable("bool", True)
    at = variable("int64", sign)
    with T.While(tirx.And(tirx.And(valid[0], at[0] < size), _is_digit(_byte(data, begin + at[0])))):
        digit = T.Bind(tirx.Cast("uint64", _byte(data, begin + at[0]) & 15))
        fits = tirx.And(number[0] == uint64(_MOST // 10), digit <= uint64(_MOST % 10))
        with T.If(tirx.Or(number[0] < uint64(_MOST // 10), fits)):
            with T.Then():
                put(number, number[0] * uint64(10) + digit)
                put(at, at[0] + 1)
            with T.Else():
                put(valid, const(False, "bool"))
    end = T.Bind(at[0])
    with when(tirx.And(end < size, _byte(data, begin + end) == _POINT)):
        put(at, end + 1)
        with T.While(tirx.And(at[0] < size, _byte(data, begin + at[0]) == ZERO)):
            put(at, at[0] + 1)
        put(valid, tirx.And(valid[0], at[0] > end + 1))
    allowed = tirx.Or(sign == 0, number[0] <= uint64(1 << 63))
    whole = tirx.And(tirx.And(at[0] == size, end > sign), allowed)
    with when(tirx.And(valid[0], whole)):
        plain = tirx.Or(_byte(data, begin + sign) != ZERO, size == 1)
        what = tirx.Select(tirx.And(plain, end == size), int32(NUMBER), int32(LOOSE))
        found.put(tirx.Cast("int64", number[0]), what)
        with when(tirx.And(sign == 1, number[0] > uint64(0))):
            put(found.key, tirx.Cast("int64", ~(number[0] - uint64(1))))


def _read_boolean(chars: Any, size: Any, found: _Key) -> None:
    for word, value in _BOOLEANS.items():
        mask = uint64((1 << 8 * len(word)) - 1)
        same = (chars & mask) == uint64(int.from_bytes(word, "little"))
        with when(tirx.And(size == len(word), same)):
            found.put(const(value, "int64"), NUMBER)


def _byte(data: Any, place: Any) -> Any:
    """Return a byte; past the end an arbitrary one, as both sides of a condition are evaluated."""
    return tirx.Cast("int32", data[tirx.min(place, data.shape[0] - 1)])


def _is_digit(byte: Any) -> Any:
    return tirx.And(byte >= ZERO, byte <= ZERO + 9)


def _hash(data: Any, begin: Any, size: Any) -> Any:
    """Return a 32-bit hash that mixes in words of 4 bytes, then the remaining bytes."""
    value, words = variable("uint64", 1), T.Bind(size // 4)
    with T.serial(0, words) as at:
        word = T.reinterpret("uint32", data[tirx.Ramp(begin + 4 * at, 1, 4)])
        put(value, _mixed(value[0], word))
    with T.serial(4 * words, size) as at:
        put(value, _mixed(value[0], data[begin + at]))
    return tirx.Cast("int64", value[0])


def _mixed(value: Any, word: Any) -> Any:
    """Mix a word into 32 bits: the XOR of both halves of a product."""
    product = T.Bind((value ^ tirx.Cast("uint64", word)) * uint64(GOLDEN >> 32 | 1))
    return (product ^ (product >> uint64(32))) & uint64(_LOW)


def _slot(key: Any, bits: Any) -> Any:
    """Return the top `bits` bits of the key times `GOLDEN` modulo 2**64.

    The product is computed in halves, because overflow of 64 bits is undefined in TVM's code.
    """
    low, high = T.Bind(key & uint64(_LOW)), T.Bind(key >> uint64(32))
    carried = (low * uint64(GOLDEN & _LOW)) >> uint64(32)
    crossed = ((low * uint64(GOLDEN >> 32)) & uint64(_LOW)) + (
        (high * uint64(GOLDEN & _LOW)) & uint64(_LOW)
    )
    upper = (carried + crossed) & uint64(_LOW)
    return tirx.Cast("int64", upper >> tirx.Cast("uint64", 32 - bits))


def _find_number(tables: _Tables, column: _Column, number: Any, id_: Any) -> None:
    hexadecimal = _is(column.kind, HEXADECIMAL)
    wrapped = tirx.And(hexadecimal, tirx.And(number < 0, number >= -(1 << 31)))
    key = T.Bind(number + tirx.Select(wrapped, const(1 << 32, "int64"), const(0, "int64")))
    word = T.Bind(tirx.Cast("uint64", key))
    with T.If((word >> uint64(32)) == uint64(0)):
        with T.Then():
            _probe_short(tables, column, word, id_)
        with T.Else():
            start, bits = column.long, column.long_bits
            place = variable("int64", _slot(word, bits))
            slots, at = tables.long, variable("int64", start + place[0])
            with T.While(tirx.And(slots[at[0], 1] != 0, slots[at[0], 0] != key)):
                put(place, (place[0] + 1) & ((const(1, "int64") << bits) - 1))
                put(at, start + place[0])
            put(id_, _or_unseen(tirx.Cast("int32", slots[at[0], 1])))


def _probe_short(tables: _Tables, column: _Column, key: Any, id_: Any) -> None:
    start, bits = column.short, column.short_bits
    place = variable("int64", _slot(key, bits))
    word = variable("uint64", tables.short[start + place[0]])
    is_other = (word[0] >> uint64(32)) != key
    with T.While(tirx.And((word[0] & uint64(_LOW)) != uint64(0), is_other)):
        put(place, (place[0] + 1) & ((const(1, "int64") << bits) - 1))
        put(word, tables.short[start + place[0]])
    put(id_, _or_unseen(tirx.Cast("int32", word[0] & uint64(_LOW))))


def _find_text(
    tables: _Tables, column: _Column, sought: Any, text: tuple[Any, Any, Any], id_: Any
) -> None:
    start, bits = column.text, column.text_bits
    hash_ = T.Bind(tirx.Cast("uint64", sought))
    place = variable("int64", _slot(hash_, bits))
    slots, at, same = tables.text, variable("int64", start + place[0]), variable("bool", False)
    with T.While(tirx.And(slots[at[0], 1] != 0, tirx.Not(same[0]))):
        with when((tirx.Cast("uint64", slots[at[0], 1]) >> uint64(32)) == hash_):
            put(same, _is_same(tables.pool, slots[at[0], 0], *text))
        with when(tirx.Not(same[0])):
            put(place, (place[0] + 1) & ((const(1, "int64") << bits) - 1))
            put(at, start + place[0])
    put(id_, _or_unseen(tirx.Cast("int32", slots[at[0], 1] & const(_LOW, "int64"))))


def _is_same(pool: Any, at: Any, data: Any, begin: Any, size: Any) -> Any:
    """Whether a text in the pool has the same bytes."""
    known = T.Bind(tirx.Cast("int64", T.reinterpret("uint32", pool[tirx.Ramp(at, 1, 4)])))
    equal, k = variable("bool", known == size), variable("int64")
    with T.While(tirx.And(equal[0], k[0] + 8 <= size)):
        one, other = (
            T.reinterpret("uint64", bytes_[tirx.Ramp(first + k[0], 1, 8)])
            for bytes_, first in ((pool, at + 4), (data, begin))
        )
        put(equal, one == other)
        put(k, k[0] + 8)
    with T.While(tirx.And(equal[0], k[0] < size)):
        put(equal, pool[at + 4 + k[0]] == data[begin + k[0]])
        put(k, k[0] + 1)
    return equal[0]


def _or_unseen(id_: Any) -> Any:
    """Return the id of a slot, or `UNSEEN` if it is empty."""
    kept = T.Bind(id_)
    return tirx.Select(kept == 0, int32(UNSEEN), kept)
