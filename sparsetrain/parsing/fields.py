# SPDX-License-Identifier: Apache-2.0
"""Numbers that the fields of delimited text spell, read by a kernel.

A key is a whole number below 2**32 as integers are written, or exactly 8 lower-case hex digits; any
other number is digits, maybe with a sign or leading zeros, that fit int32. Where a column holds
anything else, that is noted, and the caller reads the column otherwise.

Lines are read in tiles that stay in a core's first cache: first where each field ends, from the
delimiters among 64 bytes at once, then column by column what the fields spell. Up to 8 characters
are read as one number of 64 bits without a branch for each, longer fields digit by digit.

What is parallel: nothing; blocks of lines are read on several threads. Cost: two passes over the
bytes, 6 ns a field of up to 8 characters on a core with vectors of 256 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.kernels.builder import LINE_BYTES, buffer, extents, kernel, put, scalar
from sparsetrain.runtime.compiling import host_kernel
from sparsetrain.runtime.tensors import as_numpy, as_tensor, empty, tensor_at, zeros
from sparsetrain.system.locks import with_builder_lock

# What a column held. EIGHT: 8 digits that can be read as hexadecimal or as decimal.
TEXT, HEX, EIGHT, DECIMAL = 1, 2, 4, 8
_NEWLINE, _RETURN, _QUOTE, _MINUS, _ZERO = 10, 13, 34, 45, 48
_WORD = 64  # bytes that are searched at once
_LIKELY = 16  # of them, how many end a field in most texts
_LANES = 8  # fields that are read at once
_TILE_FIELDS, _TILE_LINES = 2560, 64  # a tile has at least so many of both


def fields_kernel() -> PrimFunc:
    """Read every field of whole lines.

    Arguments: data (N,) uint8, N >= 8, of which the last is a newline; the delimiter and another
    byte that no line may hold; is_key (F,) int32; to work with, for tiles of L lines, ends
    (L F + 129,) int32, eights (L + 8,) uint64 and sizes (L + 8,) int64; values (F, R + 8) int32,
    valid (F, R + 8) uint8, found (F,) int32, which is added to; rows (1,) int64: how many lines
    were read, -1 if one has not F fields, or that byte or a carriage return. A line with a newline
    in place of a delimiter is not noticed.
    """
    with kernel("fields") as built:
        length, columns, capacity, room, lanes = extents(5)
        a = _Arguments(
            data=buffer("data", (length,), "uint8"),
            delimiter=scalar("delimiter", "int32"),
            refused=scalar("refused", "int32"),
            is_key=buffer("is_key", (columns,), "int32"),
            ends=buffer("ends", (room,), "int32"),
            eights=buffer("eights", (lanes,), "uint64"),
            sizes=buffer("sizes", (lanes,), "int64"),
            values=buffer("values", (columns, capacity), "int32"),
            valid=buffer("valid", (columns, capacity), "uint8"),
            found=buffer("found", (columns,), "int32"),
            rows=buffer("rows", (1,), "int64"),
        )
        most = T.Bind(lanes - _LANES)  # lines of a tile
        at, row, regular = _variable("int64"), _variable("int64"), _variable("bool", True)
        with T.While(tirx.And(regular[0], at[0] < length)):
            count = _find_ends(a, at[0], most * columns, regular)
            lines = T.Bind(tirx.min(count // columns, most))
            whole = tirx.And(lines > 0, tirx.Or(count >= most * columns, count % columns == 0))
            _require(regular, tirx.And(whole, row[0] + lines + _LANES <= capacity))
            with T.serial(0, columns) as f, _when(regular[0]):
                _read_column(a, _Tile(f, row[0], lines, _variable("int32", a.found[f])), regular)
            put(row, row[0] + lines)
            put(at, tirx.Cast("int64", a.ends[lines * columns]) + 1)
        T.buffer_store(a.rows, tirx.Select(regular[0], row[0], const(-1, "int64")), [0])
    return built.get()


class _Arguments(NamedTuple):
    data: Any
    delimiter: Any
    refused: Any
    is_key: Any
    ends: Any
    eights: Any
    sizes: Any
    values: Any
    valid: Any
    found: Any
    rows: Any


class _Tile(NamedTuple):
    """A column of some lines."""

    column: Any
    row: Any  # the first
    lines: Any
    kind: Any  # flags of the column, which are added to


def _variable(dtype: str, value: Any = 0, lanes: int = 1) -> Any:
    variable = T.alloc_local((lanes,), dtype)
    T.buffer_store(variable, _constant(value, dtype, lanes), [_all(lanes)])
    return variable


def _require(regular: Any, condition: Any) -> None:
    put(regular, tirx.And(regular[0], condition))


@contextmanager
def _when(condition: Any) -> Iterator[None]:
    with T.If(condition), T.Then():
        yield


def _find_ends(a: _Arguments, begin: Any, wanted: Any, regular: Any) -> Any:
    """Write the byte before the first field and where fields end; return how many were found.

    They are as many as wanted, or somewhat more, or all that are left.
    """
    length = a.data.shape[0]
    T.buffer_store(a.ends, tirx.Cast("int32", begin - 1), [0])
    at, count = _variable("int64", begin), _variable("int64")
    with T.While(tirx.And(count[0] < wanted, at[0] + _WORD <= length)):
        bytes_ = T.Bind(a.data[tirx.Ramp(at[0], 1, _WORD)])
        _require(regular, (_where(bytes_, a.refused) | _where(bytes_, _number(_RETURN))) == _u64(0))
        ends = _variable("uint64", _where(bytes_, a.delimiter) | _where(bytes_, _number(_NEWLINE)))
        found = T.Bind(tirx.Cast("int64", tirx.popcount(ends[0])))
        for k in range(_LIKELY):  # behind the last one anything, which the next word overwrites
            _write_first(a, ends, at[0], count[0] + k)
        more = _variable("int64", _LIKELY)
        with T.While(more[0] < found):
            _write_first(a, ends, at[0], count[0] + more[0])
            put(more, more[0] + 1)
        put(count, count[0] + found)
        put(at, at[0] + _WORD)
    with T.While(tirx.And(count[0] < wanted, at[0] < length)):
        byte = T.Bind(_byte(a, at[0]))
        _require(regular, tirx.And(byte != a.refused, byte != _RETURN))
        with _when(tirx.Or(byte == a.delimiter, byte == _NEWLINE)):
            put(count, count[0] + 1)
            T.buffer_store(a.ends, tirx.Cast("int32", at[0]), [count[0]])
        put(at, at[0] + 1)
    return count[0]


def _where(bytes_: Any, byte: Any) -> Any:
    """A bit for each of 64 bytes that is this one; the first is the lowest."""
    same = bytes_ == tirx.Broadcast(tirx.Cast("uint8", byte), _WORD)
    return T.reinterpret("uint64", tirx.Cast(f"uint1x{_WORD}", same))


def _write_first(a: _Arguments, ends: Any, at: Any, count: Any) -> None:
    """Write where the lowest bit is, and clear it; without one, what is written is undefined."""
    below = T.Bind(ends[0] - _u64(1))
    place = at + tirx.Cast("int64", tirx.popcount(~ends[0] & below))
    T.buffer_store(a.ends, tirx.Cast("int32", place), [count + 1])
    put(ends, ends[0] & below)


def _read_column(a: _Arguments, tile: _Tile, regular: Any) -> None:
    """Read a column of a tile; the last one has to end the lines."""
    columns = a.is_key.shape[0]
    _gather(a, tile)
    for is_key in (True, False):
        with _when(a.is_key[tile.column] != 0 if is_key else a.is_key[tile.column] == 0):
            _read_values(a, tile, is_key)
    T.buffer_store(a.found, tile.kind[0], [tile.column])
    with _when(tile.column == columns - 1), T.serial(0, tile.lines) as line:
        end = tirx.Cast("int64", a.ends[(line + 1) * columns])
        _require(regular, _byte(a, end) == _NEWLINE)


def _gather(a: _Arguments, tile: _Tile) -> None:
    """Write the size of each field and the 8 bytes that it begins with."""
    last = T.Bind(tirx.Cast("int32", a.data.shape[0]) - 8)
    with T.serial(0, tile.lines) as line:
        place = T.Bind(line * a.is_key.shape[0] + tile.column)
        begin = T.Bind(a.ends[place] + 1)
        first = T.Bind(tirx.min(begin, last))
        eight = T.reinterpret("uint64", a.data[tirx.Ramp(tirx.Cast("int64", first), 1, 8)])
        before = tirx.Cast("uint64", 8 * (begin - first))  # none but at the end of the data
        T.buffer_store(a.eights, eight >> before, [line])
        T.buffer_store(a.sizes, tirx.Cast("int64", a.ends[place + 1] - begin), [line])
    none = _constant(0, "int64", _LANES)
    T.buffer_store(a.sizes, none, [tirx.Ramp(tile.lines, 1, _LANES)])  # fills the last group


def _read_values(a: _Arguments, tile: _Tile, is_key: bool) -> None:
    """Read short fields, several at once, then any others."""
    read, all_ = _hex_key if is_key else _short_number, _all(_LANES)
    kinds, left = _variable("int32", 0, _LANES), _variable("int64", 0, _LANES)
    with T.serial(0, (tile.lines + _LANES - 1) // _LANES) as group:
        line = tirx.Ramp(group * _LANES, 1, _LANES)
        to = [tile.column, tirx.Ramp(tile.row + group * _LANES, 1, _LANES)]
        size, eight = _kept(a.sizes[line], "int64"), _kept(a.eights[line], "uint64")
        value, flag, fits = read(eight, size, _LANES)
        there, none = size != 0, _constant(0, "int32", _LANES)
        T.buffer_store(a.values, tirx.Select(tirx.And(fits, there), value, none), to)
        T.buffer_store(a.valid, _cast("uint8", there, _LANES), to)
        flag = tirx.Select(tirx.And(fits, there), flag, none)
        T.buffer_store(kinds, kinds[all_] | flag, [all_])
        lost = _cast("int64", tirx.And(there, tirx.Not(fits)), _LANES)
        T.buffer_store(left, left[all_] | lost, [all_])
    kind, are_left = tile.kind, _variable("int64")
    for lane in range(_LANES):
        put(kind, kind[0] | kinds[lane])
        put(are_left, are_left[0] | left[lane])
    # Of a column that holds text, nobody asks for the rest.
    with (
        _when(tirx.And(are_left[0] != 0, (kind[0] & TEXT) == 0)),
        T.serial(0, tile.lines) as line,
    ):
        size, eight = T.Bind(a.sizes[line]), T.Bind(a.eights[line])
        with _when(tirx.And(size != 0, tirx.Not(read(eight, size, 1)[2]))):
            begin = T.Bind(tirx.Cast("int64", a.ends[line * a.is_key.shape[0] + tile.column]) + 1)
            value, fits = _variable("int32"), _variable("bool", False)
            if is_key:
                _read_short_key(eight, size, value, fits)
            with _when(tirx.Not(fits[0])):
                _read_digits(a, begin, size, is_key, value, fits)
            T.buffer_store(a.values, value[0], [tile.column, tile.row + line])
            put(kind, kind[0] | tirx.Select(fits[0], _number(DECIMAL), _number(TEXT)))


def _hex_key(eight: Any, size: Any, lanes: int) -> tuple[Any, Any, Any]:
    """The number of 8 hex digits, its flag, and whether fields are such."""
    hex_, both = (_constant(flag, "int32", lanes) for flag in (HEX, EIGHT))
    flag = tirx.Select(_is_hex_alone(eight), hex_, both)
    value = _cast("int32", _joined(_hex_digits(eight), 16, lanes), lanes)
    return value, flag, tirx.And(size == 8, _are_hex(eight))


def _short_number(eight: Any, size: Any, lanes: int) -> tuple[Any, Any, Any]:
    """The number of at most 8 characters, its flag, and whether fields are such."""
    negative = tirx.And(size > 0, (eight & _u64(0xFF)) == _u64(_MINUS))
    digits = tirx.Select(negative, eight >> _u64(8), eight) ^ _bytes(_ZERO)
    count = _kept(size - _cast("int64", negative, lanes), "int64", lanes)
    digits = _kept(_behind_zeros(digits, count, lanes), "uint64", lanes)
    value = _kept(_cast("int32", _joined(digits, 10, lanes), lanes), "int32", lanes)
    # -0 is not 0 to whoever divides. Digits are asked: of other bytes the number is undefined.
    signed = tirx.Or(tirx.Not(negative), digits != _u64(0))
    fits = tirx.And(tirx.And(count > 0, size <= 8), tirx.And(signed, _are_decimal(digits)))
    return tirx.Select(negative, -value, value), _constant(DECIMAL, "int32", lanes), fits


def _read_short_key(eight: Any, size: Any, value: Any, fits: Any) -> None:
    """Read a key of less than 8 digits."""
    plain = tirx.Or((eight & _u64(0xFF)) != _u64(_ZERO), size == 1)
    digits = T.Bind(_behind_zeros(eight ^ _bytes(_ZERO), size))
    put(value, tirx.Cast("int32", _joined(digits, 10)))
    put(fits, tirx.And(tirx.And(size < 8, plain), _are_decimal(digits)))


def _read_digits(a: _Arguments, begin: Any, size: Any, is_key: bool, value: Any, fits: Any) -> None:
    """Read a field, which is not empty, digit by digit; one that is not a number gets any value."""
    negative = T.Bind(_byte(a, begin) == _MINUS)
    first = T.Bind(begin + tirx.Cast("int64", negative))
    count = T.Bind(size - tirx.Cast("int64", negative))
    number, are_digits = _variable("uint64"), _variable("bool", True)
    with T.serial(0, tirx.min(count, 10)) as place:  # of 64 bits nothing is lost
        byte = T.Bind(_byte(a, first + place))
        _require(are_digits, tirx.And(byte >= _ZERO, byte <= _ZERO + 9))
        put(number, number[0] * _u64(10) + tirx.Cast("uint64", byte & 15))
    if is_key:
        plain = tirx.And(tirx.Not(negative), tirx.Or(_byte(a, first) != _ZERO, size == 1))
        allowed = tirx.And(plain, number[0] <= _u64(0xFFFFFFFF))
    else:
        signed = tirx.Or(tirx.Not(negative), number[0] > _u64(0))
        allowed = tirx.And(signed, number[0] <= _u64(0x7FFFFFFF))
    put(fits, tirx.And(tirx.And(are_digits[0], allowed), tirx.And(count > 0, count <= 10)))
    whole = T.Bind(tirx.Cast("int32", number[0]))
    put(value, tirx.Select(negative, -whole, whole))


def _byte(a: _Arguments, place: Any) -> Any:
    return tirx.Cast("int32", a.data[place])


def _number(value: int) -> Any:
    return const(value, "int32")


def _all(lanes: int) -> Any:
    return tirx.Ramp(0, 1, lanes) if lanes > 1 else 0


def _constant(value: Any, dtype: str, lanes: int) -> Any:
    number = const(value, dtype) if isinstance(value, int) else value
    return tirx.Broadcast(number, lanes) if lanes > 1 else number


def _cast(dtype: str, value: Any, lanes: int) -> Any:
    return tirx.Cast(f"{dtype}x{lanes}" if lanes > 1 else dtype, value)


def _kept(value: Any, dtype: str, lanes: int = _LANES) -> Any:
    """As `T.Bind`, which TVM's analyzer refuses of several numbers: they are stored in a local."""
    if lanes == 1:
        return T.Bind(value)
    variable = T.alloc_local((lanes,), dtype)
    T.buffer_store(variable, value, [_all(lanes)])
    return variable[_all(lanes)]


