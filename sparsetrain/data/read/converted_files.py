# SPDX-License-Identifier: Apache-2.0
"""Marks of converted files: the encoder's fingerprint, and checksums of their footers."""

from __future__ import annotations

import os
import zlib
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from sparsetrain.data.atomic_write import read_json
from sparsetrain.errors import DataError

MARK = b"sparsetrain.converted"
DATASET_FILE = "dataset.json"


def encoder_fingerprint(schema: pa.Schema) -> str | None:
    """Return the fingerprint of the encoder that a file was converted with, if it was."""
    mark = (schema.metadata or {}).get(MARK)
    return None if mark is None else mark.decode()


def is_converted(schema: pa.Schema) -> bool:
    """Return whether `convert` wrote a file: its values are what an encoder made of raw ones."""
    return encoder_fingerprint(schema) is not None


def check_footer(file: str, footer: bytes) -> None:
    """Compare the footer of a file with what the `dataset.json` beside it says, if there is one.

    Page checksums guard the data; this guards what says where and of which type it is.
    """
    known = _footers(os.path.dirname(file)).get(os.path.basename(file))
    if known is not None and known != footer_checksum(footer):
        raise DataError(f"{file}: the footer is damaged or another file's; convert the data again")


def footer_checksum(footer: bytes) -> str:
    """Return the checksum of a footer, as `dataset.json` has it."""
    return f"{zlib.crc32(footer):08x}"


def _footers(folder: str) -> dict[str, str]:
    path = os.path.join(folder, DATASET_FILE)
    try:
        return _read_footers(path, os.stat(path).st_mtime_ns)
    except (FileNotFoundError, NotADirectoryError):
        return {}


@lru_cache(maxsize=16)
def _read_footers(path: str, changed: int) -> dict[str, str]:
    try:
        return {entry["name"]: entry["footer"] for entry in read_json(Path(path))["files"]}
    except (KeyError, TypeError):
        raise DataError(f"{path}: not a whole dataset.json; convert the data again") from None
