# SPDX-License-Identifier: Apache-2.0
"""Derived columns, computed from other columns by a rule of `RULES` each.

- ``(source // divide) % modulo``, rounded down, gives the hour of a day from YYMMDDHH (modulo 100),
  the weekday from seconds since 1970 (divide 86400, modulo 7), and so on. A date or timestamp
  counts as those seconds.
- ``boundaries``, ``quantiles`` and ``log`` put numbers into buckets, which are categories then;
  before its boundaries are learnt, a column of quantiles is one bucket.
- ``separator`` cuts text into a list.
- ``cross`` makes a category of a pair of columns of whole numbers or text, by a hash of both.

Missing values stay missing; so does NaN.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparsetrain.data.ragged import offsets_of
from sparsetrain.data.read.source import Part, with_numbers
from sparsetrain.data.schema.derived import Derived
from sparsetrain.data.values import arrow_types
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import require_utf8
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.numeric import (
    EXACT,
    NanRule,
    exact_integers,
    fill_nulls,
    read_numbers,
    to_microseconds,
)

_LARGEST = np.iinfo(np.int64).max


def with_derived(part: Part, derived: Mapping[str, Derived]) -> Part:
    """Return a part that has the derived columns too."""
    for name, rule in derived.items():
        check_sources(part, name, rule)
    made = (pa.field(name, RULES[rule.kind].type) for name, rule in derived.items())
    schema = pa.schema([*part.schema, *made])
    return replace(part, schema=schema, read=partial(_read, part, derived), ranges=None)


def check_sources(part: Part, name: str, rule: Derived) -> None:
    """Refuse data without the columns that a derived one is made of, or with one of its name."""
    location = Location(part.location.name, column=name)
    if name in part.schema.names:
        raise location.error("the data has a column of this name; call the derived one otherwise")
    for source in rule.sources:
        if source not in part.schema.names:
            raise location.error(f"it is derived from {source}, which is missing")


def _read(
    part: Part, derived: Mapping[str, Derived], names: Sequence[str], coded: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    for location, piece in part.pieces(stored_names(names, derived, part.schema.names)):
        made = derive_columns(piece, derived, names, location)
        yield made if location.numbers is None else with_numbers(made, location.numbers)


def stored_names(
    names: Sequence[str], derived: Mapping[str, Derived], there: Sequence[str]
) -> list[str]:
    """Return the columns to read for these, of data in which those are `there`."""
    made = {name: rule for name, rule in derived.items() if name in names and name not in there}
    sources = (source for rule in made.values() for source in rule.sources)
    return list(dict.fromkeys([*(name for name in names if name not in made), *sources]))


def derive_columns(
    piece: pa.RecordBatch,
    derived: Mapping[str, Derived],
    names: Sequence[str],
    location: Location,
) -> pa.RecordBatch:
    """Return columns of a piece, the derived ones that it lacks among them."""
    there = {*piece.schema.names}
    arrays = [
        piece.column(name) if name in there else derived_column(piece, derived[name], location)
        for name in names
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[*names])


def derived_column(piece: pa.RecordBatch, rule: Derived, location: Location) -> pa.Array:
    """Return a rule's result for columns of a piece."""
    return RULES[rule.kind].make(rule, *_sources(piece, rule, location))


def numbers_of(rule: Derived, piece: pa.RecordBatch, location: Location) -> Array:
    """Return the numbers that a rule puts into buckets, (n,) float64, without missing ones."""
    ((array, here),) = _sources(piece, rule, location)
    values, missing = read_numbers(array, NanRule("missing"), here)
    return values[~missing]


Column = tuple[pa.Array, Location]


def _sources(piece: pa.RecordBatch, rule: Derived, location: Location) -> list[Column]:
    columns = [(piece.column(name), location.of_column(name)) for name in rule.sources]
    made = RULES[rule.kind]
    for array, here in columns if made.kinds else ():
        is_bool = pa.types.is_boolean(array.type)
        if is_bool or arrow_types.kind_of(array.type) not in (*made.kinds, arrow_types.EMPTY):
            raise here.error(f"type {array.type} is not for {rule.kind!r}: {made.takes}")
    return columns


def _arithmetic(rule: Derived, column: Column) -> pa.Array:
    values, missing = _integers(*column)
    result = derive(values, rule)
    column[1].refuse(
        result > _LARGEST,
        lambda row: f"{result[row]} is beyond int64, which a derived column holds",
    )
    return pa.array(result.astype(np.int64), pa.int64(), mask=missing)


def derive(values: Array, rule: Derived) -> Array:
    """Return the quotient and remainder of integers (n,)."""
    quotient = values // rule.divide
    return quotient if rule.modulo is None else quotient % rule.modulo


def _integers(array: pa.Array, location: Location) -> tuple[Array, Array]:
    moments = to_microseconds(array, location)
    if moments is not None:
        microseconds, missing = fill_nulls(moments)
        return microseconds // 1_000_000, missing
    whole = exact_integers(array)
    if whole is not None:
        return whole
    values, missing = read_numbers(array, NanRule("missing"), location)
    odd = (values != np.trunc(values)) | (np.abs(values) >= EXACT)
    location.refuse(
        odd, lambda row: f"{values[row]} is not a whole number, which a derived column needs"
    )
    return values.astype(np.int64), missing


