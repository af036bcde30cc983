# SPDX-License-Identifier: Apache-2.0
"""Columns made of others by integer arithmetic, so that a schema needs no code.

`(source // divide) % modulo`, with the quotient rounded down, gives the hour of a day from
YYMMDDHH (modulo 100), the weekday from seconds since 1970 (divide 86400, modulo 7), and so on. A
date or timestamp counts as those seconds. A part with derived columns looks like any other part.
Missing stays missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from sparsetrain.data.read.source import ROW_NUMBERS, Part
from sparsetrain.data.schema.schema import Derived
from sparsetrain.data.values.filled import filled
from sparsetrain.data.values.missing import NanRule
from sparsetrain.data.values.moments import moments_of
from sparsetrain.data.values.numeric import EXACT, exact_integers, read_numbers
from sparsetrain.data.values.place import Place

_LARGEST = np.iinfo(np.int64).max


def with_derived(part: Part, derived: Mapping[str, Derived]) -> Part:
    """Return a part that has the derived columns too.

    Raises
    ------
    DataError
        If a column to derive from is missing, or a derived name is a column already.
    """
    if not derived:
        return part
    for name, rule in derived.items():
        _check(part, name, rule)
    schema = pa.schema([*part.schema, *(pa.field(name, pa.int64()) for name in derived)])
    return replace(part, schema=schema, read=partial(_read, part, derived), ranges=None)


def _check(part: Part, name: str, rule: Derived) -> None:
    place = Place(part.place.name, column=name)
    if name in part.schema.names:
        raise place.error("the data has a column of this name; call the derived one otherwise")
    if rule.source not in part.schema.names:
        raise place.error(f"it is derived from {rule.source}, which is missing")


def _read(
    part: Part, derived: Mapping[str, Derived], names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    sources = [derived[name].source for name in names if name in derived]
    stored = list(dict.fromkeys([*(n for n in names if n not in derived), *sources]))
    for place, piece in part.pieces(stored):
        arrays = [
            _derive(piece.column(derived[n].source), derived[n], place.of(derived[n].source))
            if n in derived
            else piece.column(n)
            for n in names
        ]
        numbers = place.numbers
        extra = [] if numbers is None else [pa.array(numbers)]
        labels = [*names] if numbers is None else [*names, ROW_NUMBERS]
        yield pa.RecordBatch.from_arrays([*arrays, *extra], names=labels)


def _derive(array: pa.Array, rule: Derived, place: Place) -> pa.Array:
    values, missing = _integers(array, place)
    quotient = values // rule.divide
    result = quotient if rule.modulo is None else quotient % rule.modulo
    beyond = result > _LARGEST
    if beyond.any():
        row = int(np.argmax(beyond))
        raise place.error(f"{result[row]} is beyond int64, which a derived column holds", row)
    return pa.array(result.astype(np.int64), pa.int64(), mask=missing)


def _integers(array: pa.Array, place: Place) -> tuple[np.ndarray, np.ndarray]:
    moments = moments_of(array, place)
    if moments is not None:
        microseconds, missing = filled(moments)
        return microseconds // 1_000_000, missing
    whole = exact_integers(array)
    if whole is not None:
        return whole
    values, missing = read_numbers(array, NanRule("missing"), place)
    odd = (values != np.trunc(values)) | (np.abs(values) >= EXACT)
    if odd.any():
        row = int(np.argmax(odd))
        raise place.error(f"{values[row]} is no whole number, which a derived column needs", row)
    return values.astype(np.int64), missing
