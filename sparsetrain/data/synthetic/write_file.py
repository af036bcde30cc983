# SPDX-License-Identifier: Apache-2.0
"""Files of synthetic rows: parquet, with the best possible score in its metadata, or text.

Text has Criteo's format: tabs, no header, empty fields for missing values; it cannot store the
score. Files are written atomically. Parquet's page checksums are on: without them a flipped bit
would go unnoticed.
"""

import glob
import json
from collections.abc import Iterable
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from sparsetrain.data.synthetic.ceiling import CeilingMeter, Truth
from sparsetrain.data.synthetic.sample import CATEGORIES, INTEGERS
from sparsetrain.errors import DataError, first_line
from sparsetrain.system.file_locks import atomic_write, remove_temporaries

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

    remove_temporaries(path.parent, glob.escape(path.name))
    is_text = path.suffix.lower() == ".tsv"
    with atomic_write(path) as file, (_text if is_text else _parquet)(file) as writer:
        for table, logits in chunks:
            left = rows - meter.rows
            writer.write_table(table[:left])
            meter.update(logits[:left])
        if not is_text:
            note = json.dumps({**made_by, "truth": meter.result()._asdict()})
            writer.add_key_value_metadata({_KEY: note})
    return meter.result()


_parquet = partial(pq.ParquetWriter, schema=SCHEMA, compression="zstd", write_page_checksum=True)
_LIKE_CRITEO = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
_text = partial(csv.CSVWriter, schema=SCHEMA, write_options=_LIKE_CRITEO)


def read_truth(path: str | PathLike[str]) -> Truth | None:
    """Return the `Truth` of a file that `SyntheticCriteo.write` wrote; None for other parquet.

    Raises
    ------
    DataError
        If `path` cannot be read as parquet.
    """
    try:
        metadata = pq.read_metadata(path).metadata or {}
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path} cannot be read as parquet: {first_line(error)}") from None
    if _KEY not in metadata:
        return None
    try:
        return Truth(**json.loads(metadata[_KEY])["truth"])
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} has a damaged note of its ceiling: write it again") from None