def _bucketed(rule: Derived, column: Column) -> pa.Array:
    """How many of the boundaries are not above a number."""
    values, missing = read_numbers(column[0], NanRule("missing"), column[1])
    buckets = np.searchsorted(np.array(rule.boundaries or ()), values, side="right")
    return pa.array(buckets.astype(np.int64), pa.int64(), mask=missing)


def _logarithmic(rule: Derived, column: Column) -> pa.Array:
    """``floor(log(1 + |x|))`` to a base, with the sign of x."""
    assert rule.log is not None
    values, missing = read_numbers(column[0], NanRule("missing"), column[1])
    size = 1 + np.abs(values)
    buckets = np.floor(np.log(size) / np.log(rule.log))
    # Correct buckets at powers of the base, where the quotient of logarithms may round either way.
    with np.errstate(over="ignore"):
        buckets -= rule.log**buckets > size
        buckets += rule.log ** (buckets + 1) <= size
    return pa.array((np.sign(values) * buckets).astype(np.int64), pa.int64(), mask=missing)


_AROUND = " \t\r\n\"'"


def _cut(rule: Derived, column: Column) -> pa.Array:
    """Cut text at a separator, without brackets around it, and blanks and quotes around values."""
    array, location = column
    if not pa.types.is_null(array.type):
        require_utf8(array, location, bytes_too=True)
    text = arrow_types.as_plain(array).cast(pa.large_string())
    inner = pc.utf8_trim(text, "[]() \t")
    lists = pc.split_pattern(inner, rule.separator)
    values = pc.utf8_trim(pc.list_flatten(lists), _AROUND)
    there = pc.not_equal(values, "").to_numpy(zero_copy_only=False)
    rows = pc.list_parent_indices(lists).to_numpy()
    lengths = np.bincount(rows[there], minlength=len(array))
    offsets = pa.array(offsets_of(lengths), mask=_null_offsets(array))
    return pa.LargeListArray.from_arrays(offsets, values.filter(pa.array(there)))


def _null_offsets(array: pa.Array) -> Array | None:
    """Marks of null lists, (n + 1,)."""
    missing = array.is_null().to_numpy(zero_copy_only=False)
    return np.append(missing, False) if missing.any() else None


def _crossed(rule: Derived, first: Column, second: Column) -> pa.Array:
    """A hash of two values below `buckets`: 12 and "12" are one value, of any width."""
    assert rule.buckets is not None
    (left, no_left), (right, no_right) = _hashed(*first), _hashed(*second)
    mixed = left * np.uint64(0x9E3779B97F4A7C15) + right
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(32)
    pairs = (mixed % np.uint64(rule.buckets)).astype(np.int64)
    return pa.array(pairs, pa.int64(), mask=no_left | no_right)


def _hashed(array: pa.Array, location: Location) -> tuple[Array, Array]:
    """Return 64-bit hashes of values as text, and which are missing."""
    array = arrow_types.as_plain(array)
    if arrow_types.kind_of(array.type) == arrow_types.TEXT:
        require_utf8(array, location, bytes_too=True)
    else:
        array = array.cast(pa.string())
    coded = pc.dictionary_encode(array.cast(pa.large_binary()))
    words = [hashlib.blake2b(v, digest_size=8).digest() for v in coded.dictionary.to_pylist()]
    codes, missing = fill_nulls(coded.indices)
    hashes = np.frombuffer(b"".join(words) or bytes(8), "<u8")[codes]
    empty = pc.equal(pc.binary_length(array), 0).fill_null(True)
    return hashes, missing | empty.to_numpy(zero_copy_only=False)


class _Rule(NamedTuple):
    """A kind of derived column: the function of its sources, and its type."""

    make: Callable[..., pa.Array]
    type: Any = pa.int64()
    kinds: tuple[str, ...] = ()  # of Arrow types it takes, beside nulls; where empty, it tells
    takes: str = ""  # the same, in words


_TEXTS = pa.large_list(pa.large_string())
_NUMBERS = (arrow_types.INTEGER, arrow_types.FLOAT, arrow_types.TEXT)
_NAMES = (arrow_types.INTEGER, arrow_types.TEXT)
RULES = {
    "arithmetic": _Rule(_arithmetic),
    "boundaries": _Rule(_bucketed, pa.int64(), _NUMBERS, "it takes numbers"),
    "quantiles": _Rule(_bucketed, pa.int64(), _NUMBERS, "it takes numbers"),
    "log": _Rule(_logarithmic, pa.int64(), _NUMBERS, "it takes numbers"),
    "separator": _Rule(_cut, _TEXTS, (arrow_types.TEXT,), "it takes text"),
    "cross": _Rule(_crossed, pa.int64(), _NAMES, "it takes whole numbers or text"),
}
