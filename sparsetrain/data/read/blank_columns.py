# SPDX-License-Identifier: Apache-2.0
"""Blank columns for data that lack them, such as the column to be predicted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from sparsetrain.data.read.source import Part, with_numbers


def with_blanks(part: Part, names: Collection[str], value: int | None) -> Part:
    """Return a part with this value in each row of the columns that it lacks."""
    blank = pa.scalar(value)
    lacking = [pa.field(name, blank.type) for name in names if name not in part.schema.names]
    if not lacking:
        return part
    schema = pa.schema([*part.schema, *lacking], metadata=part.schema.metadata)
    return replace(part, schema=schema, read=partial(_read, part, blank), ranges=None)


def _read(
    part: Part, blank: pa.Scalar, names: Sequence[str], coded: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    there = {*part.schema.names}
    stored, texts = ([name for name in group if name in there] for group in (names, coded))
    for location, piece in part.pieces(stored, texts):
        blanks = pa.repeat(blank, piece.num_rows)
        arrays = [piece.column(name) if name in there else blanks for name in names]
        made = pa.RecordBatch.from_arrays(arrays, names=[*names])
        yield made if location.numbers is None else with_numbers(made, location.numbers)
