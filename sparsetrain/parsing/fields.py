# SPDX-License-Identifier: Apache-2.0
"""Kernel that reads the fields of delimited text as numbers.

In a column of keys a field is a decimal integer below 2**32 without sign or leading zeros, or
exactly 8 lower-case hex digits. In any other column it is a decimal integer that fits int32,
possibly with a minus sign or leading zeros. If a column holds anything else, the kernel flags it,
and the caller reads the column in a different way.

Lines are read in tiles that stay in a core's first-level cache: first the ends of all fields, by
searching 64 bytes at a time for delimiters, then the fields, column by column. Fields of up to 8
characters are read as one 64-bit number without branches, longer ones digit by digit. The kernel is
serial; callers read blocks of lines on several threads. Cost: two passes over the bytes, and 6 ns
per field of up to 8 characters on a core with 256-bit vectors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.kernels.builder import LINE_BYTES, buffer, extents, kernel, put, scalar
from sparsetrain.parsing.words import (
    LANES,
    ZERO,
    all_lanes,
    are_decimal,
    are_hex,
    behind_zeros,
    bind_lanes,
    cast,
    constant,
    hex_digits,
    int32,
    is_hex_alone,
    joined,
    same_bytes,
    uint64,
    variable,
    when,
)
from sparsetrain.runtime.compiling import host_kernel
from sparsetrain.runtime.tensors import as_numpy, as_tensor, empty, tensor_at, zeros
from sparsetrain.system.locks import with_builder_lock

# Flags of a column's contents. EIGHT: 8 digits that are both hexadecimal and decimal.
TEXT, HEX, EIGHT, DECIMAL = 1, 2, 4, 8
_NEWLINE, _RETURN, _QUOTE, _MINUS = 10, 13, 34, 45
_WORD = 64  # bytes that are searched together
_LIKELY = 16  # at most this many field ends in a word, in most texts
_TILE_FIELDS, _TILE_LINES = 2560, 64  # a tile has at least this many of both


def fields_kernel() -> PrimFunc:
    """Read every field of whole lines.

    Arguments: data (N,) uint8, N >= 8, ending in a newline; the delimiter and a byte that no line
    may hold; is_key (F,) int32; as scratch for tiles of L lines, ends (L F + 129,) int32, heads (L
    + 8,) uint64 and sizes (L + 8,) int64; values (F, R + 8) int32, valid (F, R + 8) uint8, found
    (F,) int32, to which flags are added; rows (1,) int64: the number of lines, or -1 if a line does
    not have F fields, or contains that byte or a carriage return. A newline in place of a delimiter
    is not detected.
    """
    with kernel("fields") as built:
        length, columns, capacity, room, lanes = extents(5)
        a = _Arguments(
            data=buffer("data", (length,), "uint8"),
            delimiter=scalar("delimiter", "int32"),
            refused=scalar("refused", "int32"),
            is_key=buffer("is_key", (columns,), "int32"),
            ends=buffer("ends", (room,), "int32"),
            heads=buffer("heads", (lanes,), "uint64"),
            sizes=buffer("sizes", (lanes,), "int64"),
            values=buffer("values", (columns, capacity), "int32"),
            valid=buffer("valid", (columns, capacity), "uint8"),
            found=buffer("found", (columns,), "int32"),
            rows=buffer("rows", (1,), "int64"),
        )
        most = T.Bind(lanes - LANES)  # lines of a tile
        at, row, regular = variable("int64"), variable("int64"), variable("bool", True)
        with T.While(tirx.And(regular[0], at[0] < length)):
            count = _find_ends(a, at[0], most * columns, regular)
            lines = T.Bind(tirx.min(count // columns, most))
            whole = tirx.And(lines > 0, tirx.Or(count >= most * columns, count % columns == 0))
            _require(regular, tirx.And(whole, row[0] + lines + LANES <= capacity))
            with T.serial(0, columns) as f, when(regular[0]):
                _read_column(a, _Tile(f, row[0], lines, variable("int32", a.found[f])), regular)
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
    heads: Any
    sizes: Any
    values: Any
    valid: Any
    found: Any
    rows: Any


class _Tile(NamedTuple):
    """A column of the lines of a tile."""

    column: Any
    row: Any  # the first
    lines: Any
    kind: Any  # the column's flags; reading adds to them


def _require(regular: Any, condition: Any) -> None:
    put(regular, tirx.And(regular[0], condition))


def _find_ends(a: _Arguments, begin: Any, wanted: Any, regular: Any) -> Any:
    """Write the position before the first field, and each field's end; return their number.

    At least `wanted` ends are found, or all that are left.
    """
    length = a.data.shape[0]
    T.buffer_store(a.ends, tirx.Cast("int32", begin - 1), [0])
    at, count = variable("int64", begin), variable("int64")
    with T.While(tirx.And(count[0] < wanted, at[0] + _WORD <= length)):
        bytes_ = T.Bind(a.data[tirx.Ramp(at[0], 1, _WORD)])
        _require(regular, (_where(bytes_, a.refused) | _where(bytes_, int32(_RETURN))) == uint64(0))
        ends = variable("uint64", _where(bytes_, a.delimiter) | _where(bytes_, int32(_NEWLINE)))
        found = T.Bind(tirx.Cast("int64", tirx.popcount(ends[0])))
        for k in range(
            _LIKELY
        ):  # after the last end it writes garbage, which the next 64 bytes overwrite
            _write_first(a, ends, at[0], count[0] + k)
        more = variable("int64", _LIKELY)
        with T.While(more[0] < found):
            _write_first(a, ends, at[0], count[0] + more[0])
            put(more, more[0] + 1)
        put(count, count[0] + found)
        put(at, at[0] + _WORD)
    with T.While(tirx.And(count[0] < wanted, at[0] < length)):
        byte = T.Bind(_byte(a, at[0]))
        _require(regular, tirx.And(byte != a.refused, byte != _RETURN))
        with when(tirx.Or(byte == a.delimiter, byte == _NEWLINE)):
            put(count, count[0] + 1)
            T.buffer_store(a.ends, tirx.Cast("int32", at[0]), [count[0]])
        put(at, at[0] + 1)
    return count[0]


def _where(bytes_: Any, byte: Any) -> Any:
    """Return a bit for each of 64 bytes, set if the byte equals `byte`; the first is the lowest."""
    same = bytes_ == tirx.Broadcast(tirx.Cast("uint8", byte), _WORD)
    return T.reinterpret("uint64", tirx.Cast(f"uint1x{_WORD}", same))


def _write_first(a: _Arguments, ends: Any, at: Any, count: Any) -> None:
    """Write the position of the lowest set bit and clear it; undefined if none is set."""
    below = T.Bind(ends[0] - uint64(1))
    place = at + tirx.Cast("int64", tirx.popcount(~ends[0] & below))
    T.buffer_store(a.ends, tirx.Cast("int32", place), [count + 1])
    put(ends, ends[0] & below)


def _read_column(a: _Arguments, tile: _Tile, regular: Any) -> None:
    """Read a column of a tile; fields of the last column must end with a newline."""
    columns = a.is_key.shape[0]
    _gather(a, tile)
    for is_key in (True, False):
        with when(a.is_key[tile.column] != 0 if is_key else a.is_key[tile.column] == 0):
            _read_values(a, tile, is_key)
    T.buffer_store(a.found, tile.kind[0], [tile.column])
    with when(tile.column == columns - 1), T.serial(0, tile.lines) as line:
        end = tirx.Cast("int64", a.ends[(line + 1) * columns])
        _require(regular, _byte(a, end) == _NEWLINE)


def _gather(a: _Arguments, tile: _Tile) -> None:
    """Write the size and the first 8 bytes of each field."""
    last = T.Bind(tirx.Cast("int32", a.data.shape[0]) - 8)
    with T.serial(0, tile.lines) as line:
        place = T.Bind(line * a.is_key.shape[0] + tile.column)
        begin = T.Bind(a.ends[place] + 1)
        first = T.Bind(tirx.min(begin, last))
        chars = T.reinterpret("uint64", a.data[tirx.Ramp(tirx.Cast("int64", first), 1, 8)])
        before = tirx.Cast("uint64", 8 * (begin - first))  # above 0 only at the end of the data
        T.buffer_store(a.heads, chars >> before, [line])
        T.buffer_store(a.sizes, tirx.Cast("int64", a.ends[place + 1] - begin), [line])
    none = constant(0, "int64", LANES)
    T.buffer_store(a.sizes, none, [tirx.Ramp(tile.lines, 1, LANES)])  # fills the last group


def _read_values(a: _Arguments, tile: _Tile, is_key: bool) -> None:
    """Read short fields, several at once, then the rest."""
    read, all_ = _hex_key if is_key else _short_number, all_lanes(LANES)
    kinds, left = variable("int32", 0, LANES), variable("int64", 0, LANES)
    with T.serial(0, (tile.lines + LANES - 1) // LANES) as group:
        line = tirx.Ramp(group * LANES, 1, LANES)
        to = [tile.column, tirx.Ramp(tile.row + group * LANES, 1, LANES)]
        size, chars = bind_lanes(a.sizes[line], "int64"), bind_lanes(a.heads[line], "uint64")
        value, flag, fits = read(chars, size, LANES)
        there, none = size != 0, constant(0, "int32", LANES)
        T.buffer_store(a.values, tirx.Select(tirx.And(fits, there), value, none), to)
        T.buffer_store(a.valid, cast("uint8", there, LANES), to)
        flag = tirx.Select(tirx.And(fits, there), flag, none)
        T.buffer_store(kinds, kinds[all_] | flag, [all_])
        lost = cast("int64", tirx.And(there, tirx.Not(fits)), LANES)
        T.buffer_store(left, left[all_] | lost, [all_])
    kind, are_left = tile.kind, variable("int64")
    for lane in range(LANES):
        put(kind, kind[0] | kinds[lane])
        put(are_left, are_left[0] | left[lane])
    # If the column holds text, the caller does not use its numbers.
    with (
        when(tirx.And(are_left[0] != 0, (kind[0] & TEXT) == 0)),
        T.serial(0, tile.lines) as line,
    ):
        size, chars = T.Bind(a.sizes[line]), T.Bind(a.heads[line])
        with when(tirx.And(size != 0, tirx.Not(read(chars, size, 1)[2]))):
            begin = T.Bind(tirx.Cast("int64", a.ends[line * a.is_key.shape[0] + tile.column]) + 1)
            value, fits = variable("int32"), variable("bool", False)
            if is_key:
                _read_short_key(chars, size, value, fits)
            with when(tirx.Not(fits[0])):
                _read_digits(a, begin, size, is_key, value, fits)
            T.buffer_store(a.values, value[0], [tile.column, tile.row + line])
            put(kind, kind[0] | tirx.Select(fits[0], int32(DECIMAL), int32(TEXT)))


def _hex_key(chars: Any, size: Any, lanes: int) -> tuple[Any, Any, Any]:
    """Return the number of 8 hex digits, its flag, and whether fields are of this form."""
    hex_, both = (constant(flag, "int32", lanes) for flag in (HEX, EIGHT))
    flag = tirx.Select(is_hex_alone(chars), hex_, both)
    value = cast("int32", joined(hex_digits(chars), 16, lanes), lanes)
    return value, flag, tirx.And(size == 8, are_hex(chars))


def _short_number(chars: Any, size: Any, lanes: int) -> tuple[Any, Any, Any]:
    """Return the number of at most 8 characters, its flag, and whether fields are of this form."""
    negative = tirx.And(size > 0, (chars & uint64(0xFF)) == uint64(_MINUS))
    digits = tirx.Select(negative, chars >> uint64(8), chars) ^ same_bytes(ZERO)
    count = bind_lanes(size - cast("int64", negative, lanes), "int64", lanes)
    digits = bind_lanes(behind_zeros(digits, count, lanes), "uint64", lanes)
    value = bind_lanes(cast("int32", joined(digits, 10, lanes), lanes), "int32", lanes)
    # -0 is left to the caller, as int32 has no -0. The number is undefined unless all bytes are
    # digits.
    signed = tirx.Or(tirx.Not(negative), digits != uint64(0))
    fits = tirx.And(tirx.And(count > 0, size <= 8), tirx.And(signed, are_decimal(digits)))
    return tirx.Select(negative, -value, value), constant(DECIMAL, "int32", lanes), fits


def _read_short_key(chars: Any, size: Any, value: Any, fits: Any) -> None:
    """Read a key of fewer than 8 digits."""
    plain = tirx.Or((chars & uint64(0xFF)) != uint64(ZERO), size == 1)
    digits = T.Bind(behind_zeros(chars ^ same_bytes(ZERO), size))
    put(value, tirx.Cast("int32", joined(digits, 10)))
    put(fits, tirx.And(tirx.And(size < 8, plain), are_decimal(digits)))


def _read_digits(a: _Arguments, begin: Any, size: Any, is_key: bool, value: Any, fits: Any) -> None:
    """Read a non-empty field digit by digit; the value is undefined if it is not a number."""
    negative = T.Bind(_byte(a, begin) == _MINUS)
    first = T.Bind(begin + tirx.Cast("int64", negative))
    count = T.Bind(size - tirx.Cast("int64", negative))
    number, are_digits = variable("uint64"), variable("bool", True)
    with T.serial(0, tirx.min(count, 10)) as place:  # 10 digits fit 64 bits
        byte = T.Bind(_byte(a, first + place))
        _require(are_digits, tirx.And(byte >= ZERO, byte <= ZERO + 9))
        put(number, number[0] * uint64(10) + tirx.Cast("uint64", byte & 15))
    if is_key:
        plain = tirx.And(tirx.Not(negative), tirx.Or(_byte(a, first) != ZERO, size == 1))
        allowed = tirx.And(plain, number[0] <= uint64(0xFFFFFFFF))
    else:
        signed = tirx.Or(tirx.Not(negative), number[0] > uint64(0))
        allowed = tirx.And(signed, number[0] <= uint64(0x7FFFFFFF))
    put(fits, tirx.And(tirx.And(are_digits[0], allowed), tirx.And(count > 0, count <= 10)))
    whole = T.Bind(tirx.Cast("int32", number[0]))
    put(value, tirx.Select(negative, -whole, whole))


def _byte(a: _Arguments, place: Any) -> Any:
    return tirx.Cast("int32", a.data[place])


_kernel = with_builder_lock(host_kernel("fields of text", fields_kernel))


class Fields(NamedTuple):
    """Fields of n lines by column: values (F, n) int32, valid (F, n) uint8, found (F,) int32.

    A key is its value's bits as uint32; where `valid` is 0, the field is empty. `found` holds each
    column's flags.
    """

    values: np.ndarray
    valid: np.ndarray
    found: np.ndarray


def read_fields(
    data: np.ndarray, lines: int, delimiter: str, quoted: bool, is_key: np.ndarray
) -> Fields | None:
    """Read the fields of text (N,) uint8, N < 2**31, with `lines` lines and a final newline.

    Return None if a line does not have as many fields as `is_key` (F,) bool, or contains a carriage
    return or, if fields may be `quoted`, a quote; or if there are fewer than 8 bytes.
    """
    if len(data) < 8:
        return None
    text = tensor_at(data) if data.ctypes.data % LINE_BYTES == 0 else as_tensor(data)
    columns = len(is_key)
    most = max(_TILE_LINES, _TILE_FIELDS // columns)
    ends = empty((most * columns + 2 * _WORD + 1,), "int32")
    heads, sizes = (empty((most + LANES,), dtype) for dtype in ("uint64", "int64"))
    values, valid = (empty((columns, lines + LANES), dtype) for dtype in ("int32", "uint8"))
    found, rows = zeros((columns,), "int32"), zeros((1,), "int64")
    bytes_ = ord(delimiter), _QUOTE if quoted else _RETURN
    _kernel()(
        text,
        *bytes_,
        as_tensor(is_key, "int32"),
        ends,
        heads,
        sizes,
        values,
        valid,
        found,
        rows,
    )
    read = Fields(as_numpy(values)[:, :lines], as_numpy(valid)[:, :lines], as_numpy(found))
    return read if as_numpy(rows)[0] == lines else None
