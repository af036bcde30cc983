# SPDX-License-Identifier: Apache-2.0
"""Manifest of an exported folder: text, one record a line, fields separated by tabs.

The last record is the Adler-32 of all text before it; ``native/artefact.c`` checks it too. Files
also have a CRC-32; deltas compare it to find changed files.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

from sparsetrain.errors import CheckpointError, ConfigError
from sparsetrain.system.regular_files import read_regular_file

FILE = "manifest.txt"
ITEMS = "items.npy"  # vectors of all items, for a retrieval model
FORMAT = 4
_MOST_BYTES = 1 << 26  # most bytes of a manifest; a column needs about a hundred
Record = tuple[str | int, ...]


def float_bits(number: float) -> str:
    """Return the bits of a float64 in hexadecimal: exact, and independent of the locale."""
    return struct.pack(">d", number).hex()


def dump(records: Iterable[Record]) -> bytes:
    """Return the text of a manifest.

    Raises
    ------
    ConfigError
        If a name holds a zero byte.
    """
    body = "".join("\t".join(map(_escaped, r)) + "\n" for r in [_HEAD, *records]).encode()
    return body + b"end\t%08x\n" % zlib.adler32(body)


_HEAD = ("sparsetrain.serving", FORMAT)


def read(folder: Path) -> tuple[list[list[str]], str]:
    """Return the records of a folder's manifest, and the checksum of its text.

    Raises
    ------
    CheckpointError
        If there is no manifest, or it is damaged or has an unknown format.
    """
    try:
        text = read_regular_file(folder / FILE, _MOST_BYTES)
    except OSError as error:
        raise CheckpointError(f"{folder}: no exported model ({error.strerror})") from None
    return parse(text, folder), f"{zlib.crc32(text):08x}"


def parse(text: bytes, folder: Path) -> list[list[str]]:
    """Return the records that `dump` wrote; messages name `folder`.

    Raises
    ------
    CheckpointError
        If the text is damaged or has an unknown format.
    """
    head = f"{_HEAD[0]}\t".encode()
    if not text.startswith(head + b"%d\n" % FORMAT):
        found = text[len(head) :].split(b"\n")[0][:20] if text.startswith(head) else b"none"
        raise CheckpointError(
            f"{folder}: not an export of format {FORMAT} (found {found!r}): export it again"
        )
    body, _, last = text.rpartition(b"end\t")
    if last != b"%08x\n" % zlib.adler32(body):
        raise CheckpointError(f"{folder / FILE}: the file is damaged: copy the folder again")
    lines = body.decode().split("\n")[:-1]  # names may hold line ends
    return [[_unescaped(field) for field in line.split("\t")] for line in lines]


def times(records: Iterable[list[str]]) -> frozenset[str]:
    """Return the columns read only for quotients and remainders, such as a time for its hour."""
    columns: list[str] = []
    derived: set[str] = set()
    plain: set[str] = set()
    for kind, *fields in records:
        if kind == "column":
            columns.append(fields[0])
        elif kind in ("dense", "category"):
            (derived if int(fields[2]) else plain).add(columns[int(fields[1])])
    return frozenset(derived - plain)


def file_record(path: Path) -> Record:
    """Return the record of a file: its name, size, CRC-32 and Adler-32."""
    crc, adler, size = 0, 1, 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            crc, adler, size = zlib.crc32(block, crc), zlib.adler32(block, adler), size + len(block)
    return "file", path.name, size, f"{crc:08x}", f"{adler:08x}"


def plain_name(name: str) -> str:
    """Return the name of a file in the folder; raise if it leads out of the folder."""
    if name != Path(name).name or name.startswith("."):
        raise CheckpointError(f"the manifest names the file {name!r:.60}, outside its folder")
    return name


def _escaped(field: str | int) -> str:
    text = str(field)
    if "\0" in text:
        raise ConfigError(
            f"export: the name {text!r} has a zero byte, which C cannot store: rename it"
        )
    return "".join(f"%{ord(c):02x}" if c < " " or c in "%\x7f" else c for c in text)


def _unescaped(field: str) -> str:
    first, *rest = field.split("%")
    return first + "".join(chr(int(part[:2], 16)) + part[2:] for part in rest)
