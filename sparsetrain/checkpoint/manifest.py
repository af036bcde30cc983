# SPDX-License-Identifier: Apache-2.0
"""Manifest of a checkpoint: the file and rows of each array, and the caller's own values.

The reader trusts nothing: size, depth, version, types, names and the consistency of all numbers are
checked before any array file is opened. The manifest contains its own checksum, so a changed digit
in a setting is also detected. A manifest with an unknown version number is refused.
"""

import json
import math
import re
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from sparsetrain.checkpoint.array_file import DTYPES, file_size
from sparsetrain.errors import CheckpointError

FILE = "manifest.json"
MAX_BYTES = 16 << 20
ARRAY_FILE = re.compile(r"[0-9]{3,6}\.npy")
_FORMAT, _VERSION = "sparsetrain checkpoint", 1
MAX_FILES = 100_000
MAX_AXES = 32  # every version of NumPy supports this many axes
MAX_DEPTH = 32  # nesting of objects and lists; the package itself needs 7


class Entry(NamedTuple):
    """One file: the array that it belongs to, and the rows of that array that it must hold."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    rows: tuple[int, int]
    bytes: int
    crc32: int

    @property
    def piece(self) -> tuple[int, ...]:
        """Shape of the part of the array that is in the file."""
        return piece_shape(self.shape, self.rows)


def piece_shape(shape: tuple[int, ...], rows: tuple[int, int]) -> tuple[int, ...]:
    """Return the shape of a range of an array's rows; an array without axes has one piece."""
    return (rows[1] - rows[0], *shape[1:]) if shape else ()


def all_rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the row range of a whole array."""
    return (0, shape[0] if shape else 1)


def dump(entries: list[Entry], about: dict[str, Any]) -> bytes:
    """Return the text of a manifest; `about` holds the caller's values.

    Raises
    ------
    CheckpointError
        If `about` holds values that JSON would change, or is too large.
    """
    if _is_too_deep(about):
        raise CheckpointError(f"manifest has more than {MAX_DEPTH} nested levels")
    _require_json(about, "manifest")
    body = {
        "format": _FORMAT,
        "version": _VERSION,
        "arrays": [entry._asdict() for entry in entries],
        "manifest": about,
    }
    text = json.dumps({**body, "crc32": _checksum(body)}, indent=1).encode()
    if len(text) > MAX_BYTES:
        raise CheckpointError(
            f"the manifest has {len(text)} bytes, but at most {MAX_BYTES} are read: "
            "keep long lists as arrays"
        )
    return text


def parse(text: bytes) -> tuple[list[Entry], dict[str, Any]]:
    """Check a manifest; return its entries and the caller's values.

    Raises
    ------
    ValueError
        If the manifest is invalid; the message is meant to follow "manifest.json: ".
    """
    body = _load(text)
    if not isinstance(body, dict) or body.get("format") != _FORMAT:
        raise ValueError("it is not the manifest of a sparsetrain checkpoint")
    version = body.get("version")
    if type(version) is not int or version != _VERSION:
        raise ValueError(
            f"format version {version!r:.20} is unknown, this sparsetrain reads "
            f"version {_VERSION}: use the sparsetrain that wrote it, or a newer one"
        )
    if body.pop("crc32", None) != _checksum(body):
        raise ValueError("its checksum does not match: the file is damaged or was edited")
    listed, about = body.get("arrays"), body.get("manifest")
    if not isinstance(listed, list) or not isinstance(about, dict) or len(listed) > MAX_FILES:
        raise ValueError("`arrays` must be a list and `manifest` an object")
    entries = [_entry(number, fields) for number, fields in enumerate(listed)]
    if len({entry.file for entry in entries}) < len(entries):
        raise ValueError("two arrays have the same file")
    _check_pieces(entries)
    return entries, about


def pieces(entries: list[Entry]) -> dict[str, list[Entry]]:
    """Group the entries by array, in the order in which they were written."""
    grouped: dict[str, list[Entry]] = {}
    for entry in entries:
        grouped.setdefault(entry.name, []).append(entry)
    return grouped


def _check_pieces(entries: list[Entry]) -> None:
    """Check that the pieces of an array are complete and in order."""
    for name, group in pieces(entries).items():
        first, end = group[0], 0
        for entry in group:
            if entry.rows[0] != end or (entry.dtype, entry.shape) != (first.dtype, first.shape):
                raise ValueError(f"two arrays have the same name {name!r:.60}")
            end = entry.rows[1]
        if end != all_rows(first.shape)[1]:
            raise ValueError(f"rows {end} and later of array {name!r:.60} are missing")


def _load(text: bytes) -> Any:
    try:
        # We decode the bytes, since json would guess their encoding and import its codec.
        body = json.loads(text.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON: the file is damaged or cut off") from None
    if _is_too_deep(body):
        raise ValueError(f"it is not a manifest: more than {MAX_DEPTH} nested levels")
    return body


def _is_too_deep(body: Any) -> bool:
    level = [body]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterator[Any]:
    values = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple):
        yield from (inner for inner in values if isinstance(inner, dict | list | tuple))


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_counts(value: object) -> bool:
    return isinstance(value, list) and len(value) <= MAX_AXES and all(map(_is_count, value))


def _is_shape(value: Any) -> bool:
    """Return whether a shape is small enough; extents of 0 do not hide large ones, as in NumPy."""
    return _is_counts(value) and math.prod(extent or 1 for extent in value) < 1 << 59


# Checks of an entry's fields.
_FIELDS = {
    "name": lambda v: isinstance(v, str) and v != "",
    "file": lambda v: isinstance(v, str) and ARRAY_FILE.fullmatch(v) is not None,
    "dtype": lambda v: isinstance(v, str) and v in DTYPES,
    "shape": _is_shape,
    "rows": lambda v: _is_counts(v) and len(v) == 2 and v[0] <= v[1],
    "bytes": _is_count,
    "crc32": lambda v: _is_count(v) and v < 1 << 32,
}


def _entry(number: int, fields: object) -> Entry:
    if not isinstance(fields, dict) or fields.keys() != _FIELDS.keys():
        raise ValueError(f"array {number} must have the fields {', '.join(_FIELDS)}")
    for field in fields:
        if not _FIELDS[field](fields[field]):
            raise ValueError(f"array {number} has the invalid {field} {fields[field]!r:.60}")
    shape, rows = tuple(fields["shape"]), tuple(fields["rows"])
    entry = Entry(**{**fields, "shape": shape, "rows": rows})
    if rows[1] > all_rows(shape)[1] or (not shape and rows != (0, 1)):
        raise ValueError(f"array {number} has invalid rows {list(rows)} of shape {list(shape)}")
    if entry.bytes != file_size(entry.dtype, entry.piece):
        raise ValueError(f"array {entry.name!r:.60} cannot have {entry.bytes} bytes")
    return entry


def _require_json(value: Any, place: str) -> None:
    """Refuse values that JSON cannot store or would change: NaN, arrays, numbers as keys."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise CheckpointError(f"{place} has the key {key!r}: JSON keys are text")
            _require_json(item, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _require_json(item, f"{place}[{number}]")
    elif type(value) is float and not math.isfinite(value):
        raise CheckpointError(f"{place} is {value}, which JSON cannot hold: use null")
    elif type(value) not in (str, int, float, bool, type(None)):
        raise CheckpointError(f"{place} is of type {type(value).__name__}, which JSON cannot hold")
