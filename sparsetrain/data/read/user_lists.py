# SPDX-License-Identifier: Apache-2.0
"""Text files with a user and its items in each line, such as LightGCN's ``train.txt``, or BARS's.

Fields are separated by spaces. A user without items has no interaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparsetrain.data.read.file_systems import open_file
from sparsetrain.data.read.parquet import is_parquet

_SAMPLE = 1 << 16  # bytes at the beginning of a file that decide its format


def are_user_lists(file: str) -> bool:
    """Return whether a file has no header, no delimiter but spaces, and lines of varying length."""
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