def _u64(number: int) -> Any:
    return const(number, "uint64")


def _bytes(byte: int) -> Any:
    """A number all of whose 8 bytes are the same."""
    return _u64(byte * 0x0101010101010101)


# A sum or difference of unsigned numbers that does not fit 64 bits is undefined in TVM's code, so
# bytes are added without their high bits.
def _at_least(eight: Any, byte: int) -> Any:
    """The high bit of each byte whose lower bits are at least so large."""
    return (eight & _bytes(0x7F)) + _bytes(0x80 - byte)


def _are_hex(eight: Any) -> Any:
    """Whether 8 bytes are lower-case hex digits."""
    digits = _at_least(eight, ord("0")) & ~_at_least(eight, ord("9") + 1)
    letters = _at_least(eight, ord("a")) & ~_at_least(eight, ord("f") + 1)
    return ((digits | letters) & ~eight & _bytes(0x80)) == _bytes(0x80)


def _is_hex_alone(eight: Any) -> Any:
    """Whether 8 hex digits are no decimal number: a letter is among them, or the first is 0."""
    letters = (eight & _bytes(0x40)) != _u64(0)
    return tirx.Or(letters, (eight & _u64(0xFF)) == _u64(_ZERO))


def _hex_digits(eight: Any) -> Any:
    """What 8 hex digits stand for, each a byte."""
    return (eight & _bytes(0x0F)) + ((eight >> _u64(6)) & _bytes(1)) * _u64(9)


