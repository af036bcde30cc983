# SPDX-License-Identifier: Apache-2.0
"""Columns of nulls in data that lack them, as those of what is to be predicted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from sparsetrain.data.read.source import Part, with_numbers


def with_nulls(part: Part, names: Collection[str]) -> Part:
    """Return a part in which the columns of these names that it lacks are null."""
    there = part.schema.names
    schema = part.schema
    for name in names:
        schema = schema if name in there else schema.append(pa.field(name, pa.null()))
    return (
        part if schema is part.schema else replace(part, schema=schema, read=partial(_read, part))
    )


def _read(part: Part, names: Sequence[str], coded: Sequence[str]) -> Iterator[pa.RecordBatch]:
    there = {*part.schema.names}
    stored, texts = ([name for name in group if name in there] for group in (names, coded))
    for location, piece in part.pieces(stored, texts):
        arrays = [
            piece.column(name) if name in there else pa.nulls(piece.num_rows) for name in names
        ]
        made = pa.RecordBatch.from_arrays(arrays, names=[*names])
        yield made if location.numbers is None else with_numbers(made, location.numbers)
