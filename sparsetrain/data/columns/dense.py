# SPDX-License-Identifier: Apache-2.0
"""Dense columns of an encoder, in the order of a model's inputs: numbers, their flags, vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparsetrain.data.columns.number import Number
from sparsetrain.data.columns.plain import PlainNumber
from sparsetrain.data.columns.settings import Settings
from sparsetrain.data.columns.vector import Vector
from sparsetrain.data.schema.schema import Schema

Dense = Number | PlainNumber | Vector


def raw_columns(
    names: Sequence[str], settings: Settings, schema: Schema
) -> tuple[Number | Vector, ...]:
    """Return the columns of raw data."""
    count, found = len(names), list[Number]()
    for place, name in enumerate(names):
        flag = count + place if settings.missing_flags else None
        law, fill = schema.linear.get(name), float(settings.dense_fill)
        found.append(Number(name, place, flag, law, fill, settings.nan_rule))
    return *found, *_vectors(schema, count * (2 if settings.missing_flags else 1))


def plain_columns(names: Sequence[str], schema: Schema) -> tuple[PlainNumber | Vector, ...]:
    """Return the columns of already encoded data."""
    numbers = (PlainNumber(name, place) for place, name in enumerate(names))
    return *numbers, *_vectors(schema, len(names))


def _vectors(schema: Schema, place: int) -> Iterator[Vector]:
    for name, length in schema.vectors.items():
        yield Vector(name, place, length)
        place += length


def input_names(columns: Sequence[Dense]) -> tuple[str, ...]:
    """Return what each input is called in converted data, in their order."""
    inputs = {place: name for column in columns for place, name in column.inputs.items()}
    return tuple(inputs[place] for place in range(len(inputs)))