def _are_decimal(digits: Any) -> Any:
    """Whether 8 bytes are below 10."""
    return ((digits | _at_least(digits, 10)) & _bytes(0x80)) == _u64(0)


def _behind_zeros(digits: Any, count: Any, lanes: int = 1) -> Any:
    """The first of 8 digits, so many, as the last of 8; the first is the lowest byte."""
    return digits << _cast("uint64", (64 - 8 * count) & 63, lanes)


def _joined(x: Any, base: int, lanes: int = 1) -> Any:
    """The number of 8 digits, each a byte: 4 of base**2, 2 of base**4, and one."""
    for bits, mask in ((8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF), (32, 0x00000000FFFFFFFF)):
        x = _kept((x * _u64(base) + (x >> _u64(bits))) & _u64(mask), "uint64", lanes)
        base *= base
    return x


_kernel = with_builder_lock(host_kernel("fields of text", fields_kernel))


class Fields(NamedTuple):
    """Fields of n lines, by column: values (F, n) int32, valid (F, n) uint8, found (F,) int32.

    A key is the uint32 of its value's bits; where `valid` is 0 the field is empty. `found` are the
    flags of this module.
    """

    values: np.ndarray
    valid: np.ndarray
    found: np.ndarray


def read_fields(
    data: np.ndarray, lines: int, delimiter: str, quoted: bool, is_key: np.ndarray
) -> Fields | None:
    """Read the fields of (N,) uint8, N < 2**31, which are so many lines and end with a newline.

    None if one of them has not as many fields as `is_key` (F,) bool, or has a carriage return or,
    where fields may be `quoted`, a quote; or if there are less than 8 bytes.
    """
    if len(data) < 8:
        return None
    text = tensor_at(data) if data.ctypes.data % LINE_BYTES == 0 else as_tensor(data)
    columns = len(is_key)
    most = max(_TILE_LINES, _TILE_FIELDS // columns)
    ends = empty((most * columns + 2 * _WORD + 1,), "int32")
    eights, sizes = (empty((most + _LANES,), dtype) for dtype in ("uint64", "int64"))
    values, valid = (empty((columns, lines + _LANES), dtype) for dtype in ("int32", "uint8"))
    found, rows = zeros((columns,), "int32"), zeros((1,), "int64")
    bytes_ = ord(delimiter), _QUOTE if quoted else _RETURN
    _kernel()(
        text, *bytes_, as_tensor(is_key, "int32"), ends, eights, sizes, values, valid, found, rows
    )
    read = Fields(as_numpy(values)[:, :lines], as_numpy(valid)[:, :lines], as_numpy(found))
    return read if as_numpy(rows)[0] == lines else None
