# SPDX-License-Identifier: Apache-2.0
"""Parts of data with derived columns, computed from stored ones by `Derived`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from sparsetrain.data.derived.kind import numbers_of
from sparsetrain.data.read.source import Part, with_numbers
from sparsetrain.data.schema.derived import Derived
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.location import Location


def with_derived(part: Part, derived: Mapping[str, Derived]) -> Part:
    """Return a part with its derived columns added."""
    for name, rule in derived.items():
        check_sources(part, name, rule)
    made = (pa.field(name, rule.of.type) for name, rule in derived.items())
    schema = pa.schema([*part.schema, *made])
    return replace(part, schema=schema, read=partial(_read, part, derived), ranges=None)


def check_sources(part: Part, name: str, rule: Derived) -> None:
    """Refuse data that lack a derived column's sources, or have a column of its name."""
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
    """Return the stored columns that `names` need; `there` are the names of stored columns."""
    made = {name: rule for name, rule in derived.items() if name in names and name not in there}
    sources = (source for rule in made.values() for source in rule.sources)
    return list(dict.fromkeys([*(name for name in names if name not in made), *sources]))


def derive_columns(
    piece: pa.RecordBatch,
    derived: Mapping[str, Derived],
    names: Sequence[str],
    location: Location,
) -> pa.RecordBatch:
    """Return columns of a piece, and compute derived columns that it lacks."""
    there = {*piece.schema.names}
    arrays = [
        piece.column(name) if name in there else derived_column(piece, derived[name], location)
        for name in names
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[*names])


def derived_column(piece: pa.RecordBatch, rule: Derived, location: Location) -> pa.Array:
    """Return a rule's result for columns of a piece."""
    return rule.make(*rule.columns(piece, location))


def learnt_numbers(rule: Derived, piece: pa.RecordBatch, location: Location) -> Array:
    """Return the numbers that a rule learns from, (n,) float64, without missing ones."""
    values, missing = numbers_of(*rule.columns(piece, location))
    return values[~missing]
