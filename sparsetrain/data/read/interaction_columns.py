# SPDX-License-Identifier: Apache-2.0
"""Columns of a log of interactions, by role: user, item, time and rating, from any format.

Text may also have a user and all their items in each line, as in LightGCN's and BARS's
``train.txt``: fields are separated by spaces, and a user without items has no interaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparsetrain.data.read.open_source import are_paths, list_files, open_rows
from sparsetrain.data.read.parquet import is_parquet
from sparsetrain.data.read.source import open_file
from sparsetrain.data.read.split import read_times
from sparsetrain.data.read.tables import names_in
from sparsetrain.data.read.text_blocks import first_line_of, read_blocks
from sparsetrain.data.schema.column_rule import TextFormat
from sparsetrain.data.schema.columns import require_column
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import as_plain, is_bag, require_utf8
from sparsetrain.data.values.arrow_values import NanRule, read_numbers
from sparsetrain.data.values.location import Location
from sparsetrain.errors import DataError

_SAMPLE = 1 << 16  # the lines in these first bytes decide the format


def are_user_lists(file: str) -> bool:
    """Return whether each line has a user and all their items, by the first lines of a file.

    Such lines have no names, only spaces as delimiters, and different lengths or over four fields.
    """
    with open_file(file) as opened:
        head = bytes(opened.read(_SAMPLE))
    lines = head.split(b"\n")[: -1 if len(head) == _SAMPLE else None]
    fields = [line.split() for line in lines if line.strip()]
    if not fields or is_parquet(head[:4]) or any(each in head for each in b"\t,;|"):
        return False
    counts = {len(line) for line in fields}
    return fields[0][0][:1].isdigit() and (len(counts) > 1 or max(counts) > 4)


def read_user_lists(files: Sequence[str]) -> dict[str, Any]:
    """Return users and items (N,), as integers if all are integers."""
    users, items = [], []
    for file in files:
        with open_file(file) as opened:
            lines = pa.array(opened.read().decode().split("\n"), pa.large_string())
        lines = pc.utf8_trim_whitespace(lines)
        lines = lines.filter(pc.greater(pc.utf8_length(lines), 0))
        fields = pc.utf8_split_whitespace(lines)
        users.append(pc.list_element(fields, 0).take(pc.list_parent_indices(fields)))
        first = pa.array(fields.offsets.to_numpy()[:-1])
        is_item = pc.invert(pc.is_in(pa.array(range(len(users[-1])), first.type), first))
        users[-1] = users[-1].filter(is_item)
        items.append(fields.flatten().filter(is_item))
    return {"user": _plain(pa.concat_arrays(users)), "item": _plain(pa.concat_arrays(items))}


def _plain(values: Any) -> Any:
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:
        return values


# Role -> its usual column names, in any case, with or without `_`; unnamed columns are in this
# order.
_NAMES = {
    "user": ("user", "userid", "uid", "customerid", "visitorid"),
    "item": ("item", "itemid", "iid", "movieid", "productid", "articleid"),
    "rating": ("rating",),
    "time": ("time", "timestamp"),
}
_NEEDED = ("user", "item")


def read_columns(
    data: Any, given: Mapping[str, str | None]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the columns of a log by role, in the order of its rows, and the files read.

    `given` has names by role, see `Interactions.read`.
    """
    files = list_files(data) if are_paths(data) else []
    file = files[0] if files else None
    if file is not None and are_user_lists(file):
        return read_user_lists(files), tuple(files)
    text = TextFormat() if file is None else _text_of(file)
    names = names_in(data) or open_rows(data, Schema(text=text)).parts[0].schema.names
    where = Location(file or "table")
    found = {role: _find(role, name, names, where) for role, name in given.items()}
    roles = {role: name for role, name in found.items() if name is not None}
    schema = Schema(
        categories=tuple(roles[role] for role in _NEEDED),
        dense=tuple(roles[role] for role in roles if role not in _NEEDED),
        text=text,
    )
    source = open_rows(data, schema)
    pieces: dict[str, list[Any]] = {role: [] for role in roles}
    for part in source.parts:
        for name in roles.values():
            require_column(part.schema.names, name, "needed", part.location)
        for location, piece in part.pieces([*roles.values()]):
            for column, (role, name) in zip(piece.columns, roles.items(), strict=True):
                pieces[role].append(_READ[role](column, location.of_column(name)))
    columns = {role: _joined(role, arrays) for role, arrays in pieces.items()}
    return columns, source.files


def _text_of(file: str) -> TextFormat:
    """Return the format of a text file of interactions by its first line; else the default."""
    block = next(read_blocks(file, quoted=False, block_bytes=1 << 20), None)
    if block is None or is_parquet(bytes(block.data[:4])):
        return TextFormat()
    line = first_line_of(block.data, file)
    delimiter = next((each for each in "\t,;|" if each in line), " ")
    fields = [field.strip('"') for field in line.split(delimiter)]
    if not any(field[:1].isdigit() for field in fields):
        # RecBole appends the type of a column to its name.
        return TextFormat(delimiter, True, tuple(field.partition(":")[0] for field in fields))
    shorter = {2: _NEEDED, 3: (*_NEEDED, "time"), 4: tuple(_NAMES)}
    if len(fields) not in shorter:
        raise DataError(
            f"{file}: line 1: {len(fields)} fields without names; write a first line that "
            "names user, item, rating and time"
        )
    return TextFormat(delimiter, False, shorter[len(fields)])


def _find(role: str, given: str | None, names: Sequence[str], where: Location) -> str | None:
    """Return the name of a column; None if it is absent and optional."""
    plain = {name.lower().replace("_", ""): name for name in reversed(names)}
    found = next((plain[known] for known in _NAMES[role] if known in plain), None)
    if given is None and (found is not None or role not in _NEEDED):
        return found
    require_column(names, given or role, role, where)
    return given or role


def _values(array: Any, location: Location) -> Any:
    if is_bag(array.type):
        raise location.error("holds lists; an interaction has one user and one item")
    location.refuse(array.is_null().to_numpy(zero_copy_only=False), lambda row: "the value is null")
    require_utf8(array, location)
    return as_plain(array)


def _ratings(array: Any, location: Location) -> Array:
    values, missing = read_numbers(array, NanRule(), location)
    location.refuse(missing, lambda row: "the rating is null; drop the row")
    return values


_READ: dict[str, Any] = {
    "user": _values,
    "item": _values,
    "time": read_times,
    "rating": _ratings,
}


def _joined(role: str, arrays: Sequence[Any]) -> Any:
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays)
    try:
        return pa.concat_arrays([array.cast(arrays[0].type) for array in arrays])
    except pa.ArrowInvalid:
        raise DataError(
            f"{role}: the files hold values of different types; write one type in all files"
        ) from None
