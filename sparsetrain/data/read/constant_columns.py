# SPDX-License-Identifier: Apache-2.0
"""Columns with a constant value: nulls for missing columns, and partition columns.

A partition column has its value in the path of a file, such as `dt=2024-05-01/`. The value is text,
as in a text file, but whole numbers lose leading zeros, which Spark and pyarrow ignore too. Each
value is converted independently of other files. `__HIVE_DEFAULT_PARTITION__` and an empty value are
missing. A column of the same name in the file takes precedence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from sparsetrain.data.read.file_systems import plain_path
from sparsetrain.data.read.source import ROW_NUMBERS, Part, with_numbers

_NULL = "__HIVE_DEFAULT_PARTITION__"
_is_whole = re.compile("-?[0-9]+").fullmatch


def with_constants(part: Part, values: Mapping[str, pa.Scalar]) -> Part:
    """Return a part with a constant column added for each name in `values` that it lacks."""
    own = {name: value for name, value in values.items() if name not in part.schema.names}
    if not own:
        return part
    fields = [pa.field(name, value.type) for name, value in own.items()]
    schema = pa.schema([*part.schema, *fields], metadata=part.schema.metadata)
    return replace(part, schema=schema, read=Constants(part.read, part.schema.names[:1], own))


@dataclass(frozen=True)
class Constants:
    """Reads columns of a file, and constant ones."""

    inner: Any  # reads the file
    first: Sequence[str]  # any column of the file, read for the number of rows if no other is
    values: Mapping[str, pa.Scalar]

    def __call__(self, names: Sequence[str], coded: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield record batches; see `Part.pieces`."""
        stored = [name for name in names if name not in self.values] or self.first
        for piece in self.inner(stored, [name for name in coded if name not in self.values]):
            arrays = [
                pa.repeat(self.values[name], piece.num_rows)
                if name in self.values
                else piece.column(name)
                for name in names
            ]
            made = pa.RecordBatch.from_arrays(arrays, names=[*names])
            numbered = piece.schema.names[-1:] == [ROW_NUMBERS]
            yield with_numbers(made, piece.column(ROW_NUMBERS).to_numpy()) if numbered else made


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
