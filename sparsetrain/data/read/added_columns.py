# SPDX-License-Identifier: Apache-2.0
"""Columns added to parts of data: derived columns, constants, and partitions.

Derived columns are computed from stored ones by `Derived`. A partition column has its value in the
path of a file, such as `dt=2024-05-01/`. The value is text, as in a text file, but whole numbers
lose leading zeros, which Spark and pyarrow ignore too. Each value is converted independently of
other files. `__HIVE_DEFAULT_PARTITION__` and an empty value are missing. A column of the same name
in the file takes precedence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from urllib.parse import unquote

import pyarrow as pa

from sparsetrain.data.derived.kind import numbers_of
from sparsetrain.data.read.source import Part, Pieces, plain_path
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
        raise location.error(
            "the data already have a column of this name; give the derived column another name"
        )
    for source in rule.sources:
        if source not in part.schema.names:
            raise location.error(f"it is derived from {source}, which is missing")


def _read(
    part: Part, derived: Mapping[str, Derived], names: Sequence[str], coded: Sequence[str]
) -> Pieces:
    for location, piece in part.pieces(stored_names(names, derived, part.schema.names)):
        yield location, derive_columns(piece, derived, names, location)


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
    """Return a piece with the columns `names`; compute the derived ones that it lacks."""
    there = {*piece.schema.names}
    arrays = [
        piece.column(name) if name in there else derived_column(piece, derived[name], location)
        for name in names
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[*names])


def derived_column(piece: pa.RecordBatch, rule: Derived, location: Location) -> pa.Array:
    """Compute a derived column from the columns of a piece."""
    return rule.make(*rule.columns(piece, location))


def learnt_numbers(rule: Derived, piece: pa.RecordBatch, location: Location) -> Array:
    """Return the numbers that a rule learns from, (n,) float64, without missing ones."""
    values, missing = numbers_of(*rule.columns(piece, location))
    return values[~missing]


_NULL = "__HIVE_DEFAULT_PARTITION__"
_is_whole = re.compile("-?[0-9]+").fullmatch


def with_constants(part: Part, values: Mapping[str, pa.Scalar]) -> Part:
    """Return a part with a constant column for each value, unless it has one of that name."""
    own = {name: value for name, value in values.items() if name not in part.schema.names}
    if not own:
        return part
    fields = [pa.field(name, value.type) for name, value in own.items()]
    schema = pa.schema([*part.schema, *fields], metadata=part.schema.metadata)
    return replace(part, schema=schema, read=partial(_read_constants, part, own))


def _read_constants(
    part: Part, values: Mapping[str, pa.Scalar], names: Sequence[str], coded: Sequence[str]
) -> Pieces:
    # Without a stored column, one is read for its number of rows.
    stored = [name for name in names if name not in values] or part.schema.names[:1]
    for location, piece in part.read(stored, [name for name in coded if name not in values]):
        arrays = [
            pa.repeat(values[name], piece.num_rows) if name in values else piece.column(name)
            for name in names
        ]
        yield location, pa.RecordBatch.from_arrays(arrays, names=[*names])


def with_partitions(part: Part) -> Part:
    """Return a part of a file with its partition columns added."""
    values = _named(part.location.name)
    return with_constants(part, {name: pa.scalar(value, pa.string()) for name, value in values})


def _named(file: str) -> Iterator[tuple[str, str | None]]:
    """Yield the names and values in the path of a file."""
    for folder in os.path.dirname(plain_path(file)).split(os.sep):
        name, equals, value = folder.partition("=")
        if name and equals:
            plain = unquote(value)
            plain = str(int(plain)) if _is_whole(plain) else plain
            yield unquote(name), None if value in ("", _NULL) else plain
