# SPDX-License-Identifier: Apache-2.0
"""What `convert` wrote, seen by a reader: files marked with the encoder they were written with.

A marked file holds what the encoder would make of the raw rows, so an encoder reads it beside raw
data, and a model trained on converted data scores raw rows. Its ids mean nothing to any other
encoder, which is refused.
"""

from __future__ import annotations

import json
import os
import zlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparsetrain.errors import DataError

from .place import Place
from .schema import Columns, find_label
from .source import Part

if TYPE_CHECKING:
    from .encoder import Encoder

MARK = b"sparsetrain.converted"
ENCODER_FILE, DATASET_FILE = "_encoder.parquet", "dataset.json"
WEIGHTS, FLAG = "_weights", "_missing"  # what follows a column's name in the columns beside it


def converted_mark(schema: pa.Schema) -> str | None:
    """Return the fingerprint of the encoder that a file was converted with, if it was."""
    mark = (schema.metadata or {}).get(MARK)
    return None if mark is None else mark.decode()


def encoder_beside(part: Part) -> Encoder | None:
    """Return the encoder that lies in the folder of a converted file; None for other data."""
    mark = converted_mark(part.schema)
    path = Path(part.place.name).with_name(ENCODER_FILE)
    if mark is None or not path.is_file():
        return None
    from .encoder_file import read_encoder

    return read_encoder(path)


def dense_names(encoder: Encoder) -> tuple[str, ...]:
    """Return the names of the dense columns of converted data, one for each dense input."""
    flags = encoder.num_dense > len(encoder.dense_columns)
    return encoder.dense_columns + tuple(f"{n}{FLAG}" for n in encoder.dense_columns if flags)


def weight_names(encoder: Encoder) -> tuple[str | None, ...]:
    """Return, for each category column of converted data, the column of its weights."""
    names = encoder.columns
    return tuple(f"{n}{WEIGHTS}" if encoder.schema.rule(n).weights else None for n in names)


def converted_columns(
    encoder: Encoder, schema: pa.Schema, where: str, require_label: bool
) -> Columns:
    """Return the columns of a converted file.

    Raises
    ------
    DataError
        If another encoder converted it, or a column is gone.
    """
    if converted_mark(schema) != encoder.fingerprint:
        raise DataError(
            f"{where}: converted with another encoder than this one; convert the raw data with "
            "this one (convert --encoder), or train on this data"
        )
    label = find_label(schema.names, "label", Place(where)) if require_label else None
    dense, weights = dense_names(encoder), weight_names(encoder)
    for name in (*dense, *encoder.columns, *(name for name in weights if name)):
        if name not in schema.names:
            raise Place(where, column=name).error("the column is missing; convert the data again")
    layout = f"converted: {len(dense)} dense, {len(encoder.columns)} ids, used as they are"
    layout += f", label in {label}" if label else ""
    return Columns(dense, encoder.columns, label, True, layout, encoder.bags, weights)


def check_footer(file: str, footer: bytes) -> None:
    """Compare the footer of a file with what the `dataset.json` beside it says, if there is one.

    Page checksums guard the data; this guards what says where and of which type it is.

    Raises
    ------
    DataError
        If they differ.
    """
    known = _footers(os.path.dirname(file)).get(os.path.basename(file))
    if known is not None and known != footer_sum(footer):
        raise DataError(f"{file}: the footer is damaged or another file's; convert the data again")


def footer_sum(footer: bytes) -> str:
    """Return the checksum of a footer, as `dataset.json` has it."""
    return f"{zlib.crc32(footer):08x}"


def _footers(folder: str) -> dict[str, str]:
    path = os.path.join(folder, DATASET_FILE)
    try:
        return _read_footers(path, os.stat(path).st_mtime_ns)
    except OSError:
        return {}


@lru_cache(maxsize=16)
def _read_footers(path: str, changed: int) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            values: Any = json.load(file)
        return {entry["name"]: entry["footer"] for entry in values["files"]}
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path}: not a whole dataset.json; convert the data again") from None
