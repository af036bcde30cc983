# SPDX-License-Identifier: Apache-2.0
"""`manifest.json`: which file holds which array, and whatever the caller wants to keep beside them.

Reading trusts nothing: size, version, types, names, and that every figure agrees with the others,
are checked before a file is opened. The manifest carries a checksum of itself, so a flipped digit
in a setting is found too.
"""

import json
import math
import re
import zlib
from typing import Any, NamedTuple

from sparsetrain.checkpoint.array_file import DTYPES, file_size
from sparsetrain.errors import CheckpointError

FILE = "manifest.json"
MAX_BYTES = 16 << 20
ARRAY_FILE = re.compile(r"[0-9]{3,6}\.npy")
_FORMAT, _VERSION = "sparsetrain checkpoint", 1
MAX_ARRAYS = 100_000
MAX_AXES = 32  # as many as every NumPy has


class Entry(NamedTuple):
    """One array: its name to the caller, its file, and what the file must hold."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    crc32: int


def dump(entries: list[Entry], about: dict[str, Any]) -> bytes:
    """Return the text of a manifest; `about` is the caller's part.

    Raises
    ------
    CheckpointError
        If `about` holds what JSON would lose, or is too large.
    """
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
    """Return the entries and the caller's part.

    Raises
    ------
    ValueError
        What is wrong, in words that follow "manifest.json: ".
    """
    body = _load(text)
    if not isinstance(body, dict) or body.get("format") != _FORMAT:
        raise ValueError("it is not the manifest of a sparsetrain checkpoint")
    version = body.get("version")
    if version != _VERSION:
        raise ValueError(f"format version {version!r} is unknown, this sparsetrain reads version 1")
    if body.pop("crc32", None) != _checksum(body):
        raise ValueError("its checksum does not match: the file is damaged or was edited")
    listed, about = body.get("arrays"), body.get("manifest")
    if not isinstance(listed, list) or not isinstance(about, dict) or len(listed) > MAX_ARRAYS:
        raise ValueError("`arrays` must be a list and `manifest` an object")
    entries = [_entry(number, fields) for number, fields in enumerate(listed)]
    for field in ("name", "file"):
        if len({getattr(entry, field) for entry in entries}) < len(entries):
            raise ValueError(f"two arrays have the same {field}")
    return entries, about


def _load(text: bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON: the file is damaged or cut off") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


# What each field of an entry must be.
_FIELDS = {
    "name": lambda v: isinstance(v, str) and v != "",
    "file": lambda v: isinstance(v, str) and ARRAY_FILE.fullmatch(v) is not None,
    "dtype": lambda v: isinstance(v, str) and v in DTYPES,
    "shape": lambda v: isinstance(v, list) and len(v) <= MAX_AXES and all(map(_is_count, v)),
    "bytes": lambda v: _is_count(v),
    "crc32": lambda v: _is_count(v) and v < 1 << 32,
}


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _entry(number: int, fields: object) -> Entry:
    if not isinstance(fields, dict) or fields.keys() != _FIELDS.keys():
        raise ValueError(f"array {number} must have the fields {', '.join(_FIELDS)}")
    for field, fits in _FIELDS.items():
        if not fits(fields[field]):
            raise ValueError(f"array {number} has the {field} {fields[field]!r:.60}")
    entry = Entry(**{**fields, "shape": tuple(fields["shape"])})
    if entry.bytes != file_size(entry.dtype, entry.shape):
        raise ValueError(f"array {entry.name!r} cannot have {entry.bytes} bytes")
    return entry


def _require_json(value: Any, place: str) -> None:
    """Refuse what JSON cannot hold or would change: NaN, arrays, numbers as keys."""
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
