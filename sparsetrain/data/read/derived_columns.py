# SPDX-License-Identifier: Apache-2.0
"""Derived columns: integer arithmetic on other columns.

`(source // divide) % modulo`, rounded down, gives the hour of a day from YYMMDDHH (modulo 100), the
weekday from seconds since 1970 (divide 86400, modulo 7), and so on. A date or timestamp counts as
those seconds. Missing values stay missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from sparsetrain.data.read.source import Part, with_numbers
from sparsetrain.data.schema.schema import Derived
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
    if not derived:
        return part
    for name, rule in derived.items():
        _check(part, name, rule)
    schema = pa.schema([*part.schema, *(pa.field(name, pa.int64()) for name in derived)])
    return replace(part, schema=schema, read=partial(_read, part, derived), ranges=None)


def _check(part: Part, name: str, rule: Derived) -> None:
    location = Location(part.location.name, column=name)
    if name in part.schema.names:
        raise location.error("the data has a column of this name; call the derived one otherwise")
    if rule.source not in part.schema.names:
        raise location.error(f"it is derived from {rule.source}, which is missing")


def _read(
    part: Part, derived: Mapping[str, Derived], names: Sequence[str], coded: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    sources = [derived[name].source for name in names if name in derived]
    stored = list(dict.fromkeys([*(n for n in names if n not in derived), *sources]))
    for location, piece in part.pieces(stored):
        arrays = [
            _derive(
                piece.column(derived[n].source), derived[n], location.of_column(derived[n].source)
            )
            if n in derived
            else piece.column(n)
            for n in names
        ]
        made = pa.RecordBatch.from_arrays(arrays, names=[*names])
        yield made if location.numbers is None else with_numbers(made, location.numbers)


def _derive(array: pa.Array, rule: Derived, location: Location) -> pa.Array:
    values, missing = _integers(array, location)
    result = derive(values, rule)
    location.refuse(
        result > _LARGEST,
        lambda row: f"{result[row]} is beyond int64, which a derived column holds",
    )
    return pa.array(result.astype(np.int64), pa.int64(), mask=missing)


def derive(values: np.ndarray, rule: Derived) -> np.ndarray:
    """Return what a rule makes of integers (n,)."""
    quotient = values // rule.divide
    return quotient if rule.modulo is None else quotient % rule.modulo


def _integers(array: pa.Array, location: Location) -> tuple[np.ndarray, np.ndarray]:
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
