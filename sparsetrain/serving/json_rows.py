# SPDX-License-Identifier: Apache-2.0
"""Rows of a JSON body, read one by one within limits.

Python's decoder holds the GIL while it decodes a whole value, so all other threads wait, including
the event loop's. So a row may have at most 128 KiB, which takes about 15 ms to decode.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from typing import Any, cast

from sparsetrain.errors import DataError, first_line
from sparsetrain.serving.limits import Most

_ROW = 1 << 17  # bytes
_FORM = 'give {"rows": [{"column": value, ...}, ...]}, at least one row and no other key'


def _spaced(*parts: str) -> re.Pattern[bytes]:
    return re.compile("[ \t\n\r]*".join(("", *parts, "")).encode())


_BEGIN = re.compile(b"(?:\xef\xbb\xbf)?" + _spaced(r"\{", '"rows"', ":", r"\[").pattern)
_END = _spaced(r"\]", r"\}")
_COMMA = _spaced(",")
_COMMA_OF_TEXT = re.compile(_COMMA.pattern.decode())


def read_rows(body: bytes, most: Most) -> list[dict[str, Any]]:
    """Read ``{"rows": [{...}, ...]}``.

    Raises
    ------
    TooLarge
        If the body has more rows or values than `most`.
    DataError
        If the body has a different form, or a row is longer than 128 KiB or names a column twice.
    """
    begin = _BEGIN.match(body, 0, _ROW)
    if begin is None:
        raise DataError(f"the body is not JSON with rows: {_FORM}")
    if _END.match(body, begin.end(), _ROW):
        raise DataError(f"rows: {_FORM}")
    rows: list[dict[str, Any]] = []
    comma: re.Match[bytes] | None = begin
    values = 0
    while comma:
        known = len(rows)
        at = comma.end() + _read_window(body[comma.end() : comma.end() + _ROW], rows, most)
        values += sum(map(_values_of, rows[known:]))
        most.require(values=values)
        comma = _COMMA.match(body, at, at + _ROW)
    end = _END.match(body, at, at + _ROW)
    if end is None or end.end() < len(body):
        raise DataError(f"the body is not JSON: no comma or end after row {len(rows) - 1}")
    return rows


def _read_window(content: bytes, rows: list[dict[str, Any]], most: Most) -> int:
    """Append the complete rows in `content`, at least one; return their length in bytes."""
    window, begin, end = _decoded(content, len(rows)), 0, 0
    while True:
        try:
            row, end = _scan(window, begin)
        except (ValueError, RecursionError, StopIteration) as error:
            if begin:  # the window may cut this row; the next window reads it
                break
            reason = _reason_of(error, len(content) == _ROW)
            raise DataError(f"the body is not JSON: row {len(rows)}: {reason}") from None
        if not isinstance(row, dict):
            raise DataError(f"row {len(rows)}: it must be an object of columns and values")
        rows.append(row)
        most.require(rows=len(rows))
        comma = _COMMA_OF_TEXT.match(window, end)
        if comma is None:
            break
        begin = comma.end()
    return len(window[:end].encode())


def _values_of(row: dict[str, Any]) -> int:
    """Count values, including those in lists; an empty list counts as one."""
    count = 1
    left: list[Any] = [row]
    while left:
        inside = left.pop()
        inside = inside.values() if isinstance(inside, dict) else inside
        count += max(1, len(inside)) - 1
        left += [value for value in inside if isinstance(value, (dict, list))]
    return count


def _decoded(content: bytes, number: int) -> str:
    """Decode the content, without a character that is cut off at the end."""
    try:
        return codecs.utf_8_decode(content, "strict", len(content) < _ROW)[0]
    except UnicodeDecodeError as error:
        reason = first_line(error)
        raise DataError(f"the body is not JSON: from row {number}: {reason}") from None


class _Twice(ValueError):
    """An object has a key twice; JSON decoders differ in which value they keep."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise _Twice(f"it has {name!r:.40} twice")
    return row


_scan = cast(Any, json.JSONDecoder(object_pairs_hook=_object)).scan_once


def _reason_of(error: Exception, cut: bool) -> str:
    if isinstance(error, RecursionError):
        return "it is too deep"
    if isinstance(error, (json.JSONDecodeError, StopIteration)):
        reason = getattr(error, "msg", "a value is missing")
        return f"{reason}; or it has more than {_ROW:,} bytes" if cut else reason
    return str(error) if isinstance(error, _Twice) else "an integer has more than 4,300 digits"
