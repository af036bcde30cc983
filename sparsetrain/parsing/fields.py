# SPDX-License-Identifier: Apache-2.0
"""Numbers that the fields of delimited text spell, read by a kernel.

A key is a whole number below 2**32 as integers are written, or exactly 8 lower-case hex digits; any
other number is digits, maybe with a sign or leading zeros, that fit int32. Where a column holds
anything else, that is noted, and the caller reads the column otherwise.

What is parallel: nothing; blocks of lines are read on several threads. Cost: one pass over the
bytes; up to 8 of them are read as one number of 64 bits, longer fields digit by digit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.kernels.builder import LINE_BYTES, buffer, extents, kernel, scalar
from sparsetrain.runtime.compiling import host_kernel
from sparsetrain.runtime.tensors import as_numpy, as_tensor, empty, tensor_at, zeros
from sparsetrain.system.locks import with_builder_lock

# What a column held. EIGHT: 8 digits that can be read as hexadecimal or as decimal.
TEXT, HEX, EIGHT, DECIMAL = 1, 2, 4, 8
_NEWLINE, _RETURN, _QUOTE, _MINUS, _ZERO = 10, 13, 34, 45, 48


def fields_kernel() -> PrimFunc:
    """Read every field of whole lines.

    Arguments: data (N,) uint8, of which the last is a newline; the delimiter, and the quote or -1;
    is_key (F,) int32; values (F, R) int32, valid (F, R) uint8, found (F,) int32, which is added to;
    rows (1,) int64: how many lines were read, -1 if one of them has not F fields, or a quote or a
    carriage return is in a field.
    """
    with kernel("fields") as built:
        length, columns, capacity = extents(3)
        a = _Arguments(
            data=buffer("data", (length,), "uint8"),
            delimiter=scalar("delimiter", "int32"),
            quote=scalar("quote", "int32"),
            is_key=buffer("is_key", (columns,), "int32"),
            values=buffer("values", (columns, capacity), "int32"),
            valid=buffer("valid", (columns, capacity), "uint8"),
            found=buffer("found", (columns,), "int32"),
            rows=buffer("rows", (1,), "int64"),
        )
        at, row, regular = _variable("int64"), _variable("int64"), _variable("bool", True)
        with T.While(tirx.And(regular[0], at[0] < length)):
            with T.serial(0, columns) as f, _when(regular[0]):
                _read_field(a, f, row[0], at, regular)
                last = f == columns - 1
                end = _byte(a, at[0] - 1)
                ended = end == tirx.Select(last, const(_NEWLINE, "int32"), a.delimiter)
                _set(regular, tirx.And(regular[0], ended))
            _set(row, row[0] + 1)
        T.buffer_store(a.rows, tirx.Select(regular[0], row[0], const(-1, "int64")), [0])
    return built.get()


class _Arguments(NamedTuple):
    data: Any
    delimiter: Any
    quote: Any
    is_key: Any
    values: Any
    valid: Any
    found: Any
    rows: Any


def _variable(dtype: str, value: Any = 0) -> Any:
    variable = T.alloc_local((1,), dtype)
    _set(variable, const(value, dtype) if isinstance(value, int) else value)
    return variable


def _set(variable: Any, value: Any) -> None:
    T.buffer_store(variable, value, [0])


@contextmanager
def _when(condition: Any) -> Iterator[None]:
    with T.If(condition), T.Then():
        yield


def _byte(a: _Arguments, place: Any) -> Any:
    return tirx.Cast("int32", a.data[place])


def _is_end(a: _Arguments, byte: Any) -> Any:
    return tirx.Or(byte == a.delimiter, byte == _NEWLINE)


def _read_field(a: _Arguments, f: Any, row: Any, at: Any, regular: Any) -> None:
    """Read the field that begins at a place; go behind the byte that ends it."""
    done = _variable("bool", _is_end(a, _byte(a, at[0])))
    with _when(done[0]):
        _store(a, f, row, const(0, "int32"), const(0, "uint8"), const(0, "int32"))
        _set(at, at[0] + 1)
    with _when(tirx.And(tirx.Not(done[0]), at[0] + 8 < a.data.shape[0])):
        eight = T.Bind(T.reinterpret("uint64", a.data[tirx.Ramp(at[0], 1, 8)]))
        with _when(a.is_key[f] != 0):
            ends = _is_end(a, _byte(a, at[0] + 8))
            with _when(tirx.And(ends, _are_hex(eight))):
                kind = tirx.Select(_is_hex_alone(eight), const(HEX, "int32"), const(EIGHT, "int32"))
                _store(a, f, row, _hex_value(eight), const(1, "uint8"), kind)
                _set(at, at[0] + 9)
                _set(done, const(True, "bool"))
        with _when(tirx.Not(done[0])):
            _read_short(a, f, row, at, eight, done)
    with _when(tirx.Not(done[0])):
        _read_digits(a, f, row, at, regular)


def _store(a: _Arguments, f: Any, row: Any, value: Any, valid: Any, kind: Any) -> None:
    T.buffer_store(a.values, tirx.Cast("int32", value), [f, row])
    T.buffer_store(a.valid, valid, [f, row])
    T.buffer_store(a.found, a.found[f] | kind, [f])


def _read_short(a: _Arguments, f: Any, row: Any, at: Any, eight: Any, done: Any) -> None:
    """Read a number of at most 7 characters without a branch for each."""
    negative = T.Bind((eight & _u64(0xFF)) == _u64(_MINUS))
    digits = T.Bind(tirx.Select(negative, eight >> _u64(8), eight) ^ _bytes(_ZERO))
    others = T.Bind((digits | (_low(digits) + _bytes(0x80 - 10))) & _bytes(0x80))
    with _when(others != _u64(0)):
        below_first = (others & (~others + _u64(1))) - _u64(1)
        size = T.Bind(tirx.Cast("int64", tirx.popcount(below_first)) >> 3)
        end = T.Bind(at[0] + size + tirx.Cast("int64", negative))
        # Behind zeros: the first of 8 digits is the lowest byte.
        shift = tirx.Cast("uint64", (64 - 8 * size) & 63)
        value = T.Bind(_decimal_value(digits << shift))
        plain = tirx.Or((digits & _u64(0xFF)) != _u64(0), size == 1)
        is_key = tirx.And(tirx.Not(negative), plain)
        is_number = tirx.Or(tirx.Not(negative), value > _u64(0))  # -0 is not 0 to whoever divides
        fits = tirx.And(size > 0, tirx.Select(a.is_key[f] != 0, is_key, is_number))
        with _when(tirx.And(fits, _is_end(a, _byte(a, end)))):
            number = tirx.Cast("int32", value)
            value = tirx.Select(negative, -number, number)
            _store(a, f, row, value, const(1, "uint8"), const(DECIMAL, "int32"))
            _set(at, end + 1)
            _set(done, const(True, "bool"))


def _read_digits(a: _Arguments, f: Any, row: Any, at: Any, regular: Any) -> None:
    """Read a field, which is not empty, digit by digit; one that is not a number gets any value."""
    negative = T.Bind(_byte(a, at[0]) == _MINUS)
    _set(at, at[0] + tirx.Cast("int64", negative))
    first, begin = T.Bind(_byte(a, at[0])), T.Bind(at[0])
    value, digits, byte = _variable("uint64"), _variable("bool", True), _variable("int32", first)
    with T.While(tirx.Not(_is_end(a, byte[0]))):
        digit = T.Bind(byte[0] - _ZERO)
        _set(digits, tirx.And(digits[0], tirx.And(digit >= 0, digit <= 9)))
        other = tirx.Or(byte[0] == _RETURN, byte[0] == a.quote)
        _set(regular, tirx.And(regular[0], tirx.Not(other)))
        _set(value, value[0] * _u64(10) + tirx.Cast("uint64", digit))
        _set(at, at[0] + 1)
        _set(byte, _byte(a, at[0]))
    size = T.Bind(at[0] - begin)
    _set(at, at[0] + 1)
    short = tirx.And(tirx.And(digits[0], size > 0), size <= 10)  # of 64 bits nothing is lost
    plain = tirx.And(tirx.Not(negative), tirx.Or(first != _ZERO, size == 1))
    is_key = tirx.And(plain, value[0] <= _u64(0xFFFFFFFF))
    signed = tirx.Or(tirx.Not(negative), value[0] > _u64(0))
    is_number = tirx.And(signed, value[0] <= _u64(0x7FFFFFFF))
    fits = tirx.And(short, tirx.Select(a.is_key[f] != 0, is_key, is_number))
    number = tirx.Cast("int32", value[0])
    kind = tirx.Select(fits, const(DECIMAL, "int32"), const(TEXT, "int32"))
    _store(a, f, row, tirx.Select(negative, -number, number), const(1, "uint8"), kind)


def _u64(number: int) -> Any:
    return const(number, "uint64")


def _bytes(byte: int) -> Any:
    """A number all of whose 8 bytes are the same."""
    return _u64(byte * 0x0101010101010101)


# A sum or difference of unsigned numbers that does not fit 64 bits is undefined in TVM's code, so
# bytes are added without their high bits.
def _low(eight: Any) -> Any:
    return eight & _bytes(0x7F)


def _at_least(eight: Any, byte: int) -> Any:
    """The high bit of each byte whose lower bits are at least so large."""
    return _low(eight) + _bytes(0x80 - byte)


def _are_hex(eight: Any) -> Any:
    """Whether 8 bytes are lower-case hex digits."""
    digits = _at_least(eight, ord("0")) & ~_at_least(eight, ord("9") + 1)
    letters = _at_least(eight, ord("a")) & ~_at_least(eight, ord("f") + 1)
    return ((digits | letters) & ~eight & _bytes(0x80)) == _bytes(0x80)


def _is_hex_alone(eight: Any) -> Any:
    """Whether 8 hex digits are not decimal number: a letter is among them, or the first is 0."""
    letters = (eight & _bytes(0x40)) != _u64(0)
    return tirx.Or(letters, (eight & _u64(0xFF)) == _u64(_ZERO))


def _hex_value(eight: Any) -> Any:
    """The number that 8 hex digits spell; the first is the lowest byte."""
    x = (eight & _bytes(0x0F)) + ((eight >> _u64(6)) & _bytes(1)) * _u64(9)
    return _joined(x, 16)


def _decimal_value(digits: Any) -> Any:
    """The number of 8 decimal digits, each a byte of 0 to 9; the first is the lowest byte."""
    return _joined(digits, 10)


def _joined(x: Any, base: int) -> Any:
    """Join 8 digits: to 4 of base**2, 2 of base**4, and one number."""
    for bits, mask in ((8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF), (32, 0x00000000FFFFFFFF)):
        x = T.Bind((x * _u64(base) + (x >> _u64(bits))) & _u64(mask))
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
    """Read the fields of (N,) uint8, which are so many lines and end with a newline.

    None if one of them has not as many fields as `is_key` (F,) bool, or has a carriage return or,
    where fields may be `quoted`, a quote.
    """
    text = tensor_at(data) if data.ctypes.data % LINE_BYTES == 0 else as_tensor(data)
    columns = len(is_key)
    values, valid = empty((columns, lines), "int32"), empty((columns, lines), "uint8")
    found, rows = zeros((columns,), "int32"), zeros((1,), "int64")
    bytes_ = ord(delimiter), _QUOTE if quoted else -1
    _kernel()(text, *bytes_, as_tensor(is_key, "int32"), values, valid, found, rows)
    read = Fields(*map(as_numpy, (values, valid, found)))
    return read if as_numpy(rows)[0] >= 0 else None
