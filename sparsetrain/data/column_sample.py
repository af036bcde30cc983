# SPDX-License-Identifier: Apache-2.0
"""A sample of each column, and the type of its values: numbers, times, or neither."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparsetrain.data.columns.counts import ValueCounts, are_integers, kind_of_column, of_kind
from sparsetrain.data.read.open_source import open_rows
from sparsetrain.data.read.tables import as_columns, names_in
from sparsetrain.data.schema.columns import require_columns, require_kind
from sparsetrain.data.values import arrow_types
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_values import NanRule, read_numbers
from sparsetrain.data.values.location import Location, RowError
from sparsetrain.data.values.moments import to_microseconds
from sparsetrain.errors import DataError
from sparsetrain.parsing.identity import HEXADECIMAL, TEXT, WHOLE

_SAMPLE_ROWS = 100_000
_SAMPLE_BYTES = 1 << 28
_PARTS = 8  # the sample is taken from at least this many parts, if there are so many
_NAN = NanRule("missing")

Pieces = list[tuple[Location, Any]]  # (location, values) of each piece


def take_sample(data: Any) -> tuple[str, dict[str, Pieces], dict[str, RowError]]:
    """Return the data's name, some pieces of each column, and errors of unreadable columns."""
    if names_in(data):
        table, (arrays, unread) = Location("table"), as_columns(data)
        pieces = {n: [(table.of_column(n), _first_rows(a))] for n, a in arrays.items()}
        return table.name, pieces, unread
    source = open_rows(data)
    names = [name for name in source.parts[0].schema.names if name]  # a nameless column is an index
    chosen = source.parts[:: max(1, len(source.parts) // _PARTS)]
    columns: dict[str, Pieces] = {column: [] for column in names}
    for part in chosen:
        require_columns(part.schema.names, names, "first file's", part.location)
        rows = size = 0
        for location, piece in part.pieces(names):
            for column in names:
                columns[column].append((location.of_column(column), piece.column(column)))
            rows, size = rows + piece.num_rows, size + piece.nbytes
            if rows >= _SAMPLE_ROWS // len(chosen) or size >= _SAMPLE_BYTES // len(chosen):
                break
    return source.name, columns, {}


def _first_rows(values: Any) -> Any:
    """Return the first rows of a column as one array; a frame's text may be chunked."""
    some = values[:_SAMPLE_ROWS]
    return some.combine_chunks() if isinstance(some, pa.ChunkedArray) else some


def check_types(pieces: Pieces) -> None:
    """Refuse a column if only some of its pieces have lists, or an unsupported type."""
    first = next((p for p in pieces if not pa.types.is_null(p[1].type)), pieces[0])
    for location, piece in pieces:
        if not pa.types.is_null(piece.type) and _shape(piece.type) != _shape(first[1].type):
            raise location.error(
                f"the type is {piece.type}, but in {first[0].name} it is {first[1].type}; give the "
                "column one type"
            )


def _shape(type_: pa.DataType) -> tuple[bool, bool]:
    return arrow_types.is_bag(type_), arrow_types.kind_of(arrow_types.element(type_)) is None


class Values(NamedTuple):
    """Facts about a column's values."""

    kind: str  # of the values as categories: whole numbers, hexadecimal, text, or lists of these
    rows: int
    distinct: int
    missing: int
    numbers: Array | None  # (n,) float64 of non-missing values; None if one is not a number
    moments: list[Any] | None  # the values as seconds since 1970; None if one is not a time


def values_of(pieces: Pieces) -> Values:
    """Try to read a column as numbers, times and categories, and count its distinct values."""
    counts = ValueCounts()
    numbers, moments = _numbers(pieces), None
    fractions = numbers is not None and has_fractions(numbers)
    if not fractions:
        for location, piece in pieces:
            counts.read(piece, _NAN, location)
    total = counts.total
    padded = any(re.match(rb"-?0\d", text) for text in total.texts[0].to_pylist())
    if padded or not are_integers(total.hexes[0]).all():  # 007 is a name, not a number
        numbers = None
    identity = kind_of_column(total)
    found = of_kind(total, identity)
    distinct = (
        len(np.unique(numbers))
        if fractions and numbers is not None
        else len(found.numbers) + len(found.texts)
    )
    type_ = pieces[0][1].type
    if numbers is None and not arrow_types.is_bag(type_):
        moments = _moments(pieces)
    rows = sum(len(piece) for _, piece in pieces)
    counted = int(found.number_times.sum() + found.text_times.sum())
    missing = rows - (counted if numbers is None else len(numbers))
    lists = "lists of " * arrow_types.is_bag(type_)
    return Values(f"{lists}{_WORDS[identity]}", rows, distinct, missing, numbers, moments)


_WORDS = {WHOLE: "whole numbers", HEXADECIMAL: "hexadecimal", TEXT: "text"}


def read_as_asked(pieces: Pieces) -> Array:
    """Return numbers of a column that the user declared numeric."""
    require_kind(pieces[0][1].type, pieces[0][0])
    return _read(pieces)


def _read(pieces: Pieces) -> Array:
    """Return all non-missing numbers, (n,) float64."""
    read = [read_numbers(piece, _NAN, location) for location, piece in pieces]
    return np.concatenate([numbers[~missing] for numbers, missing in read])


def _numbers(pieces: Pieces) -> Array | None:
    """Return all non-missing numbers, (n,) float64; None if a value is not a number."""
    kinds = {arrow_types.kind_of(piece.type) for _, piece in pieces}
    if not kinds <= {arrow_types.INTEGER, arrow_types.FLOAT, arrow_types.TEXT, arrow_types.EMPTY}:
        return None
    if any(pa.types.is_boolean(piece.type) for _, piece in pieces):
        return None
    try:
        return _read(pieces)
    except DataError:
        floats = [p for p in pieces if arrow_types.kind_of(p[1].type) == arrow_types.FLOAT]
        if floats and has_fractions(_read(floats)):  # fractions are not ids: report the bad value
            raise
        return None


def has_fractions(numbers: Array) -> bool:
    """Return whether a number is not whole."""
    return bool((numbers != np.trunc(numbers)).any())


def _moments(pieces: Pieces) -> list[Array] | None:
    """Return times as whole seconds since 1970; None if a value is not a time."""
    found: list[Any] = []
    with suppress(DataError):
        found = [to_microseconds(piece, location) for location, piece in pieces]
    if not found or any(moments is None for moments in found):
        return None
    there = [moments.drop_null().to_numpy() // 1_000_000 for moments in found]
    return there if any(map(len, there)) else None
