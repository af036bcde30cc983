# SPDX-License-Identifier: Apache-2.0
"""Synthetic chunks into one parquet file, with the ceiling of its rows in its metadata.

The file is written under another name, flushed to disk and then renamed, so a killed run leaves
the old file or none. Page checksums are on: without them a flipped bit reads back as other data.
"""

import json
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparsetrain.data.synthetic.ceiling import CeilingMeter, Truth
from sparsetrain.data.synthetic.figures import CATEGORIES, INTEGERS
from sparsetrain.data.whole_file import whole_file
from sparsetrain.errors import DataError

SCHEMA = pa.schema(
    [("label", pa.int32())]
    + [(name, pa.int32()) for name in INTEGERS]
    + [(name, pa.string()) for name in CATEGORIES]
)
_KEY = b"sparsetrain.synthetic"


def write_chunks(
    path: str | PathLike[str],
    chunks: Iterable[tuple[pa.Table, np.ndarray]],
    rows: int,
    made_by: dict,
) -> Truth:
    """Write the first `rows` rows of `chunks`, pairs of a table and its true logits (n,)."""
    meter, path = CeilingMeter(), Path(path)
    if path.is_dir() or not path.parent.is_dir():
        fix = "it is a folder" if path.is_dir() else f"create the folder {path.parent} first"
        raise DataError(f"{path}: cannot be written: {fix}")
    with whole_file(path) as file, _parquet_writer(file) as writer:
        for table, logits in chunks:
            left = rows - meter.rows
            writer.write_table(table[:left])
            meter.update(logits[:left])
        truth = meter.result()
        described = json.dumps({**made_by, "truth": truth._asdict()})
        writer.add_key_value_metadata({_KEY: described})
    return truth


def read_truth(path: str | PathLike[str]) -> Truth | None:
    """Return the ceiling of a file that `SyntheticCriteo.write` made, None of any other parquet.

    Raises
    ------
    DataError
        If `path` cannot be read as parquet.
    """
    try:
        metadata = pq.read_metadata(path).metadata or {}
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path} cannot be read as parquet: {_reason(error)}") from None
    if _KEY not in metadata:
        return None
    try:
        return Truth(**json.loads(metadata[_KEY])["truth"])
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} has a damaged note of its ceiling: write it again") from None


def _parquet_writer(file: IO[bytes]) -> pq.ParquetWriter:
    return pq.ParquetWriter(file, SCHEMA, compression="zstd", write_page_checksum=True)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error).partition("\n")[0]
