# SPDX-License-Identifier: Apache-2.0
"""A text file as one part of a source: read from its beginning, in blocks, every time.

Its rows are not known before it is read, so a shuffle mixes them through its buffer alone, and each
epoch parses the text anew. To train more than once on much text, convert it first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa

from sparsetrain.data.read.dialect import Dialect, find_dialect
from sparsetrain.data.read.source import Part
from sparsetrain.data.read.text_file import read_blocks
from sparsetrain.data.read.text_rows import bad_line_error, parse_block
from sparsetrain.data.schema.schema import TextFormat
from sparsetrain.data.values.place import Place


def text_part(file: str, text: TextFormat) -> Part:
    """Open a text file.

    Raises
    ------
    DataError
        If it is missing or empty, or its columns have no names.
    """
    dialect = find_dialect(file, text)
    schema = pa.schema([(name, pa.binary()) for name in dialect.names])
    return Part(Place(file, unit="line"), schema, None, partial(_read, file, dialect))


def _read(file: str, dialect: Dialect, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for block in read_blocks(file, dialect.quoted):
        parsed = parse_block(block, dialect, file)
        if parsed.bad:
            raise bad_line_error(file, parsed.bad[0])
        yield from parsed.pieces(names)
