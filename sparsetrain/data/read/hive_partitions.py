# SPDX-License-Identifier: Apache-2.0
"""Partition columns: values in the path of a file, such as `dt=2024-05-01/`, for all its rows.

They are text, as in a text file, but a whole number loses the zeros before it, which say nothing
for Spark and pyarrow either. That is settled for each value alone: whatever files are read beside,
one stays the same. `__HIVE_DEFAULT_PARTITION__` and an empty value are missing. A column of the
same name in the file goes before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from urllib.parse import unquote

import pyarrow as pa

from sparsetrain.data.read.constant_columns import with_constants
from sparsetrain.data.read.file_systems import plain_path
from sparsetrain.data.read.source import Part

_NULL = "__HIVE_DEFAULT_PARTITION__"
_is_whole = re.compile("-?[0-9]+").fullmatch


def with_partitions(part: Part) -> Part:
    """Return a part of a file that has the partition columns too."""
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
